"""Lets a host callback fail without the devices waiting for each other for ever.

A callback (`jax.pure_callback`, `jax.io_callback`, `jax.debug.callback`) that raises ends the
program on its own device only. The other devices wait for that one in their next collective, and
after 40 seconds XLA ends the process. So in a program over several devices a callback never
raises: it gives zeros, and notes the error. Who launches the program waits for its end and raises,
before anybody gets a result.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from replicax.core.errors import HostCallbackError
from replicax.engine.trace.rewriting import rewritten
from replicax.jax_internals.programs import sub_jaxprs

_CALLBACKS = frozenset({"pure_callback", "io_callback", "debug_callback"})


class HostCalls:
    """What the host callbacks of one program have raised.

    Args:
        program: What errors call the program.

    Example:
        >>> calls = HostCalls("step")
        >>> calls.refuse_failures()
    """

    def __init__(self, program: str) -> None:
        self._program = program
        self._errors: collections.deque[tuple[str, BaseException]] = collections.deque()

    def guarded(self, jaxpr: Any) -> Any:
        """`jaxpr`, whose callbacks note their errors here and give zeros."""
        return rewritten(jaxpr, self._guarded_equation)

    def _guarded_equation(self, eqn: Any) -> Any:
        if eqn.primitive.name not in _CALLBACKS:
            return eqn
        shapes = [(v.aval.shape, v.aval.dtype) for v in eqn.outvars]
        call = _GuardedCall(eqn.params["callback"], tuple(shapes), self._errors)
        return eqn.replace(params=eqn.params | {"callback": call})

    def refuse_failures(self) -> None:
        """Raises if a callback has failed; to be called when the program has ended.

        Raises:
            HostCallbackError: From the first error.
        """
        if not self._errors:
            return
        name, error = self._errors[0]
        count = len(self._errors)
        self._errors.clear()
        more = f", and {count - 1} more calls failed" if count > 1 else ""
        raise HostCallbackError(
            f"the host callback {name} of {self._program} raised {type(error).__name__}: {error}"
            f"{more}. The results of this call of {self._program} are thrown away, and the "
            "variables that it writes have lost their values: assign them, or restore a "
            "checkpoint. To go on after such an error, return a flag from the callback instead."
        ) from error


def has_host_calls(jaxpr: Any) -> bool:
    """Whether `jaxpr` has a host callback of the user at any depth."""
    return next(callbacks_in(jaxpr), None) is not None


def callbacks_in(jaxpr: Any) -> Iterator[str]:
    """The name of each kind of host callback in `jaxpr`, at any depth."""
    seen: set[int] = set()  # a body may stand in many places

    def found_in(body: Any) -> Iterator[str]:
        if id(body) in seen:
            return
        seen.add(id(body))
        for eqn in body.eqns:
            if eqn.primitive.name in _CALLBACKS:
                yield eqn.primitive.name
            for inner in sub_jaxprs(eqn.params):
                yield from found_in(inner)

    return found_in(jaxpr)


@dataclasses.dataclass(frozen=True)
class _GuardedCall:
    """A callback that gives zeros where it fails, or gives something of another shape."""

    callback: Callable[..., Any]
    shapes: tuple[tuple[tuple[int, ...], Any], ...]
    errors: collections.deque[tuple[str, BaseException]] = dataclasses.field(compare=False)

    def __call__(self, *args: Any) -> Sequence[Any]:
        try:
            results = self.callback(*args)
            if not self.shapes:
                return ()
            arrays = [_canonical(np.asarray(result)) for result in results]
            self._check(arrays)
        except BaseException as error:  # whatever it is: it must not get into the runtime
            self.errors.append((self._name, error))
            return [np.zeros(shape, dtype) for shape, dtype in self.shapes]
        return arrays

    def _check(self, arrays: Sequence[np.ndarray]) -> None:
        found = [(array.shape, array.dtype) for array in arrays]
        if found != list(self.shapes):
            raise ValueError(f"it returned {_shown(found)}, not {_shown(self.shapes)}.")

    @property
    def _name(self) -> str:
        function = getattr(self.callback, "callback_func", self.callback)
        return getattr(function, "__name__", type(function).__name__)


def _canonical(array: np.ndarray) -> np.ndarray:
    """As JAX takes it: a Python float counts in 32 bits unless x64 is on."""
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def _shown(shapes: Sequence[tuple[tuple[int, ...], Any]]) -> str:
    return ", ".join(f"{dtype}{list(shape)}" for shape, dtype in shapes) or "nothing"
