"""`Sharding`: what of the training state is split over the replicas, and which variables.

The three stages are those of ZeRO. Nothing here knows how a variable is split; strategies ask
which ones are.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

PartitionFn = Callable[..., Sequence[int]]


@dataclasses.dataclass(frozen=True, slots=True)
class Sharding:
    """Splits training state over the replicas instead of keeping it whole on each.

    - Stage 1 splits the slots of optimizers.
    - Stage 2 also splits the reduced gradients.
    - Stage 3 also splits the trainable variables, which are gathered where they are read.

    A variable is split over all replicas, evenly, or not at all. The same program runs on
    every stage and computes the same.

    Args:
        stage: 1, 2 or 3.
        partitioner: Which variables: those that it cuts into more than one partition. A callable
            of a shape and a dtype, such as those of ``experimental.partitioners``; if None, all
            that have at least one element for each replica.

    Raises:
        ValueError: For another stage.
        TypeError: If `partitioner` cannot be called.

    Example:
        >>> import replicax as rx
        >>> zero = rx.experimental.Sharding(stage=3)
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"], sharding=zero)
        >>> with strategy.scope():
        ...     w = rx.Variable([1.0, 2.0, 3.0], name="w")
        >>> rx.visualize_value(w)
        ShardedVariable 'w' float32[3], elements in order
          [0:2] on CPU:0
          [2:3] on CPU:1
        >>> (w * 2).sum()
        Array(12., dtype=float32)
    """

    stage: int = 3
    partitioner: PartitionFn | None = None

    def __post_init__(self) -> None:
        """Checks the arguments."""
        if isinstance(self.stage, bool) or self.stage not in (1, 2, 3):
            raise ValueError(
                f"stage is {self.stage!r}; expected 1 (slots of optimizers are split), 2 (also "
                "reduced gradients) or 3 (also trainable variables)."
            )
        if self.partitioner is not None and not callable(self.partitioner):
            raise TypeError(
                f"partitioner is {self.partitioner!r}; expected a callable of a shape and a dtype, "
                "such as experimental.partitioners.MinSizePartitioner(1024, max_shards=8)."
            )

    def _describe(self) -> str:
        """What is split, in words."""
        held = ("slots", "gradients", "parameters")[: self.stage]
        return held[0] if len(held) == 1 else f"{', '.join(held[:-1])} and {held[-1]}"

    def _splits(self, shape: tuple[int, ...], dtype: Any, num_replicas: int) -> bool:
        """Whether a parameter of this type is one of those to split.

        Raises:
            ValueError: If the partitioner gave no list of numbers, one for each dim.
        """
        if num_replicas == 1 or not math.prod(shape):
            return False
        if self.partitioner is None:
            return math.prod(shape) >= num_replicas
        partitions = self.partitioner(shape, dtype)
        is_list = isinstance(partitions, (list, tuple)) and len(partitions) == len(shape)
        if not is_list or not all(isinstance(n, int) and n >= 1 for n in partitions):
            raise ValueError(
                f"the partitioner {self.partitioner!r} gave {partitions!r} for shape {shape} and "
                f"dtype {dtype}; expected a list of {len(shape)} ints of 1 or more: the number of "
                "partitions along each dim."
            )
        return math.prod(partitions) > 1
