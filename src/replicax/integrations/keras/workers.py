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

    It is written all the same: reading a variable may need all workers.
    """
    strategy = ownership.owner_of(model)
    if strategy is None or strategy.is_chief:
        return original(model, filepath, *args, **kwargs)
    with tempfile.TemporaryDirectory() as folder:
        other = pathlib.Path(folder) / pathlib.Path(str(filepath)).name
        return original(model, str(other), *args, **kwargs)
