"""Arrays on disk, through Orbax: the only module that names it.

Arrays are written from the host and read straight onto the devices they are for.
In a cluster every call is this process's own: Orbax waits for no other worker. Orbax is an
optional dependency.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from replicax.backend import placement, workers
from replicax.core.extras import require_extra

Tree = Mapping[str, Mapping[str, Any]]
"""Arrays by group and key."""


def import_orbax() -> Any:
    """Orbax, which is an optional dependency.

    Raises:
        ImportError: If it is not installed; says how to get it.
    """
    require_extra("orbax", user="Checkpoint", extra="checkpoint")
    import orbax.checkpoint

    return orbax.checkpoint


def write_arrays(path: Path, tree: Tree) -> Callable[[], None]:
    """Begins to write arrays to the folder `path`.

    Args:
        path: The folder, which does not exist yet.
        tree: Arrays on the host.

    Returns:
        A function that waits until all is written, and raises if it could not be.
    """
    ocp = import_orbax()
    alone = _in_this_process(ocp)
    work = contextlib.ExitStack()
    with work:
        work.enter_context(_reported_once(path))
        checkpointer = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(**alone), **alone)
        work.callback(_close, checkpointer)
        checkpointer.save(path, args=ocp.args.PyTreeSave({k: dict(v) for k, v in tree.items()}))
        work = work.pop_all()

    def finish() -> None:
        with work:
            checkpointer.wait_until_finished()

    return finish


def _close(checkpointer: Any) -> None:
    try:
        checkpointer.close()
    except Exception:
        with contextlib.suppress(Exception):
            checkpointer.close()  # it has raised before it ended its threads
        raise


@contextlib.contextmanager
def _reported_once(path: Path) -> Iterator[None]:
    """Keeps Orbax from logging an error about `path` on each of its threads: it is raised, too."""

    def is_another(record: logging.LogRecord) -> bool:
        return str(path) not in record.getMessage()

    logger = logging.getLogger("absl")
    logger.addFilter(is_another)
    try:
        yield
    finally:
        logger.removeFilter(is_another)


def read_arrays(path: Path, wanted: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Reads some of the arrays in the folder `path`.

    Args:
        path: Where they are.
        wanted: By group and key: the sharding that the array is for, or None for a
            NumPy array.

    Returns:
        The arrays; those over several devices share no buffer with anybody.
    """
    if not any(wanted.values()):
        return {group: {} for group in wanted}
    ocp = import_orbax()

    def how(sharding: Any) -> Any:
        if sharding is None:
            return ocp.RestoreArgs(restore_type=np.ndarray)
        return ocp.ArrayRestoreArgs(restore_type=jax.Array, sharding=sharding)

    asked = {group: keys for group, keys in wanted.items() if keys}
    restore_args = {g: {k: how(s) for k, s in keys.items()} for g, keys in asked.items()}
    item = {g: dict.fromkeys(keys, 0) for g, keys in asked.items()}
    alone = _in_this_process(ocp)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**alone), **alone) as checkpointer:
        read = checkpointer.restore(
            path,
            args=ocp.args.PyTreeRestore(item=item, restore_args=restore_args, partial_restore=True),
        )
    return {
        group: {key: _owned(array) for key, array in read.get(group, {}).items()}
        for group in wanted
    }


def _in_this_process(ocp: Any) -> dict[str, Any]:
    """Options by which Orbax does not meet other processes.

    Its barriers wait for minutes when a worker has gone, and those in the background would
    run collectives between those of the steps.
    """
    joined = workers.current()
    if joined is None:
        return {}
    options = ocp.options.MultiprocessingOptions(
        primary_host=joined.rank,
        active_processes={joined.rank},
        barrier_sync_key_prefix=f"worker{joined.rank}",
    )
    return {"multiprocessing_options": options}


def _owned(array: Any) -> Any:
    """`array` with buffers of its own: on CPU all copies are views of one that was read."""
    if not isinstance(array, jax.Array):
        return np.asarray(array)
    parts = [placement.own_copy(shard.data, shard.device) for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)
