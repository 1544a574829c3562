"""Distributed values: one value per replica, in one object.

`PerReplica` values may differ between replicas, `Mirrored` ones are known to be
equal. Both hold either one array laid out over the replicas' devices, or the
components as they were given; each form is made from the other when needed.
Nothing here knows of variables, contexts or strategies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from replicax.backend import collectives, devices, placement, workers
from replicax.backend.mesh import ReplicaMesh
from replicax.core.errors import (
    DeletedValueError,
    DistributedValueError,
    PerReplicaUseError,
    TraceError,
)
from replicax.core.nest import NestLeaf
from replicax.core.shown import as_html
from replicax.jax_internals import operands
from replicax.jax_internals.arrays import is_deleted, uncommitted, uncommitted_scalar
from replicax.jax_internals.traces import concretely
from replicax.values.operators import ArrayOperators, RefusedOperators

Shape = tuple[int, ...]
C = TypeVar("C", bound=type)


class DistributedValues(NestLeaf):
    """Base of everything that holds one value for each replica.

    Instances come from ``Strategy.run``, from a distributed dataset, from
    ``Strategy.experimental_distribute_values_from_function`` and from creating
    a variable in a strategy's scope; this class itself is never instantiated.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> value = strategy.experimental_distribute_values_from_function(
        ...     lambda ctx: ctx.replica_id_in_sync_group)
        >>> isinstance(value, rx.DistributedValues)
        True
        >>> strategy.experimental_local_results(value)
        (0, 1)
    """

    __slots__ = ()

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Refuses direct instantiation of the base class."""
        if cls is DistributedValues:
            raise TypeError(
                "DistributedValues cannot be instantiated. To make one value per replica, call "
                "strategy.experimental_distribute_values_from_function(value_fn)."
            )
        return super().__new__(cls)

    def _select(self, replica_id: int) -> Any:
        """The value of one replica."""
        raise NotImplementedError

    def _as_components(self) -> DistributedValues:
        """What to reduce or gather across replicas: itself, unless it stands for its aggregate."""
        return self


class ComponentView(NestLeaf):
    """One replica's part of a container, which it remembers without keeping it alive."""

    __slots__ = ()

    @property
    def _owner(self) -> DistributedValues | None:
        """The container this is a part of, or None when that is gone."""
        raise NotImplementedError


