"""The documented enumerations: how to reduce, synchronise, aggregate, and divide input."""

from __future__ import annotations

import enum
from typing import Literal, TypeAlias

from replicax.core.errors import ReductionError


class ReduceOp(enum.Enum):
    """How values of different replicas become one value.

    Example:
        >>> ReduceOp.parse("mean")
        <ReduceOp.MEAN: 'MEAN'>
    """

    SUM = "SUM"
    MEAN = "MEAN"

    @classmethod
    def parse(cls, op: object) -> ReduceOp:
        """Accepts the enum, its name in any case, or a ``VariableAggregation``.

        Args:
            op: What the caller passed as reduce operation.

        Returns:
            The member.

        Raises:
            ReductionError: If `op` names neither SUM nor MEAN.
        """
        if isinstance(op, cls):
            return op
        name = op.name if isinstance(op, VariableAggregation) else op
        if isinstance(name, str) and name.upper() in cls.__members__:
            return cls[name.upper()]
        raise ReductionError(
            f"reduce_op is {op!r}; expected ReduceOp.SUM or ReduceOp.MEAN (or 'SUM', 'MEAN')."
        )


class VariableSynchronization(enum.Enum):
    """When the copies of a distributed variable are brought together.

    Example:
        >>> import replicax as rx
        >>> with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        ...     seen = rx.Variable(0, synchronization=VariableSynchronization.ON_READ,
        ...                        aggregation=VariableAggregation.SUM)
        >>> seen.synchronization.name
        'ON_READ'
    """

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3


class VariableAggregation(enum.Enum):
    """How updates (on write) or copies (on read) of a variable are combined.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     total = rx.Variable(0, aggregation=VariableAggregation.SUM)
        >>> strategy.run(lambda: total.assign_add(1)).numpy()  # both replicas add 1
        array(2, dtype=int32)
    """

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3


ReduceOpLike: TypeAlias = (
    ReduceOp | VariableAggregation | Literal["SUM", "MEAN", "sum", "mean", "Sum", "Mean"]
)
"""What `ReduceOp.parse` accepts, for type checkers; it takes the names in any case."""


class AutoShardPolicy(enum.IntEnum):
    """How a pipeline is divided among workers.

    FILE gives whole files to each worker, DATA a part of every batch. AUTO takes DATA
    for pipelines that can be indexed, FILE for streams with a file for every worker,
    and DATA for other streams, which every worker then has to read. With OFF every
    worker takes everything; HINT leaves the division to the pipeline itself.

    Example:
        >>> import replicax as rx
        >>> options = rx.data.Options()
        >>> options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA
    """

    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2
    HINT = 3


class InputReplicationMode(enum.Enum):
    """How often ``dataset_fn`` is called: once per worker, or once per replica.

    Example:
        >>> InputReplicationMode.PER_WORKER.value
        'PER_WORKER'
    """

    PER_WORKER = "PER_WORKER"
    PER_REPLICA = "PER_REPLICA"
