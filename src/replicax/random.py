"""Random keys whose state is a variable, equal in eager and compiled runs."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from replicax.core.enums import VariableAggregation
from replicax.core.errors import ContextError
from replicax.engine.contexts import stack
from replicax.engine.storage import exclusively
from replicax.strategies import current
from replicax.variables.variable import Variable

__all__ = ["Generator"]


class Generator:
    """A source of ``jax.random`` keys.

    Create it in a strategy's scope. Its state is a variable: it advances in
    compiled steps, and can be saved and restored.

    Args:
        seed: An int.
        name: A name for the state variable.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     generator = rx.random.Generator(0)
        >>> def replica_fn():
        ...     return jax.random.uniform(generator.next_key()) * 0 + 1
        >>> strategy.reduce("SUM", strategy.run(replica_fn), axis=None)
        Array(2., dtype=float32)
    """

    def __init__(self, seed: int, *, name: str = "Generator") -> None:
        """Starts the sequence of `seed`."""
        self._seed = int(seed)
        self.state = Variable(
            jnp.zeros((), jnp.uint32),
            False,
            name=name,
            aggregation=VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def next_key(self) -> jax.Array:
        """The next key, the same on all replicas."""
        return self._advance()

    def next_replica_key(self) -> jax.Array:
        """The next key, different on every replica.

        Returns:
            A key for ``jax.random``.

        Raises:
            ContextError: In cross-replica context, where there is no replica.
        """
        context = current.get_replica_context()
        if context is None:
            raise ContextError(
                f"Generator.next_replica_key was called inside {stack.describe()}. Call it inside "
                "run, or call next_key."
            )
        return jax.random.fold_in(self._advance(), context.replica_id_in_sync_group)

    def _advance(self) -> jax.Array:
        return jax.random.fold_in(jax.random.key(self._seed), _taken(self.state))


def _taken(state: Variable) -> jax.Array:
    """The number of the next key, taken once for all replicas."""

    def take() -> jax.Array:
        with exclusively():
            number = state.read_value()
            state.assign_add(jnp.uint32(1))
        return number

    context = current.get_replica_context()
    return take() if context is None else context._together("Generator.next_key", take, ())
