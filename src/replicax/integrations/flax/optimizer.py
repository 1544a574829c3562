"""Updates by an ``nnx.Optimizer`` in a step: the gradients are summed, and one update is made.

The update is made once for all replicas, in cross-replica context. So it is Optax that sees the
gradients of the whole batch, and every transformation (clipping, schedules, accumulation) does
what it does on one device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from replicax.core.enums import ReduceOp
from replicax.core.errors import VariableError
from replicax.engine.contexts import stack
from replicax.integrations.flax import modules
from replicax.integrations.flax.variables import variable_in
from replicax.optimizers.gradients import reduced


def update(
    original: Callable[..., Any], optimizer: Any, model: Any, grads: Any, /, **kwargs: Any
) -> Any:
    """What ``nnx.Optimizer.update`` does.

    Args:
        original: What NNX does.
        optimizer: The optimizer.
        model: The model.
        grads: The gradients: in a replica its own, and what is the same on all was reduced before.
        **kwargs: Further arguments of the transformation. In a replica arrays are summed.

    Raises:
        VariableError: In a replica, if the optimizer is not the strategy's.
    """
    entry = stack.top()
    in_replica = entry is not None and entry.mode is stack.Mode.REPLICA and stack.has_strategy()
    if not in_replica:
        return original(optimizer, model, grads, **kwargs)
    assert entry is not None
    if variable_in(optimizer.step) is None:
        if modules.is_made_in_step(optimizer):
            return original(optimizer, model, grads, **kwargs)
        raise _not_distributed(optimizer)
    parameters = _parameters(model, optimizer)
    leaves, structure = jax.tree.flatten((grads, kwargs))
    count = len(jax.tree.leaves(grads))
    if count != len(parameters):
        raise VariableError(
            f"optimizer.update got {count} gradients for {len(parameters)} parameters. Take them "
            "with the filter of the optimizer: "
            "nnx.value_and_grad(loss_fn, argnums=nnx.DiffState(0, wrt))."
        )

    def merged(strategy: Any, leaves: list[Any]) -> Any:
        options = {"aggregate": True, "of_replicas": True}
        others = leaves[count:]
        totals = reduced(strategy, ReduceOp.SUM, leaves[:count], parameters, **options)
        totals += [strategy.reduce(ReduceOp.SUM, value, axis=None) for value in others]
        new_grads, new_kwargs = jax.tree.unflatten(structure, totals)
        return original(optimizer, model, new_grads, **new_kwargs)

    return entry.replica_context.merge_call(merged, args=(leaves,))


def _parameters(model: Any, optimizer: Any) -> list[Any]:
    options = {"graph": optimizer.graph} if hasattr(optimizer, "graph") else {}  # from 0.12.8 on
    state = nnx.state(model, optimizer.wrt, **options)
    found = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, nnx.Variable))
    held = [variable_in(variable) for variable in found]
    if None in held:
        raise VariableError(
            f"optimizer.update got a {type(found[held.index(None)]).__name__} that is not "
            "distributed, in the model of a distributed optimizer. Create the model in `with "
            "strategy.scope():`, or give it to replicax.integrations.flax.distribute(model, "
            "strategy)."
        )
    return held


def _not_distributed(optimizer: Any) -> VariableError:
    return VariableError(
        f"{type(optimizer).__name__}.update was called in a replica, on an optimizer that is not "
        "distributed: every replica would update a copy. Inside nnx.jit, nnx.scan and the like the "
        "optimizer is such a copy: call optimizer.update outside of them, and compile the whole "
        "step with replicax.function. An optimizer that was made outside of the scope belongs "
        "into replicax.integrations.flax.distribute((model, optimizer), strategy)."
    )
