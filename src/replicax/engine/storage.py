"""The buffers of one variable, owned by nobody else.

`array` is one JAX array: replicated over the mesh (mirrored), with a leading
replica dim (one value per replica, or one part of a split value), or on one device
(undistributed); whole copies may be cut over the logical devices of each replica. A compiled
step takes it by donation and puts the new one back. `handed_out` says that
somebody else can see the buffer, so that the next step must donate a copy of it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from typing import Any, Protocol

import jax
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from replicax.backend import partition, placement
from replicax.backend.mesh import ReplicaMesh
from replicax.backend.runahead import RUN_AHEAD
from replicax.backend.shards import ShardLayout
from replicax.core.errors import LostVariableError, VariableError
from replicax.core.typing import Device
from replicax.engine.analysis.uniform import uniform
from replicax.engine.trace import epoch
from replicax.engine.trace.frame import Frame, current_frame
from replicax.jax_internals.arrays import is_deleted, uncommitted
from replicax.jax_internals.traces import concretely
from replicax.values.distributed import PerReplica
from replicax.values.reduce import gather_leaf


class Storage:
    """Implements `engine.trace.frame.StateKey` for a variable.

    Attributes:
        name: The variable's name, for errors.
        shape: The shape of the variable, without the replica dim.
        dtype: Its dtype.
        mesh: The devices that hold it; None if there is a single copy.
        home: The device of a single copy; None if it may be anywhere.
        per_replica: Whether every replica has a value, or a part, of its own.
        spec: How a copy is cut over the logical devices of its replica; None if it is whole on
            each of them.
        layout: How a value that is split over the replicas is divided; else None.
        array: The buffers; None until there is an initial value.
        handed_out: Whether somebody outside holds the buffer.
        lost: Whether a failed execution took the buffer.
        watch: Who wants to know of the first use; None for most variables.
    """

    __slots__ = (
        "__weakref__",
        "_life",
        "array",
        "dtype",
        "handed_out",
        "home",
        "layout",
        "lost",
        "mesh",
        "name",
        "per_replica",
        "shape",
        "spec",
        "watch",
    )

    array: jax.Array | None

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: Any,
        *,
        mesh: ReplicaMesh | None = None,
        home: Device | None = None,
        per_replica: bool = False,
        spec: PartitionSpec | None = None,
        layout: ShardLayout | None = None,
    ) -> None:
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.mesh = mesh
        self.home = home
        self.per_replica = per_replica or layout is not None
        self.spec = spec
        self.layout = layout
        self.array = None
        self.handed_out = False
        self.lost = False
        self.watch: Watch | None = None
        self._life: object = None

    @property
    def life(self) -> object:
        """Goes when the variable does, which programs keep the storage of."""
        if self._life is None:
            self._life = _Life()
        return self._life

    def snapshot(self) -> Storage:
        """What is stored now, for somebody who reads it after the variable is gone."""
        kept = Storage(
            self.name,
            self.shape,
            self.dtype,
            mesh=self.mesh,
            home=self.home,
            per_replica=self.per_replica,
            spec=self.spec,
            layout=self.layout,
        )
        kept.array, kept.handed_out, kept.lost = self.array, True, self.lost
        return kept

    @property
    def has_value(self) -> bool:
        """Whether something is stored; looking is no use of it."""
        return self.array is not None

    def begin_use(self) -> None:
        """To be called before `array` is read for the first time."""
        if self.watch is not None:
            self.watch.before_use(self)

    def is_alive(self) -> bool:
        """Whether the variable still exists.

        Raises:
            LostVariableError: If it was lost in a failed execution.
        """
        if not self.has_value and not self.lost:
            return False
        self.live_array()  # raises if it was lost, and names the variable
        return True

    @property
    def has_equal_copies(self) -> bool:
        """Whether all replicas must be given the same value."""
        return self.layout is not None or not self.per_replica

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of what one replica has."""
        return self.shape if self.layout is None else (self.layout.part_size,)

    @property
    def global_shape(self) -> tuple[int, ...]:
        """The shape of `array`."""
        if self.per_replica and self.mesh is not None:
            return (self.mesh.num_replicas, *self.local_shape)
        return self.shape

    @property
    def sharding(self) -> jax.sharding.Sharding | None:
        """The layout that `array` must keep."""
        if self.mesh is None:
            return None
        if self.spec is not None:
            return partition.sharding_of(self.spec, self.mesh, per_replica=self.per_replica)
        return self.mesh.per_replica if self.per_replica else self.mesh.replicated

    def laid_out(self, value: Any) -> Any:
        """`value`, read in a trace, in the pieces that the variable is cut into.

        Its gradient gets the same layout.
        """
        frame = None if self.spec is None else current_frame()
        if frame is None:
            return value
        return lax.with_sharding_constraint(value, self.spec if frame.in_replica else self.sharding)

    def require_width(self, use: str) -> None:
        """Raises where JAX would narrow the value, in a computation or when it is replaced.

        Args:
            use: What is to be done with the variable.

        Raises:
            VariableError: If it has 64 bits, and 64-bit types are off.
        """
        if placement.is_too_wide(self.dtype):
            raise VariableError(
                f"{use} of variable {self.name!r}, which has dtype {self.dtype}, while 64-bit "
                f"types are off: JAX would cut it to 32 bits. {placement.TURN_ON_X64}, or create "
                "the variable with a dtype of 32 bits."
            )

    def live_array(self) -> jax.Array:
        """`array`, checked.

        Raises:
            LostVariableError: If a failed execution took the buffer, or there never was one.
        """
        self.begin_use()
        array = self.array
        if array is None and not self.lost:
            raise LostVariableError(
                f"variable {self.name!r} has no value: the trace that created it failed. Create "
                "it again."
            )
        if array is not None and self.handed_out:
            self.refuse_deleted()
        if array is None or array.is_deleted() or has_failed(array):
            raise LostVariableError(
                f"variable {self.name!r} was donated to an execution that failed on the device, "
                "and its value is lost. Restore it with assign or from a checkpoint; "
                "replicax.function(donate=False) keeps values through failures."
            )
        return array

    def refuse_deleted(self) -> None:
        """Raises if somebody who was given the buffers has deleted one of them.

        Raises:
            LostVariableError: In that case.
        """
        array = self.array
        if array is not None and is_deleted(array):
            raise LostVariableError(
                f"variable {self.name!r} cannot be used: the buffer of one of its copies is gone. "
                "Array has been deleted, or donated to a jitted function. Give away a copy, such "
                "as jnp.copy(v.value), and restore the variable with assign or from a checkpoint."
            )

    def hand_out(self) -> jax.Array:
        """`array`, to be given to somebody who may keep it."""
        with RUN_AHEAD.lock:  # not between a step's look at `handed_out` and its donation
            array = self.live_array()
            self.handed_out = True
            COUNTS.stamp = object()
        return array

    def components(self) -> list[jax.Array]:
        """One uncommitted array per copy of this worker; the caller may keep them."""
        if self.mesh is not None and not (self.spec is None and self.layout is None):
            return [self.component(index) for index in range(len(self.mesh.local_replicas))]
        parts = placement.parts_of(self.hand_out(), self.mesh)
        if self.per_replica:
            return [uncommitted(part).reshape(self.shape) for part in parts]
        return [uncommitted(part) for part in parts]

    def component(self, index: int) -> jax.Array:
        """The uncommitted array of one copy of this worker; the caller may keep it.

        Of a value in pieces or parts it is the whole, put together on the device of that replica.
        Where other workers have some of the parts, all workers must ask.
        """
        if self.spec is not None and self.mesh is not None:
            with RUN_AHEAD.lock:  # a step must not take the pieces while they are copied
                return partition.gathered(self.live_array(), index, self.shape, self.mesh)
        if self.layout is not None:
            return self._joined(self.layout, index)
        part = uncommitted(placement.parts_of(self.hand_out(), self.mesh)[index])
        return part.reshape(self.shape) if self.per_replica else part

    def _joined(self, layout: ShardLayout, index: int) -> jax.Array:
        mesh = self.mesh
        assert mesh is not None
        device = mesh.local_devices[index]
        # No step may donate the parts before they have been asked for.
        with RUN_AHEAD.lock, concretely():
            if mesh.spans_workers:
                shapes = [(1, *self.local_shape)] * mesh.num_replicas
                parts = PerReplica(mesh, packed=self.live_array(), shapes=shapes)
                rows = jax.device_put(gather_leaf(parts, 0, mesh), device)
            else:
                parts = placement.parts_of(self.live_array(), mesh)
                rows = jax.numpy.concatenate([jax.device_put(part, device) for part in parts])
            return uncommitted(layout.joined(rows))

    def set(self, array: jax.Array) -> None:
        """Replaces the buffers by ones that nobody else holds."""
        with exclusively():  # not while a launch computes its next value from the one it has now
            # First, for a host callback: launches take the array, then look here.
            COUNTS.stamp = object()
            self.array = array
            self.handed_out = False
            self.lost = False
            if self.watch is not None:
                self.watch.note_set(array)
            epoch.advance()

    def note_loss(self) -> None:
        """Called after a failed execution: remembers if it took the buffer."""
        if self.array is not None and self.array.is_deleted():
            COUNTS.stamp = object()
            self.array = None
            self.lost = True
            COUNTS.freed += 1  # makes programs look before they use it

    def free(self) -> None:
        """Lets the buffers go: the variable is gone."""
        COUNTS.stamp = object()
        self.array = None
        COUNTS.freed += 1
        self._life = None

    def bring_home(self) -> None:
        """Moves a single copy that a program left on its own devices back to where it belongs."""
        array = placement.one_device(self.live_array())
        if self.home is not None and array.devices() != {self.home}:
            array = uncommitted(jax.device_put(array, self.home))
        COUNTS.stamp = object()
        self.array = array

    def set_value(self, value: Any) -> None:
        """Gives every copy this value; the value is copied."""
        if self.home is not None:
            self.set(uncommitted(placement.own_copy(value, self.home)))
        elif self.mesh is None:
            self.set(_own_undistributed(value))
        elif self.per_replica or self.spec is not None:
            self.set_components([value] * len(self.mesh.local_replicas))
        else:
            self.set(placement.replicate(value, self.mesh))

    def set_components(self, values: Iterable[Any]) -> None:
        """Gives each copy of this worker its own value; the values are copied.

        The copies of a value that is split are all of it, and equal.
        """
        if self.layout is not None and self.mesh is not None:
            local = self.mesh.local_replicas
            rows = np.asarray(self.layout.split(jax.numpy.asarray(next(iter(values)))))
            values = rows[local.start : local.stop]
        if self.mesh is None:
            (value,) = values
            self.set_value(value)
            return
        if self.spec is not None:
            sharding = partition.sharding_of(self.spec, self.mesh, per_replica=self.per_replica)
            shape = self.global_shape
            self.set(partition.in_pieces(list(values), shape, self.mesh, sharding))
            return
        copies = [
            placement.own_copy(value, device)
            for value, device in zip(values, self.mesh.local_devices, strict=True)
        ]
        if self.per_replica:
            copies = [copy.reshape((1, *self.local_shape)) for copy in copies]
        layout = self.mesh.per_replica if self.per_replica else self.mesh.replicated
        self.set(placement.joined(copies, self.global_shape, self.mesh, layout))


