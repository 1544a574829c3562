"""What is different where several workers run the same Keras program."""

from __future__ import annotations

import inspect
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from replicax.backend import workers
from replicax.integrations.keras import ownership


def quiet(
    original: Callable[..., Any], strategy: Any, model: Any, args: Any, kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The keywords for `original`: only the chief shows a progress bar, unless asked to."""
    signature = inspect.signature(original)
    if strategy.is_chief or "verbose" not in signature.parameters:
        return kwargs
    given = signature.bind(model, *args, **kwargs).arguments
    return kwargs if "verbose" in given else {**kwargs, "verbose": 0}


def share_random_state(strategy: Any) -> None:
    """Gives all workers worker 0's state of NumPy's random numbers, with which Keras shuffles."""
    if not strategy.extended.mesh.spans_workers:
        return
    name, keys, position, has_gauss, cached = np.random.get_state()
    own = [name, np.asarray(keys).tolist(), position, has_gauss, cached]
    first = workers.require().exchange("fit of a Keras model", own)[0]
    np.random.set_state((first[0], np.array(first[1], "uint32"), *first[2:]))


def save(original: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
    """What ``model.save`` does; the file of a worker that is not the chief is thrown away.

    It is written all the same: reading a variable may need all workers. When one of them goes on,
    the file of the chief is complete.
    """
    strategy = ownership.owner_of(model)
    if strategy is None or not strategy.extended.mesh.spans_workers:
        return original(model, filepath, *args, **kwargs)
    if strategy.is_chief:
        result = original(model, filepath, *args, **kwargs)
    else:
        with tempfile.TemporaryDirectory() as folder:
            other = pathlib.Path(folder) / pathlib.Path(str(filepath)).name
            result = original(model, str(other), *args, **kwargs)
    workers.require().exchange("saving of a Keras model", None)
    return result


def make_folder(original: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> Any:
    """What Keras's ``makedirs`` does, also where another worker has just made the folder."""
    try:
        return original(path, *args, **kwargs)
    except FileExistsError:
        if not _is_one_of_many_workers():
            raise
    return None


def save_backup(original: Callable[..., Any], callback: Any) -> None:
    """What `BackupAndRestore` does after an epoch: the folder is the chief's."""
    strategy = ownership.owner_of(callback.model)
    if strategy is None or strategy.is_chief:
        original(callback)
    else:
        callback.model.save_weights("backup.weights.h5")  # with the chief, which keeps its own


def delete_backup(original: Callable[..., Any], callback: Any, *args: Any, **kwargs: Any) -> None:
    """What `BackupAndRestore` does when training has ended."""
    strategy = ownership.owner_of(callback.model)
    if strategy is None or strategy.is_chief:
        original(callback, *args, **kwargs)


def _is_one_of_many_workers() -> bool:
    strategy = ownership.strategy_in_force()
    return strategy is not None and strategy.extended.mesh.spans_workers
