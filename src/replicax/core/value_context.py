"""What a ``value_fn`` is told about the replica it makes a value for."""

from __future__ import annotations

import operator


class ValueContext:
    """One replica, seen by ``experimental_distribute_values_from_function``.

    Args:
        replica_id_in_sync_group: The index of the replica.
        num_replicas_in_sync: How many replicas there are.

    Example:
        >>> ValueContext(replica_id_in_sync_group=2, num_replicas_in_sync=4)
        ValueContext(replica_id_in_sync_group=2, num_replicas_in_sync=4)
    """

    __slots__ = ("_num_replicas_in_sync", "_replica_id_in_sync_group")

    def __init__(self, replica_id_in_sync_group: int = 0, num_replicas_in_sync: int = 1) -> None:
        """A context for replica `replica_id_in_sync_group` of `num_replicas_in_sync`.

        Raises:
            ValueError: If the id is not in [0, num_replicas_in_sync).
        """
        replica_id = operator.index(replica_id_in_sync_group)
        num_replicas = operator.index(num_replicas_in_sync)
        if not 0 <= replica_id < num_replicas:
            raise ValueError(
                f"replica_id_in_sync_group is {replica_id}; expected an int in [0, {num_replicas})."
            )
        self._replica_id_in_sync_group = replica_id
        self._num_replicas_in_sync = num_replicas

    @property
    def replica_id_in_sync_group(self) -> int:
        """The index of the replica."""
        return self._replica_id_in_sync_group

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas there are."""
        return self._num_replicas_in_sync

    def __repr__(self) -> str:
        return (
            f"ValueContext(replica_id_in_sync_group={self.replica_id_in_sync_group}, "
            f"num_replicas_in_sync={self.num_replicas_in_sync})"
        )
