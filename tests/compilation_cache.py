"""Makes JAX's cache of compiled programs safe and useful for all processes of a test run.

JAX writes an entry in place, so that another process can read half of one, and one that is killed
leaves half of one for ever: a warning in every later run, and here an error. And of the workers of
a cluster it lets the first one write only, although no other can use what that one writes: the
others would compile every program anew in every run.
"""

import os
import pathlib
import threading

import jax
from jax._src import compilation_cache, compiler
from jax._src.lru_cache import _CACHE_SUFFIX, LRUCache

SETTINGS = {
    "jax_compilation_cache_dir": str(pathlib.Path(__file__).parents[1] / ".jax_cache"),
    "jax_persistent_cache_min_compile_time_secs": 0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
VARIABLES = tuple(name.upper() for name in SETTINGS)


def use():
    """Lets this process, and those that it starts, share what they compile."""
    for name, setting in SETTINGS.items():
        os.environ.setdefault(name.upper(), str(setting))
        jax.config.update(name, setting)
    LRUCache.put = _put_whole
    compiler._cache_write = _write_on_every_worker


def _put_whole(cache, key, value):
    path = cache.path / f"{key}{_CACHE_SUFFIX}"
    if not path.exists():
        part = path.with_name(f"{os.getpid()}-{threading.get_ident()}.part")
        part.write_bytes(value)
        part.replace(path)


def _write_on_every_worker(key, seconds, module_name, backend, executable, host_callbacks):
    if not host_callbacks:
        compilation_cache.put_executable_and_time(
            key, module_name, executable, backend, int(seconds)
        )
