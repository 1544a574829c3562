"""Which kind of variable a strategy creates."""

from __future__ import annotations

from typing import Any

from jax.sharding import PartitionSpec

from replicax.engine.protocols import StrategyLike
from replicax.engine.storage import Storage
from replicax.variables.central import CentralVariable
from replicax.variables.construction import build
from replicax.variables.mirrored import MirroredVariable
from replicax.variables.sharded import ShardedVariable
from replicax.variables.sync_on_read import SyncOnReadVariable
from replicax.variables.variable import Variable


def build_variable(**options: Any) -> Variable:
    """A variable of the kind that `options`, those of `construction.build`, ask for."""
    return build(_kind_of, **options)


def _kind_of(storage: Storage) -> type[Variable]:
    if storage.layout is not None:
        return ShardedVariable
    if storage.mesh is not None:
        return SyncOnReadVariable if storage.per_replica else MirroredVariable
    return Variable if storage.home is None else CentralVariable


def layout_like(
    primary: Variable | None, shape: tuple[int, ...], strategy: StrategyLike
) -> dict[str, Any]:
    """The argument of ``Variable(...)`` for state of an optimizer, which no rule is for.

    Of the shape of `primary` it is cut as `primary` is, and stays whole otherwise.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(logical_devices=4)
        >>> with strategy.scope():
        ...     w = rx.Variable([[1.0, 2.0, 3.0, 4.0]], partition_dimensions=[1, 4])
        ...     momentum = rx.Variable([[0.0] * 4], **layout_like(w, (1, 4), strategy))
        >>> momentum.partition_dimensions
        (1, 4)
    """
    if strategy.extended.mesh.num_logical_devices == 1:
        return {}
    spec = primary._storage.spec if primary is not None and primary.shape == shape else None
    return {"partition_dimensions": PartitionSpec() if spec is None else spec}