class PerReplica(RefusedOperators, DistributedValues):
    """One value per replica, usually different.

    Cannot be used as an array: pass it to ``run``, ``reduce``, ``gather`` or
    ``experimental_local_results``.

    Attributes:
        mesh: The devices of the replicas.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> strategy.distribute_batch([1.0, 2.0, 3.0])
        PerReplica:{
          0: Array([1., 2.], dtype=float32),
          1: Array([3.], dtype=float32)
        }
    """

    __slots__ = (
        "__weakref__",
        "_components",
        "_dtype",
        "_packed",
        "_shapes",
        "_type_key",
        "mesh",
    )

    mesh: ReplicaMesh

    def __init__(
        self,
        mesh: ReplicaMesh,
        *,
        components: Sequence[Any] | None = None,
        packed: jax.Array | None = None,
        shapes: Sequence[Shape] | None = None,
        dtype: Any = None,
    ) -> None:
        """Holds `components`, or `packed`: one array, concatenated on dim 0, scalars stacked.

        Args:
            mesh: The devices of the replicas.
            components: One value for each replica of this worker.
            packed: One array, divided among the replicas on dim 0. Where the
                true shapes differ it is padded to the largest.
            shapes: The true shape of each component, of all workers; needed with `packed`.
            dtype: Of `components`, where it is known without asking other workers.
        """
        self.mesh = mesh
        self._components = None if components is None else tuple(components)
        self._packed = packed
        self._shapes = None if shapes is None else tuple(map(tuple, shapes))
        self._dtype = dtype
        self._type_key: Any = None

    @classmethod
    def _maker(
        cls, mesh: ReplicaMesh, shapes: Sequence[Shape]
    ) -> Callable[[jax.Array], PerReplica]:
        """A quick way to make many values of one type: gives a function of the packed array."""
        shapes = tuple(map(tuple, shapes))
        type_key: Hashable = None

        def make(packed: jax.Array) -> PerReplica:
            nonlocal type_key
            value = object.__new__(cls)
            value.mesh = mesh
            value._components = None
            value._packed = packed
            value._shapes = shapes
            value._dtype = None
            value._type_key = type_key
            if type_key is None:
                type_key = value._program_key
            return value

        return make

    def __repr__(self) -> str:
        return f"PerReplica:{_shown(self.mesh, self.values)}"

    def _repr_html_(self) -> str:
        return _as_html("PerReplica", self.mesh, self.values)

    def _refuse(self, use: str) -> Exception:
        return PerReplicaUseError(
            f"a PerReplica value of {self.mesh.num_replicas} replicas cannot be used by {use}. "
            "Combine the replicas first with strategy.reduce(op, value, axis), look at them with "
            "strategy.experimental_local_results(value), or use it inside strategy.run."
        )

    @property
    def values(self) -> tuple[Any, ...]:
        """The components of this worker's replicas, in replica order."""
        if self._components is None:
            if self.mesh.spans_workers and isinstance(self._packed, Tracer):
                raise TraceError(
                    "the components of a per-replica value were asked for inside a function, on "
                    "several workers: each worker would compile another program. Use "
                    "strategy.reduce or strategy.gather there, or "
                    "strategy.experimental_local_results outside."
                )
            self._components = self._unpack(self.mesh.local_replicas)
        return self._components

    @property
    def _is_traced(self) -> bool:
        """Whether it is a value of a program that is being recorded."""
        return any(isinstance(part, Tracer) for part in self._parts())

    def _all_values(self) -> tuple[Any, ...]:
        """The components of all replicas; only in a trace, or where one worker has them all."""
        if self.mesh.spans_workers:
            self._as_packed()
            return self._unpack(range(self.mesh.num_replicas))
        return self.values

    def _with_shapes(self, shapes: Sequence[Shape]) -> PerReplica:
        """The same value, when the shapes on other workers turn out to be these."""
        if tuple(shapes) == self._shapes:
            return self
        if self._packed is not None:
            largest = tuple(max(sizes) for sizes in zip(*shapes, strict=True)) or (1,)
            rows = largest[0] * self.mesh.num_replicas
            if self._packed.shape == (rows, *largest[1:]):
                return PerReplica(self.mesh, packed=self._packed, shapes=shapes)
        return PerReplica(self.mesh, components=self.values, shapes=shapes)

    def _parts(self) -> tuple[Any, ...]:
        """What the value is held as: the one array, or the components."""
        return self.values if self._packed is None else (self._packed,)

    def _select(self, replica_id: int) -> Any:
        """The component of one replica of this worker."""
        return self.values[self.mesh.local_index(replica_id)]

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shape of each component of all workers, in replica order."""
        if self._shapes is None:
            if self.mesh.spans_workers:
                self._ask_other_workers()
            else:
                self._shapes = tuple(np.shape(value) for value in self.values)
        assert self._shapes is not None
        return self._shapes

    def _ask_other_workers(self) -> None:
        """Learns the shapes and the dtype of the components on all workers."""
        shapes = [list(np.shape(value)) for value in self.values]
        own = str(jnp.result_type(*self.values)) if self._holds_arrays() else None
        rows = workers.require().exchange("the use of a per-replica value", [shapes, own])
        self._shapes = tuple(tuple(shape) for shapes, _ in rows for shape in shapes)
        if own is not None and any(dtype not in (own, None) for _, dtype in rows):
            self._dtype = jnp.result_type(*(jnp.dtype(dtype) for _, dtype in rows if dtype))

    def _holds_arrays(self) -> bool:
        return all(map(placement.is_array_like, self.values))

    @property
    def _is_uneven(self) -> bool:
        """Whether components differ in shape."""
        shapes = self.shapes
        return shapes.count(shapes[0]) < len(shapes)

    @property
    def dtype(self) -> np.dtype:
        """The dtype that the components have in a compiled program."""
        if self._packed is not None:
            return self._packed.dtype
        self._require_arrays("a per-replica value")
        if self._dtype is None:
            if self._shapes is None and self.mesh.spans_workers:
                self._ask_other_workers()
            if self._dtype is None:  # no np.dtype: it may be that of random keys
                self._dtype = jnp.result_type(*self.values)
        return self._dtype

    @property
    def _program_key(self) -> Hashable:
        """Equal for values that the same compiled program can take."""
        if self._type_key is None:
            self._type_key = (id(self.mesh), self.shapes, self.dtype)
        return self._type_key

    def _packed_if_like(self, type_key: Hashable, name: Callable[[], str]) -> jax.Array | None:
        """The packed array, if the value has this `type_key`; `name` is for errors."""
        own = self._type_key
        if own is not type_key and (own or self._program_key) != type_key:
            return None
        packed = self._packed
        return self._as_packed(name) if packed is None or self._components is not None else packed

    def _as_packed(self, name: str | Callable[[], str] = "a per-replica value") -> jax.Array:
        """All components as one array over the replicas' devices, padded if they are uneven.

        Args:
            name: What to call the value in an error.

        Raises:
            DistributedValueError: If a component is no number and no array of numbers.
            DeletedValueError: If a component has been deleted.
        """
        self._refuse_deleted(name)
        if self._packed is None:
            self._packed = self._pack(name if isinstance(name, str) else name())
        elif placement.is_too_wide(self._packed.dtype):
            placement.require_width(self._packed.dtype, name if isinstance(name, str) else name())
        return self._packed

    def _refuse_deleted(self, name: str | Callable[[], str]) -> None:
        """Raises `DeletedValueError`, with `name`, if a part has been deleted.

        Only somebody who gave or was given components can do that.
        """
        if self._components is not None:
            _refuse_deleted(self._packed, self._components, self.mesh, name)

    def _require_arrays(self, leaf: str) -> None:
        for replica_id, value in zip(self.mesh.local_replicas, self.values, strict=True):
            if not placement.is_array_like(value):
                raise DistributedValueError(
                    f"{leaf}: replica {replica_id} holds {value!r}, which is no number and no "
                    "array of numbers, and cannot enter a compiled run. Call run outside function, "
                    "or convert it."
                )

    def _pack(self, leaf: str) -> jax.Array:
        self._require_arrays(leaf)
        is_traced = any(isinstance(value, Tracer) for value in self.values)
        arrays = [placement.narrowed(value, leaf) for value in self.values]
        dtype = jnp.result_type(*arrays) if is_traced else self.dtype
        arrays = [a if a.dtype == dtype else a.astype(dtype) for a in arrays]
        if self._is_uneven:
            largest = self._largest_shape()
            arrays = [_pad(array, largest) for array in arrays]
        if is_traced:
            return jnp.concatenate([jnp.atleast_1d(array) for array in arrays])
        with concretely():
            return placement.assemble(arrays, self.mesh)

    def _largest_shape(self) -> Shape:
        ranks = {len(shape) for shape in self.shapes}
        if len(ranks) > 1:
            raise DistributedValueError(
                f"components of one value must have the same rank; got shapes {self.shapes}."
            )
        return tuple(max(sizes) for sizes in zip(*self.shapes, strict=True))

    def _unpack(self, replicas: range) -> tuple[jax.Array, ...]:
        assert self._packed is not None and self._shapes is not None
        if isinstance(self._packed, Tracer):
            parts, freed = _traced_parts(self._packed, self.mesh), _itself
        else:
            assert replicas == self.mesh.local_replicas
            parts, freed = placement.parts_of(self._packed, self.mesh), uncommitted
        shapes = self._shapes[replicas.start : replicas.stop]
        if freed is uncommitted and not any(shapes):
            return tuple(map(uncommitted_scalar, parts))
        # Trimmed while it is committed, or the component would move to the default device.
        return tuple(
            freed(part if part.shape == shape else _trim(part, shape))
            for part, shape in zip(parts, shapes, strict=True)
        )


class Mirrored(ArrayOperators, DistributedValues):
    """One value, equal on every replica; works as an array outside ``run``.

    Attributes:
        mesh: The devices that hold a copy.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> total = strategy.run(lambda: rx.get_replica_context().all_reduce("SUM", 1.0))
        >>> total + 1
        Array(3., dtype=float32)
    """

    __slots__ = ("__weakref__", "_array", "_components", "mesh")

    mesh: ReplicaMesh

    def __init__(
        self,
        mesh: ReplicaMesh,
        *,
        array: jax.Array | None = None,
        components: Sequence[jax.Array] | None = None,
    ) -> None:
        """Holds one `array` replicated over the mesh, or equal `components`."""
        self.mesh = mesh
        self._array = array
        self._components = None if components is None else tuple(components)

    @classmethod
    def _maker(cls, mesh: ReplicaMesh) -> Callable[[jax.Array], Mirrored]:
        """A quick way to make many values: gives a function of the replicated array."""

        def make(array: jax.Array) -> Mirrored:
            value = object.__new__(cls)
            value.mesh = mesh
            value._array = array
            value._components = None
            return value

        return make

    def __repr__(self) -> str:
        return f"Mirrored:{_shown(self.mesh, self.values)}"

    def _repr_html_(self) -> str:
        return _as_html("Mirrored", self.mesh, self.values)

    @property
    def values(self) -> tuple[jax.Array, ...]:
        """The copies of this worker's replicas, in replica order."""
        if self._components is None:
            assert self._array is not None
            if isinstance(self._array, Tracer):
                self._components = (self._array,) * len(self.mesh.local_replicas)
            else:
                self._components = tuple(
                    uncommitted(part) for part in placement.parts_of(self._array, self.mesh)
                )
        return self._components

    def _select(self, replica_id: int) -> jax.Array:
        """The copy of one replica of this worker."""
        return self.values[self.mesh.local_index(replica_id)]

    def read_value(self) -> jax.Array:
        """The value, as an ordinary array."""
        return self.values[0]

    @property
    def shape(self) -> Shape:
        """The shape of the value."""
        return tuple(self._any_array().shape)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the value."""
        return self._any_array().dtype

    def _any_array(self) -> jax.Array:
        return self.values[0] if self._array is None else self._array

    def _replicated(self, name: str | Callable[[], str] = "a mirrored value") -> jax.Array:
        """The value as one array replicated over the mesh.

        Args:
            name: What to call the value in an error.

        Raises:
            DeletedValueError: If a copy has been deleted.
        """
        self._refuse_deleted(name)
        if self._array is None:
            assert self._components is not None
            self._array = placement.mirror(self._components, self.mesh)
        return self._array

    def _refuse_deleted(self, name: str | Callable[[], str]) -> None:
        """Raises `DeletedValueError`, with `name`, if a copy has been deleted."""
        if self._components is not None:
            _refuse_deleted(self._array, self._components, self.mesh, name)


def register_as_array(cls: C) -> C:
    """Makes JAX functions see the current value when they get an instance of `cls`."""

    def value_of(_: None, children: Any) -> Any:
        return children[0]

    jax.tree_util.register_pytree_node(cls, lambda item: ((item.read_value(),), None), value_of)
    operands.accept(cls, lambda item: item.read_value())
    return cls


register_as_array(Mirrored)


def _refuse_deleted(
    whole: Any, parts: Sequence[Any], mesh: ReplicaMesh, name: str | Callable[[], str]
) -> None:
    """Raises if one of the `parts` is deleted, or one of those that `whole` is made of."""
    gone = [_is_deleted(part) for part in parts]
    if _is_deleted(whole) or any(gone):
        first = gone.index(True) if any(gone) else 0
        raise DeletedValueError(
            f"{name if isinstance(name, str) else name()} cannot be used: the part of replica "
            f"{mesh.local_replicas[first]} is gone. Array has been deleted, or donated to a jitted "
            "function. Give away a copy, such as jnp.copy(x), or make the value anew."
        )


def _is_deleted(value: Any) -> bool:
    is_concrete = isinstance(value, jax.Array) and not isinstance(value, Tracer)
    return is_concrete and is_deleted(value)


def _as_html(title: str, mesh: ReplicaMesh, values: Sequence[Any]) -> str:
    """What a notebook shows: a row for each replica of this worker."""
    names = map(devices.device_name, mesh.local_devices)
    rows = [
        (str(replica_id), name, workers.translated(functools.partial(repr, value)))
        for replica_id, name, value in zip(mesh.local_replicas, names, values, strict=True)
    ]
    return as_html(title, [("replica", "device", "value"), *rows])


def _shown(mesh: ReplicaMesh, values: Sequence[Any]) -> str:
    rows = zip(mesh.local_replicas, values, strict=True)
    lines = [
        f"  {replica_id}: {workers.translated(functools.partial(repr, value))}"
        for replica_id, value in rows
    ]
    return "{\n" + ",\n".join(lines) + "\n}"


def _pad(array: Any, shape: Shape) -> Any:
    widths = [(0, large - small) for small, large in zip(array.shape, shape, strict=True)]
    if not any(after for _, after in widths):
        return array
    return (jnp if isinstance(array, jax.Array) else np).pad(array, widths)


def _itself(array: jax.Array) -> jax.Array:
    return array


def _trim(array: jax.Array, shape: Shape) -> jax.Array:
    if not shape and array.shape == (1,):
        return array.reshape(())
    return array[tuple(slice(size) for size in shape)]


def _traced_parts(packed: jax.Array, mesh: ReplicaMesh) -> list[jax.Array]:
    whole = collectives.on_all_devices(packed, mesh)
    size = packed.shape[0] // mesh.num_replicas
    return [whole[i * size : (i + 1) * size] for i in range(mesh.num_replicas)]
