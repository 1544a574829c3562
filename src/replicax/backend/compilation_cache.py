"""Keeps compiled programs on disk, so that a process that starts again need not compile them."""

from __future__ import annotations

import os
import pathlib

import jax
from jax.experimental.compilation_cache import compilation_cache


def set_compilation_cache(directory: str | os.PathLike[str] | None) -> None:
    """Keeps compiled programs in `directory`, for this process and for later ones.

    JAX does so by itself only for programs that take a second to compile; this keeps all of
    them. What a program was compiled from is part of its name, JAX's version and the devices too,
    so a changed step is compiled again. Nothing is ever removed: delete the directory when it
    grows too large. Do not share it with those whose programs you would not run.

    Args:
        directory: Where; it is created if need be. None turns the cache off.

    Raises:
        ValueError: `directory` is a file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     set_compilation_cache(folder)
        ...     value = jax.jit(lambda x: x * 2)(1.0)
        ...     set_compilation_cache(None)
    """
    if directory is not None:
        path = pathlib.Path(directory).expanduser().absolute()
        if path.exists() and not path.is_dir():
            raise ValueError(
                f"the compilation cache cannot be {str(directory)!r}, which is a file. Pass a "
                "directory; it is created if it does not exist."
            )
        path.mkdir(parents=True, exist_ok=True)
        directory = str(path)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_compilation_cache_dir", directory)
    compilation_cache.reset_cache()  # JAX looks at the setting only once
