"""The part of all metrics that are a weighted mean of something computed for each example."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from replicax.metrics.base import Metric, divide_no_nan
from replicax.metrics.examples import weights_of


class Average(Metric):
    """A weighted mean; subclasses say of what, in `update_state`."""

    def __init__(self, name: str | None = None, dtype: Any = None) -> None:
        super().__init__(name, dtype)
        self.total = self.add_state("total")
        self.count = self.add_state("count")

    def _accumulate(self, values: Any, sample_weight: Any) -> None:
        """Adds values with their weights."""
        values = jnp.asarray(values).astype(self.state_dtype)
        weights = weights_of(values, sample_weight, self.name, self.state_dtype)
        self.total.assign_add(jnp.sum(values * weights))
        self.count.assign_add(jnp.sum(weights))

    def result(self) -> jax.Array:
        """The mean of everything seen; 0 if that is nothing."""
        return divide_no_nan(self.total.value, self.count.value).astype(self.dtype)
