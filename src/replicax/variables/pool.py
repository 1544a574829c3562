"""Keeps many small variables of a step in one buffer.

A program over hundreds of small variables spends most of its time on handing their buffers to the
devices and taking them back. While a step is repeated nobody else needs them one by one, so they
can be parts of one buffer: a `Pool`. A launch of the program fills it; who reads one variable gets
a copy of its part; who needs its array, to replace it or as an input of another program, dissolves
the pool. The value of a variable is always in one place: a storage whose class is `PooledStorage`
has its pool where the array would be.

`functions.program` decides with `arrange` what is pooled, and puts the parts together and takes
them apart inside the program.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from replicax.backend import compat, placement
from replicax.backend.mesh import ReplicaMesh
from replicax.backend.runahead import RUN_AHEAD
from replicax.variables.storage import COUNTS, Storage, array_slot, has_failed

MAX_SIZE = 1024
"""Elements of a variable that is worth it: a larger one costs more to copy than to hand over."""

MAX_AVERAGE = 4096
"""Elements of all variables of a program, over their number: beside larger ones the time that it
takes to hand them over is small, and a program with pools takes longer to compile."""

MIN_MEMBERS = 32
MAX_MEMBERS = 64
"""Of one pool. The compiler takes longer for each part the more there are."""

MIN_LAUNCHES = 32
MAX_SHORT_LIVES = 4
"""A pool that is dissolved so often after fewer launches costs more than it saves."""

MAX_READS = 8
"""Variables that are copied between two launches; who reads more needs all of them."""


class Pool(Storage):
    """One buffer with the values of many variables, and a variable of programs itself.

    Attributes:
        members: The storages of the variables, in the order of their parts.
        num_launches: How many programs have replaced the buffer.
    """

    __slots__ = (
        "_filled_at",
        "_formers",
        "_num_reads",
        "_num_short_lives",
        "_read_at",
        "_starts",
        "members",
        "num_launches",
    )

    def __init__(self, members: Sequence[Storage]) -> None:
        """An empty pool for `members`, which are mirrored alike and have one dtype."""
        ends = np.cumsum([math.prod(member.shape) for member in members]).tolist()
        first = members[0]
        mesh = first.mesh
        assert mesh is not None
        name = f"{first.name} and {len(members) - 1} more"
        super().__init__(name, (ends[-1],), first.dtype, mesh=mesh)
        self.members = tuple(members)
        self._starts = dict(zip(members, [0, *ends[:-1]], strict=True))
        self._formers: list[tuple[weakref.ref[Storage], int]] = []  # see `keep_for`
        self.num_launches = 0
        self._filled_at = -MIN_LAUNCHES
        self._num_short_lives = 0
        self._read_at = -1
        self._num_reads = 0

    # -- layout ------------------------------------------------------------------------------

    def joined(self, values: Sequence[Any]) -> jax.Array:
        """The buffer for these values of the members, in a trace."""
        return jnp.concatenate([jnp.ravel(value) for value in values])

    def parts(self, buffer: Any) -> list[jax.Array]:
        """The values of the members in `buffer`, in a trace."""
        sizes = [math.prod(member.shape) for member in self.members]
        flat = lax.split(buffer, sizes)
        return [part.reshape(m.shape) for part, m in zip(flat, self.members, strict=True)]

    # -- filling and dissolving --------------------------------------------------------------

    @property
    def is_whole(self) -> bool:
        """Whether it has the values of all members."""
        return self.array is not None and all(map(self._has, self.members))

    @property
    def is_restless(self) -> bool:
        """Whether others want its variables so often that it should be given up."""
        return self._num_short_lives >= MAX_SHORT_LIVES

    def fill(self) -> None:
        """Takes the values of all members; to be called with the lock of launches held.

        Raises:
            LostVariableError: If a member has none.
        """
        if self.is_whole:
            return
        lived = self.num_launches - self._filled_at
        self._num_short_lives = 0 if lived >= MIN_LAUNCHES else self._num_short_lives + 1
        self._filled_at = self.num_launches
        # On the host: a program for it would take the compiler longer than all fillings together.
        # To look at the arrays dissolves what is left of the pool.
        values = [_on_host(member.live_array()).ravel() for member in self.members]
        with compat.concretely():
            self.array = buffer = placement.replicate(np.concatenate(values), self._mesh)
        COUNTS.stamp = object()
        for member in self.members:
            if not member.has_value:  # the variable has gone meanwhile
                continue
            # In this order: Ctrl-C may leave a member with the class and its old array.
            member.__class__ = PooledStorage
            array_slot.__set__(member, self)
            member.handed_out = False
        self.array = buffer  # again: the first one may have gone, and seen that it was the last

    def dissolve(self) -> None:
        """Gives the members arrays of their own."""
        with RUN_AHEAD.lock:
            buffer = self.array
            if buffer is None:
                return
            if buffer.is_deleted() or has_failed(buffer):
                self._lose()
                return
            try:
                host = _on_host(buffer)
            except Exception:
                if has_failed(buffer):
                    self._lose()
                raise
            COUNTS.stamp = object()
            while holders := self._holders():  # a variable that goes now may leave a snapshot
                values = [
                    host[start : start + math.prod(holder.shape)].reshape(holder.shape)
                    for holder, start in holders
                ]
                with compat.concretely():
                    arrays = placement.replicate_all(values, self._mesh)
                for (holder, _), array in zip(holders, arrays, strict=True):
                    if self._has(holder):
                        _leave(holder, array)
            self._empty()

    def note_loss(self) -> None:
        """Called after a failed execution: remembers if it took the buffer."""
        if self.array is not None and self.array.is_deleted():
            self._lose()

    def is_alive(self) -> bool:
        """Whether all members still exist.

        Raises:
            LostVariableError: If one was lost in a failed execution.
        """
        with RUN_AHEAD.lock:
            buffer = self.array
            if buffer is not None and (buffer.is_deleted() or has_failed(buffer)):
                self._lose()
            return all(self._has(member) or member.is_alive() for member in self.members)

    def live_array(self) -> jax.Array:
        """The buffer, filled."""
        with RUN_AHEAD.lock:
            self.fill()
            return super().live_array()

    def _lose(self) -> None:
        COUNTS.stamp = object()
        while holders := self._holders():
            for holder, _ in holders:
                holder.lost = True
                _leave(holder, None)
        self._empty()
        COUNTS.freed += 1  # makes programs look before they use them

    def _empty(self) -> None:
        self.array = None
        self._formers.clear()

    # -- single members ----------------------------------------------------------------------

    def copy_of(self, member: Storage, index: int) -> jax.Array | None:
        """The value of a member on one replica of this worker, as `Storage.component` gives it.

        Returns:
            None if the member is better asked for its array.
        """
        with RUN_AHEAD.lock:  # a launch must not take the buffer before it has been asked
            buffer = self.array
            if self._read_at != self.num_launches:
                self._read_at, self._num_reads = self.num_launches, 0
            self._num_reads += 1
            start = self._starts.get(member)
            if start is None or not self._has(member) or self._num_reads > MAX_READS:
                return None
            if buffer is None or buffer.is_deleted() or has_failed(buffer):
                return None
            here = placement.parts_of(buffer, self.mesh)[index]
            with compat.concretely():
                value = _copied(here, np.int32(start), member.shape)
            return compat.uncommitted(value)

    def keep_for(self, kept: Storage, member: Storage) -> None:
        """Lets `kept` have the part of a member that goes; computes nothing."""
        self._formers.append((weakref.ref(kept), self._starts[member]))
        kept.__class__ = PooledStorage
        array_slot.__set__(kept, self)

    def note_leaving(self) -> None:
        """Called when a member has left: the buffer goes with the last of them."""
        if not self._holders():
            self._empty()

    def _has(self, member: Storage) -> bool:
        return array_slot.__get__(member) is self

    def _holders(self) -> list[tuple[Storage, int]]:
        """Those whose values are here, and where; finalizers may add some at any time."""
        formers = [(former(), start) for former, start in list(self._formers)]
        known = (*self._starts.items(), *formers)
        return [(key, start) for key, start in known if key is not None and self._has(key)]

    @property
    def _mesh(self) -> ReplicaMesh:
        assert self.mesh is not None
        return self.mesh


class PooledStorage(Storage):
    """The storage of a variable whose value is a part of a pool."""

    __slots__ = ()

    @property
    def array(self) -> Any:
        """An array of its own, for which the pool is dissolved."""
        with RUN_AHEAD.lock:  # no other thread may fill the pool again before it is read
            pool = array_slot.__get__(self)
            if isinstance(pool, Pool):
                pool.dissolve()
            else:  # Ctrl-C came while it was put into the pool
                _leave(self, pool)
            return self.array

    @array.setter
    def array(self, array: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        pool = array_slot.__get__(self)
        COUNTS.stamp = object()
        _leave(self, array)
        if isinstance(pool, Pool):
            pool.note_leaving()

    def component(self, index: int) -> jax.Array:
        """The uncommitted array of one copy of this worker; the caller may keep it."""
        pool = array_slot.__get__(self)
        copy = pool.copy_of(self, index) if isinstance(pool, Pool) else None
        # Not `super()`: another thread may have changed the class meanwhile.
        return Storage.component(self, index) if copy is None else copy

    def snapshot(self) -> Storage:
        """What is stored now; called by finalizers, where nothing may be computed."""
        pool = array_slot.__get__(self)
        if not isinstance(pool, Pool):
            return Storage.snapshot(self)
        kept = self.without_value()
        kept.handed_out = True
        pool.keep_for(kept, self)
        return kept


def _on_host(array: jax.Array) -> np.ndarray:
    """The value that all copies of `array` have, in place if that is memory of the host."""
    return np.asarray(compat.shards(array)[0])


def _leave(member: Storage, array: Any) -> None:
    """Gives a member an array; in this order, see `PooledStorage.array`."""
    array_slot.__set__(member, array)
    member.__class__ = Storage


@functools.partial(jax.jit, static_argnums=2)
def _copied(buffer: Any, start: Any, shape: tuple[int, ...]) -> jax.Array:
    """A part of a buffer; one program for all parts of a shape."""
    return lax.dynamic_slice(buffer, (start,), (math.prod(shape),)).reshape(shape)


# -- what a program takes and gives ------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Arrangement:
    """How the variables that a program writes are inputs and outputs of it.

    Attributes:
        variables: Their storages.
        pools: The pools of some of them.
    """

    variables: Sequence[Storage]
    pools: Sequence[Pool] = ()

    @property
    def singles(self) -> list[Storage]:
        """The variables that are in no pool."""
        pooled = {member for pool in self.pools for member in pool.members}
        return [key for key in self.variables if key not in pooled]

    @property
    def keys(self) -> list[Storage]:
        """What the program takes and gives: the pools, and the other variables."""
        return [*self.pools, *self.singles]

    def taken_apart(self, arrays: Sequence[Any]) -> list[Any]:
        """The values of the variables, from those of the keys."""
        values: dict[Storage, Any] = {}
        for pool, buffer in zip(self.pools, arrays, strict=False):
            values.update(zip(pool.members, pool.parts(buffer), strict=True))
        values.update(zip(self.singles, arrays[len(self.pools) :], strict=True))
        return [values[key] for key in self.variables]

    def put_together(self, values: Sequence[Any]) -> list[Any]:
        """The values of the keys, from those of the variables."""
        value_of = dict(zip(self.variables, values, strict=True))
        buffers = [pool.joined([value_of[m] for m in pool.members]) for pool in self.pools]
        return [*buffers, *(value_of[key] for key in self.singles)]


_pools: weakref.WeakValueDictionary[tuple[int, ...], Pool] = weakref.WeakValueDictionary()


def arrange(variables: Sequence[Storage]) -> Arrangement:
    """Puts those of the variables that are small and alike, and many, into pools."""
    if sum(math.prod(key.shape) for key in variables) > MAX_AVERAGE * len(variables):
        return Arrangement(variables)
    alike: dict[Any, list[Storage]] = {}
    for key in variables:
        if is_poolable(key):
            alike.setdefault((key.mesh, np.dtype(key.dtype)), []).append(key)
    pools = [
        _pool_of(members)
        for group in alike.values()
        if len(group) >= MIN_MEMBERS
        for members in _divided(group)
    ]
    return Arrangement(variables, pools)


def is_poolable(key: Storage) -> bool:
    """Whether a variable may be in a pool: mirrored, whole, small and of this process alone."""
    if key.mesh is None or key.mesh.spans_workers or key.per_replica or key.spec is not None:
        return False
    if jnp.issubdtype(key.dtype, jax.dtypes.extended):
        return False
    return 0 < math.prod(key.shape) <= MAX_SIZE


def _divided(group: list[Storage]) -> Iterator[list[Storage]]:
    """Equal shares of a group for as few pools as there may be."""
    num_pools = math.ceil(len(group) / MAX_MEMBERS)
    for i in range(num_pools):
        yield group[i * len(group) // num_pools : (i + 1) * len(group) // num_pools]


def _pool_of(members: Sequence[Storage]) -> Pool:
    """The pool of these variables: programs that write the same ones share it."""
    key = tuple(map(id, members))
    pool = _pools.get(key)
    if pool is None:
        pool = _pools[key] = Pool(members)
    return pool
