"""Lets the contract suite run on several workers: what is local to each comes from all of them.

The suite says what the replicas of a strategy get and return. On one worker
``experimental_local_results`` shows all of it; on several, each worker shows its part, and the
parts together must be the same. That each worker really has its own part only is tested in
``tests/multiprocess``.
"""

import base64
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np

from replicax.backend import workers
from replicax.engine.trace.frame import current_frame
from replicax.values.distributed import ComponentView

_MEETING_SECONDS = 30.0
_START_SECONDS = 240.0  # longer: another worker may have waited in its last test


def begin_together(test, monkeypatch):
    """Brings all workers to the start of `test`, also after one of them failed before."""
    group = workers.require()
    monkeypatch.setattr(group, "channel", test)
    monkeypatch.setattr(workers, "MEETING_SECONDS", _START_SECONDS)
    group.exchange("the start of a test", None)
    monkeypatch.setattr(workers, "MEETING_SECONDS", _MEETING_SECONDS)


def end_together(status):
    """Ends the process when all workers are done; the first one, which all talk to, last."""
    group = workers.require()
    group.exchange("the end of the suite", None, channel="end")
    sys.stdout.flush()
    sys.stderr.flush()
    group.end(workers.ENDED)
    if group.rank == 0:  # the others need it until they have said that they end
        group.await_others(_START_SECONDS)
    os._exit(status)


def results_of_all(local_results):
    """``experimental_local_results`` over the replicas of all workers."""

    def everywhere(strategy, value):
        own = local_results(strategy, value)
        if current_frame() is not None or len(own) != len(strategy.extended.worker_devices):
            return own
        try:
            encoded = [_encoded(item) for item in own]
        except TypeError:
            return own
        group = workers.require()
        rows = group.exchange("the local results of a test", encoded)
        return tuple(
            item
            for rank, row in enumerate(rows)
            for item in (own if rank == group.rank else map(_decoded, row))
        )

    return everywhere


def _encoded(item):
    if isinstance(item, ComponentView):
        item = item.read_value()
    if item is None or isinstance(item, (bool, int, float, str)):
        return ["plain", item]
    if isinstance(item, dict):
        return ["dict", {key: _encoded(value) for key, value in item.items()}]
    if type(item) in (list, tuple):
        return [type(item).__name__, [_encoded(value) for value in item]]
    if isinstance(item, (jax.Array, np.ndarray, np.generic)):
        array = np.asarray(item)
        if array.dtype.kind not in "biufcSU":
            raise TypeError(array.dtype)
        data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
        kind = "jax" if isinstance(item, jax.Array) else "numpy"
        return [kind, [array.dtype.str, array.shape, data]]
    raise TypeError(type(item))


def _decoded(item):
    kind, value = item
    if kind == "dict":
        return {key: _decoded(inner) for key, inner in value.items()}
    if kind in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[kind](map(_decoded, value))
    if kind == "plain":
        return value
    dtype, shape, data = value
    array = np.frombuffer(base64.b64decode(data), dtype).reshape(shape)
    return jnp.asarray(array) if kind == "jax" else array
