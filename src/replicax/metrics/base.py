"""`Metric`: what every metric has in common, and the class to derive your own from."""

from __future__ import annotations

import abc
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.core.enums import VariableAggregation, VariableSynchronization
from replicax.core.errors import MetricError
from replicax.variables.variable import Variable


class Metric(abc.ABC):
    """A figure over all examples seen since the last reset, whatever replica saw them.

    Its state is in sync-on-read variables that are summed over replicas: in a
    replica `update_state` adds to the replica's own copy and `result` gives the
    figure of this replica alone, both without communication; in cross-replica
    context `result` gives the figure of all replicas. Create it in the strategy's
    scope.

    To write your own, create states with `add_state`, add to them in
    `update_state`, and compute the figure from them in `result`. It must be a
    function of sums over examples: then it is exact for any number of replicas.

    Args:
        name: A name for the metric and, in front, for its states.
        dtype: The floating dtype of the result; float32 if None.

    Example:
        >>> import replicax as rx
        >>> class LargestShare(Metric):
        ...     def __init__(self):
        ...         super().__init__("largest_share")
        ...         self.votes = self.add_state("votes", (3,))
        ...
        ...     def update_state(self, votes):
        ...         self.votes.assign_add(jax.nn.one_hot(votes, 3).sum(axis=0))
        ...
        ...     def result(self):
        ...         votes = self.votes.value
        ...         return votes.max() / votes.sum()
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     share = LargestShare()
        >>> strategy.run(share.update_state, args=(strategy.distribute_batch([0, 2, 1, 2]),))
        >>> float(share.result())
        0.5
    """

    def __init__(self, name: str | None = None, dtype: Any = None) -> None:
        """Prepares a metric without states."""
        self._name = _snake_case(type(self).__name__) if name is None else name
        self._dtype = _checked_dtype(dtype, self._name)
        self._states: list[Variable] = []

    @property
    def name(self) -> str:
        """The name given at creation, or one made of the class's name."""
        return self._name

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the result."""
        return self._dtype

    @property
    def state_dtype(self) -> np.dtype:
        """The dtype to add up in, and that of the states: `dtype`, but 32 bits at least.

        A half float cannot count beyond 2048.
        """
        return np.dtype(jnp.promote_types(self._dtype, jnp.float32))

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The states, in order of creation."""
        return tuple(self._states)

    def add_state(self, name: str, shape: tuple[int, ...] = (), *, dtype: Any = None) -> Variable:
        """Creates a state: a sync-on-read variable that is summed over replicas.

        It starts at zero, the only value whose sum does not depend on the number
        of replicas.

        Args:
            name: A name within the metric.
            shape: The shape.
            dtype: The dtype; `state_dtype` if None.

        Returns:
            The variable.
        """
        dtype = self.state_dtype if dtype is None else jax.dtypes.canonicalize_dtype(dtype)
        state = Variable(
            np.zeros(shape, dtype),
            False,
            name=f"{self._name}/{name}",
            synchronization=VariableSynchronization.ON_READ,
            aggregation=VariableAggregation.SUM,
        )
        self._states.append(state)
        return state

    @abc.abstractmethod
    def update_state(self, *args: Any, **kwargs: Any) -> None:
        """Adds what this replica has seen to this replica's states.

        Args:
            *args: What a subclass takes: values, or labels and predictions.
            **kwargs: The same by keyword.
        """

    @abc.abstractmethod
    def result(self) -> Any:
        """The figure: of all replicas in cross-replica context, of one inside ``run``."""

    def reset_state(self) -> None:
        """Starts over; inside ``run``, this replica's part."""
        for state in self._states:
            state.assign(np.zeros(state.shape, state.dtype))

    def reset_states(self) -> None:
        """The older name of `reset_state`."""
        self.reset_state()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Updates, and gives the result."""
        self.update_state(*args, **kwargs)
        return self.result()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"


def divide_no_nan(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    """The quotient; 0 where the denominator is 0.

    Example:
        >>> divide_no_nan(jnp.array([3.0, 3.0]), jnp.array([2.0, 0.0]))
        Array([1.5, 0. ], dtype=float32)
    """
    is_zero = denominator == 0
    return jnp.where(is_zero, 0, numerator / jnp.where(is_zero, 1, denominator))


def _checked_dtype(dtype: Any, name: str) -> np.dtype:
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(jnp.float32 if dtype is None else dtype))
    if not jnp.issubdtype(dtype, jnp.floating):
        raise MetricError(
            f"metric {name!r} got dtype {dtype}; it holds sums and quotients. Use a floating dtype."
        )
    return dtype


def _snake_case(name: str) -> str:
    """``MeanSquaredError`` as ``mean_squared_error``, ``AUC`` as ``auc``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
