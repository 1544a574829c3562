"""The storage of a variable that lives on servers: the same questions, asked there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.core.errors import LostVariableError
from replicax.engine.storage import COUNTS, Storage
from replicax.engine.trace import epoch
from replicax.parameter_server.messages import ShardSpec

if TYPE_CHECKING:
    from replicax.parameter_server.cluster import ServerCluster


class ServerStorage(Storage):
    """Shards on servers, in place of a buffer.

    Attributes:
        cluster: The servers.
        shards: The shards, in the order of their rows.
        is_copied: Whether each shard is the whole value, a copy on each server.
        places: The server of each shard, and the row it starts with.
    """

    __slots__ = ("cluster", "is_copied", "places", "shards")

    def __init__(self, cluster: ServerCluster, *described: Any, **options: Any) -> None:
        """Storage without a value; where it goes, the cluster decides with the first one."""
        super().__init__(*described, **options)
        self.cluster = cluster
        self.shards: tuple[ShardSpec, ...] = ()
        self.is_copied = False
        self.places: Sequence[tuple[int, int]] | None = None

    def live_array(self) -> jax.Array:
        """The value, as the servers have it now.

        Raises:
            LostVariableError: If there never was one.
        """
        self.begin_use()
        if self.array is None:
            raise LostVariableError(
                f"variable {self.name!r} has no value: the trace that created it failed. Create "
                "it again."
            )
        return self.cluster.value_of(self)

    def hand_out(self) -> jax.Array:
        """The value, as the servers have it now; a copy."""
        return self.live_array()

    def components(self) -> list[jax.Array]:
        """The value, alone."""
        return [self.live_array()]

    def component(self, index: int) -> jax.Array:
        """The value."""
        del index
        return self.live_array()

    def snapshot(self) -> Storage:
        """What is stored now, in this process."""
        kept = Storage(self.name, self.shape, self.dtype)
        kept.array, kept.handed_out = self.live_array(), True
        return kept

    def set(self, array: jax.Array) -> None:
        """Replaces the value on the servers."""
        self.set_value(array)

    def set_components(self, values: Iterable[Any]) -> None:
        """Replaces the value on the servers by the only one."""
        (value,) = values
        self.set_value(value)

    def set_value(self, value: Any) -> None:
        """Replaces the value on the servers; the first time, creates the shards there."""
        value = np.asarray(value)
        if self.shards:
            self.cluster.assign(self, value)
        else:
            self.cluster.create(self, value)
        COUNTS.stamp = object()
        # What stands for the value here, so that it is seen that there is one, and when it changes.
        self.array = jnp.zeros((0,))
        if self.watch is not None:
            self.watch.note_set(self.array)
        epoch.advance()

    def bring_home(self) -> None:
        """Nothing: no program takes it away."""

    def free(self) -> None:
        """Lets the servers forget the shards; called by the garbage collector, so not at once."""
        super().free()
        self.cluster.drop_later(self.shards)
