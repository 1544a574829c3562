"""`Sum`: the weighted sum of the values seen."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from replicax.metrics.base import Metric
from replicax.metrics.examples import weights_of


class Sum(Metric):
    """The weighted sum of all values seen by all replicas.

    Args:
        name: A name for the metric and, in front, for its state.
        dtype: The floating dtype of the result; float32 if None.

    Example:
        >>> total = Sum()
        >>> total.update_state([1.0, 2.0], sample_weight=[1.0, 0.5])
        >>> float(total.result())
        2.0
    """

    def __init__(self, name: str | None = None, dtype: Any = None) -> None:
        super().__init__(name, dtype)
        self.total = self.add_state("total")

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Adds `values`.

        Args:
            values: An array or a number.
            sample_weight: One weight for all, for each example or for each value.
        """
        values = jnp.asarray(values).astype(self.state_dtype)
        weights = weights_of(values, sample_weight, self.name, self.state_dtype)
        self.total.assign_add(jnp.sum(values * weights))

    def result(self) -> jax.Array:
        """The sum of everything seen."""
        return self.total.value.astype(self.dtype)