def own_part(layout: ShardLayout, whole: Any, what: str) -> jax.Array:
    """The replica's part of a whole value, in a compiled replica function.

    Args:
        layout: How it is split.
        whole: The value, which all replicas must have.
        what: What it is, for the error if they have not.
    """
    return layout.own_part(uniform(jax.numpy.asarray(whole), what))


def stored(storage: Storage, whole: Any, frame: Frame) -> jax.Array:
    """What `frame` keeps of a whole value of a variable that is split."""
    layout = storage.layout
    assert layout is not None
    if not frame.in_replica:
        return layout.split(jax.numpy.asarray(whole))
    return own_part(layout, whole, f"the value assigned to variable {storage.name!r}")


class Watch(Protocol):
    """Who wants to know of the first use of a new variable; see `checkpoint.awaiting`."""

    def before_use(self, storage: Storage) -> None:
        """Called before each use of the value; may assign another one."""
        ...

    def note_set(self, array: jax.Array) -> None:
        """Called after the value was set, the first one included."""
        ...


class _Life:
    """Can be held weakly, which a plain object cannot."""

    __slots__ = ("__weakref__",)


def exclusively() -> contextlib.AbstractContextManager[Any]:
    """Lets no other thread launch a program or assign a variable in here.

    For code that computes the next value of a variable from its current one. In a trace there
    is nothing that another thread could change. A host callback does not wait: who launches may
    be waiting for the program that called it.
    """
    is_called_back = isinstance(threading.current_thread(), _ForeignThread)
    if is_called_back or current_frame() is not None:
        return contextlib.nullcontext()
    return RUN_AHEAD.lock


