"""`Mean`: the weighted mean of the values seen."""

from __future__ import annotations

from typing import Any

from replicax.metrics.average import Average


class Mean(Average):
    """The weighted mean of all values seen by all replicas; 0 if there were none.

    Args:
        name: A name for the metric and, in front, for its states.
        dtype: The floating dtype of the result; float32 if None.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     mean = Mean()
        >>> strategy.run(mean.update_state, args=(strategy.distribute_batch([1.0, 2.0, 6.0]),))
        >>> float(mean.result())
        3.0
    """

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Adds `values`.

        Args:
            values: An array or a number.
            sample_weight: One weight for all, for each example or for each value.
        """
        self._accumulate(values, sample_weight)
