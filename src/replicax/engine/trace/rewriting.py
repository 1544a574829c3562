"""Changes equations of traced programs, at any depth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replicax.jax_internals.programs import ClosedJaxpr, Jaxpr


def rewritten(jaxpr: Any, change: Callable[[Any], Any]) -> Any:
    """A plain Jaxpr with ``change(eqn)`` for every equation at any depth, bodies first.

    A body that stands in several places is rewritten once and stays one object: JAX lowers it
    once then, and a program of nested bodies does not grow with every level.
    """
    done: dict[int, Any] = {}  # by `id`; the originals live as long as `jaxpr`

    def of(value: Any) -> Any:
        if type(value) in (tuple, list):
            return type(value)(map(of, value))
        if not isinstance(value, ClosedJaxpr | Jaxpr):
            return value
        if id(value) not in done:
            if isinstance(value, Jaxpr):
                done[id(value)] = value.replace(eqns=list(map(equation, value.eqns)))
            else:
                done[id(value)] = value.replace(jaxpr=of(value.jaxpr))
        return done[id(value)]

    def equation(eqn: Any) -> Any:
        return change(eqn.replace(params={name: of(value) for name, value in eqn.params.items()}))

    return of(jaxpr)