_ForeignThread: type = threading._DummyThread  # what Python takes a thread for that XLA started


def has_failed(array: jax.Array) -> bool:
    """Whether the program that computes `array` is known to have failed; never waits for it."""
    is_ready = getattr(array, "is_ready", None)  # random keys do not tell
    if is_ready is not None and is_ready():
        try:
            array.block_until_ready()
        except Exception:  # of any kind: it is the error of the program
            return True
    return False


class _Counts:
    """What has happened to any storage so far, so that a program looks at its own only then.

    Attributes:
        freed: How many variables have gone, or lost their values.
        stamp: Another object whenever a buffer was given to somebody outside, or replaced by
            anything but a program that leaves types and layouts of variables as they are. No
            number, which two threads could raise to the same.
    """

    __slots__ = ("freed", "stamp")

    def __init__(self) -> None:
        self.freed = 0
        self.stamp = object()


COUNTS = _Counts()


def _own_undistributed(value: Any) -> jax.Array:
    if isinstance(value, jax.Array):
        return jax.numpy.array(value, dtype=value.dtype, copy=True)
    return jax.numpy.asarray(np.array(value, copy=True))


_array_slot: Any = Storage.array

set_array = _array_slot.__set__
"""``set_array(storage, array)``; gives None, and is no Python code that Ctrl-C could split."""
