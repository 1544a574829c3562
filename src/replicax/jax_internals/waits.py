"""Where a thread waits for arrays: what a program of a user calls, and what JAX calls for it.

JAX has no event for this. Its array class has a few methods by which Python waits for a value or
copies it to the host, and while somebody watches they are wrapped. Only `watching` does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]

from replicax.jax_internals.arrays import ConcreteArray

_Before = TypeVar("_Before")

# ``float(x)``, ``print(x)`` and ``jax.device_get(x)`` all read `_value`; that JAX has these names
# is a matter of its version, and a missing one is not seen.
_WAITS = (
    (ConcreteArray, "_value"),
    (ConcreteArray, "block_until_ready"),
    (ConcreteArray, "item"),
    (ConcreteArray, "tolist"),
    (xla_client, "batched_block_until_ready"),
)


@contextlib.contextmanager
def waits_seen(
    enter: Callable[[], _Before | None], leave: Callable[[_Before], object]
) -> Iterator[None]:
    """Has each wait for an array reported, in every thread.

    What NumPy reads by itself from an array on one CPU device, in ``np.asarray``, is not seen.

    Args:
        enter: Called before a wait.
        leave: Called after it with what `enter` has given, unless that is None.
    """
    before = [(owner, name, vars(owner)[name]) for owner, name in _WAITS if name in vars(owner)]

    def wrapped(name: str, method: Any) -> Any:
        def wait(*args: Any, **kwargs: Any) -> Any:
            entered = enter()
            try:
                return method(*args, **kwargs)
            finally:
                if entered is not None:
                    leave(entered)

        wait.__name__ = wait.__qualname__ = name
        wait.__doc__ = method.__doc__
        return wait

    try:
        for owner, name, method in before:
            is_property = isinstance(method, property)
            new = property(wrapped(name, method.fget)) if is_property else wrapped(name, method)
            setattr(owner, name, new)
        yield
    finally:
        for owner, name, method in before:
            setattr(owner, name, method)
