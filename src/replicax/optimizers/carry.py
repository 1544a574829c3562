"""Steps that get a state and return the next one, as functional code has them.

The state is a tree of variables, so it is donated, sharded, checked against drift and saved as
variables are; the step sees arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from replicax.core import nest
from replicax.core.errors import VariableError
from replicax.optimizers.trees import assign, values_of
from replicax.variables.variable import Variable


def carry(step: Callable[..., Any]) -> Callable[..., Any]:
    """Lets a step ``state, metrics = step(state, batch)`` work on variables.

    The step gets the arrays of the state, and its new state is assigned to the variables, by
    `assign`: what is mirrored must come out equal on all replicas, and statistics that are
    ``ON_READ`` may differ. Nothing is copied; a compiled step takes the buffers of the variables.

    Args:
        step: A function that gets a state first and returns a tuple whose first part is the new
            state, of the same structure.

    Returns:
        A function that gets and returns a tree of variables instead, for ``strategy.run`` or
        `function`.

    Raises:
        VariableError: When called, if the state has no variables, or the step returned no tuple or
            a state of another structure, or, in an eager replica, one that differs between
            replicas.
        TraceError: When called in a compiled step, if a mirrored part of the state differs.

    Example:
        >>> import jax, optax
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> tx = optax.sgd(0.25)
        >>> with strategy.scope():
        ...     state = rx.variables_from({"w": 1.0, "opt": tx.init(1.0)})
        >>> @rx.function
        ... @rx.carry
        ... def step(state, x):
        ...     loss, grad = jax.value_and_grad(lambda w: w * x)(state["w"])
        ...     grad = rx.get_replica_context().all_reduce("SUM", grad)
        ...     updates, opt = tx.update(grad, state["opt"])
        ...     return {"w": optax.apply_updates(state["w"], updates), "opt": opt}, loss
        >>> state, losses = strategy.run(step, args=(state, 2.0))
        >>> state["w"].numpy()
        array(0., dtype=float32)
    """

    @functools.wraps(step)
    def carried(state: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(leaf, Variable) for leaf in nest.flatten(state)[0]):
            raise VariableError(
                f"the step {step!r} carries a state without variables. Make it once, before the "
                "loop: `with strategy.scope(): state = replicax.variables_from(state)`, and pass "
                "that."
            )
        result = step(values_of(state), *args, **kwargs)
        if not isinstance(result, tuple) or not result:
            raise VariableError(
                f"the step {step!r} returned {type(result).__name__}; a step that carries a state "
                "returns a tuple with the new state first: return state, metrics."
            )
        return (assign(state, result[0]), *result[1:])

    return carried
