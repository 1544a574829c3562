"""Gives every test and every docstring example 8 virtual CPU devices, and watches for leaks.

It is at the root so that the tests and the examples in src share it. A run without the
devices fails as a whole: a skipped test would look like a passing one.
"""

import gc
import os
import pathlib
import threading
from collections.abc import Iterator

import jax
import pytest

pytest_plugins = ["tests.tiers"]

NUM_CPU_DEVICES = 8

# Threads of the CPU client. With fewer than the devices need, a collective can wait for ever for
# a replica that has no thread, and the client sizes its pool by the cores unless told otherwise.
MIN_CLIENT_THREADS = 32

# Written by other libraries: pytest names the running test, scikit-learn sets up its OpenMP, Keras
# tells TensorFlow how to take memory, tensorboardX how to compute checksums.
FOREIGN_VARIABLES = frozenset(
    {
        "CRC32C_SW_MODE",
        "KMP_DUPLICATE_LIB_OK",
        "KMP_INIT_AT_FORK",
        "PYTEST_CURRENT_TEST",
        "TF_FORCE_GPU_ALLOW_GROWTH",
    }
)

THREAD_GRACE_SECONDS = 2.0

# Set by tests/multiprocess for the workers of a cluster that run the same tests together.
IN_CLUSTER = "REPLICAX_TEST_CLUSTER" in os.environ

# Compiled programs, shared by the workers, by the processes that tests start and by later runs:
# the same few programs over the same devices are most of what a run would compile.
COMPILATION_CACHE = {
    "jax_compilation_cache_dir": str(pathlib.Path(__file__).parent / ".jax_cache"),
    "jax_persistent_cache_min_compile_time_secs": 0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


def _client_threads() -> int:
    asked = os.environ.get("NPROC", "")
    return max(int(asked) if asked.isdigit() else 0, MIN_CLIENT_THREADS)


# At import, because a test module may ask for devices while it is collected.
os.environ["NPROC"] = str(_client_threads())
os.environ.setdefault("KERAS_BACKEND", "jax")  # read when Keras is imported
for name, setting in COMPILATION_CACHE.items():
    os.environ.setdefault(name.upper(), str(setting))
    jax.config.update(name, setting)
jax.config.update("jax_platforms", "cpu")
if not IN_CLUSTER:
    jax.config.update("jax_num_cpu_devices", NUM_CPU_DEVICES)  # before any backend starts


def pytest_sessionstart(session: pytest.Session) -> None:
    """Starts the backend and ends the run if it does not have the devices."""
    if IN_CLUSTER:
        return  # the strategy joins the other workers first, and then starts it
    try:
        num_devices = jax.device_count()
    except RuntimeError as error:
        pytest.exit(f"The JAX CPU backend did not start: {error}", returncode=3)
    if num_devices != NUM_CPU_DEVICES:
        pytest.exit(
            f"The tests need {NUM_CPU_DEVICES} CPU devices, JAX has {num_devices}. Look for a "
            "pytest plugin or an option that starts a JAX backend before conftest.py.",
            returncode=3,
        )


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in FOREIGN_VARIABLES}


def _changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return [
        f"{name}: {before.get(name)!r} -> {after.get(name)!r}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _restore(before: dict[str, str], after: dict[str, str]) -> None:
    for name in after.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True, scope="module")
def small_heap() -> None:
    """Keeps the garbage collector from looking again and again at what earlier files have left.

    JAX keeps every traced program, millions of objects after some thousand tests. Tests that
    collect garbage would spend seconds on each collection.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fails a test that leaves environment variables changed or non-daemon threads running."""
    environment = _environment()
    threads = set(threading.enumerate())
    yield
    after = _environment()
    changes = _changes(environment, after)
    _restore(environment, after)  # so that only the test at fault fails
    started = [t for t in threading.enumerate() if t not in threads and not t.daemon]
    for thread in started:
        thread.join(THREAD_GRACE_SECONDS)
    alive = [thread.name for thread in started if thread.is_alive()]
    problems = []
    if changes:
        problems.append(f"environment variables changed: {'; '.join(changes)}")
    if alive:
        problems.append(f"non-daemon threads still running: {', '.join(alive)}")
    if problems:
        pytest.fail(f"The test leaked. {'. '.join(problems)}.", pytrace=False)
