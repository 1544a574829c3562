"""`MeanSquaredError`: how far predictions are from the truth."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from replicax.metrics.average import Average
from replicax.metrics.examples import paired


class MeanSquaredError(Average):
    """The weighted mean of the squared differences between truth and prediction.

    Args:
        name: A name for the metric and, in front, for its states.
        dtype: The floating dtype of the result; float32 if None.

    Example:
        >>> error = MeanSquaredError()
        >>> error.update_state([1.0, 2.0], [1.0, 4.0])
        >>> float(error.result())
        2.0
    """

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds predictions.

        Args:
            y_true: What is right.
            y_pred: What was predicted, of the same shape.
            sample_weight: One weight for all, for each example or for each value.
        """
        truth, predictions = paired(y_true, y_pred, self.name)
        difference = predictions.astype(self.state_dtype) - truth.astype(self.state_dtype)
        self._accumulate(jnp.square(difference), sample_weight)
