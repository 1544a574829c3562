"""What a checkpoint saves of one thing, and how it is given back.

There are three kinds of things: a variable, a Python value in a place that can be
assigned, and an object that gives its own state. A saved thing is a *record* in the
manifest and arrays in the groups below.

In a cluster the values of the first worker are saved, except for objects whose states
differ between workers: of these every worker has a record of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import numpy as np

from replicax.backend import placement, workers
from replicax.checkpoint.encoding import array_names, decode, encode
from replicax.core.enums import VariableAggregation, VariableSynchronization
from replicax.jax_internals.traces import concretely
from replicax.values.distributed import PerReplica
from replicax.values.reduce import gather_leaf
from replicax.variables.sync_on_read import SyncOnReadVariable
from replicax.variables.variable import Variable

VALUES, COPIES, STATES = "values", "copies", "states"
GROUPS = (VALUES, COPIES, STATES)

Record = dict[str, Any]
Arrays = Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class EntrySource:
    """An array of a checkpoint, and where it should be.

    Attributes:
        group: Its group.
        name: Its name there.
        shape: Its shape.
        dtype: The name of its dtype.
        sharding: The layout over several devices, or None for the host.
    """

    group: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    sharding: Any = None


class VariableEntry:
    """A variable.

    Equal copies are saved once. Of independent copies the value that a read across
    replicas gives is saved, if there is one, and the copies as well: they are given
    back exactly where there are as many, and otherwise the value is.
    """

    kind: ClassVar[str] = "variable"

    def __init__(self, variable: Variable) -> None:
        self.variable = variable

    @property
    def identity(self) -> int:
        """What two entries of the same thing have in common."""
        return id(self.variable)

    @property
    def _num_copies(self) -> int:
        storage = self.variable._storage
        return storage.mesh.num_replicas if storage.mesh is not None else 1

    @property
    def _is_independent(self) -> bool:
        return self.variable.synchronization is VariableSynchronization.ON_READ

    @property
    def _has_value(self) -> bool:
        """Whether copies can be combined into one value."""
        return not (self._is_independent and self.variable.aggregation is VariableAggregation.NONE)

    def save(self, key: str, arrays: dict[str, dict[str, Any]]) -> Record:
        """The record; adds to `arrays` what the variable holds now."""
        variable, storage = self.variable, self.variable._storage
        record = {"kind": self.kind, "shape": list(variable.shape), "dtype": self._dtype}
        if self._has_value:
            value = variable.read_value() if storage.per_replica else self._one_copy()
            arrays[VALUES][key] = value
        if self._is_independent and (self._num_copies > 1 or not self._has_value):
            arrays[COPIES][key] = self._copies()
            record["copies"] = self._num_copies
        return record | {"has_value": self._has_value}

    def _one_copy(self) -> Any:
        """The value that all copies have, wherever its pieces are."""
        storage = self.variable._storage
        if storage.spec is not None and workers.current() is not None:
            return storage.component(0)  # the first worker writes what it can see itself
        return storage.hand_out()

    def _copies(self) -> Any:
        """The copies of all replicas; every worker must ask."""
        storage = self.variable._storage
        copies, mesh = storage.hand_out(), storage.mesh
        if mesh is None or not storage.per_replica:
            return np.asarray(copies)[None]
        if mesh.spans_workers:
            shapes = [(1, *storage.shape)] * mesh.num_replicas
            return gather_leaf(PerReplica(mesh, packed=copies, shapes=shapes), 0, mesh)
        return copies

    @staticmethod
    def _is_spread(array: Any) -> bool:
        return isinstance(array, jax.Array) and len(array.sharding.device_set) > 1

    def described(self) -> str:
        """What it is, in words; the same on all workers."""
        of_copies = f", {self._num_copies} copies" if self._is_independent else ""
        return f"a variable of shape {self.variable.shape} and dtype {self._dtype}{of_copies}"

    @property
    def _dtype(self) -> str:
        return np.dtype(self.variable.dtype).name

    def differences(self, record: Record) -> list[str]:
        """Why a saved record cannot be given to this variable."""
        if record["kind"] != self.kind:
            return [f"a variable here, a {record['kind']} in the checkpoint"]
        found = []
        if tuple(record["shape"]) != self.variable.shape:
            saved = tuple(record["shape"])
            found.append(f"shape {self.variable.shape} here, {saved} in the checkpoint")
        if record["dtype"] != self._dtype:
            found.append(f"dtype {self._dtype} here, {record['dtype']} in the checkpoint")
        if placement.is_too_wide(self.variable.dtype):
            found.append(
                f"dtype {self._dtype}, which would be cut to 32 bits: 64-bit types are off. "
                f"{placement.TURN_ON_X64}"
            )
        if not record["has_value"] and record["copies"] != self._num_copies:
            found.append(
                f"{self._num_copies} independent copies here, {record['copies']} in the "
                "checkpoint, which aggregation=NONE cannot combine"
            )
        if record["has_value"] and not self._has_value and not self._takes_copies(record):
            found.append(
                f"{self._num_copies} independent copies with aggregation=NONE here, one value in "
                "the checkpoint"
            )
        return found

    def _takes_copies(self, record: Record) -> bool:
        return self._is_independent and record.get("copies") == self._num_copies

    def sources(self, key: str, record: Record) -> list[EntrySource]:
        """The arrays that `restore` needs."""
        storage, shape, dtype = self.variable._storage, tuple(record["shape"]), record["dtype"]
        mesh = storage.mesh if self._num_copies > 1 else None
        if workers.current() is not None:
            mesh = None  # each worker reads for itself, and knows its own devices only
        if self._takes_copies(record) or not record["has_value"]:
            sharding = None if mesh is None else storage.sharding
            return [EntrySource(COPIES, key, (record["copies"], *shape), dtype, sharding)]
        sharding = None if mesh is None or storage.per_replica else storage.sharding
        return [EntrySource(VALUES, key, shape, dtype, sharding)]

    def restore(self, key: str, record: Record, arrays: Arrays) -> None:
        """Gives the variable its saved value."""
        storage = self.variable._storage
        local = range(1) if storage.mesh is None else storage.mesh.local_replicas
        (source,) = self.sources(key, record)
        array = arrays[source.group][key]
        with concretely():
            if self._is_spread(array):
                storage.set(array)
            elif source.group == COPIES:
                storage.set_components([array[i] for i in local])
            elif isinstance(self.variable, SyncOnReadVariable):
                copies = self.variable._divided(array)
                storage.set_components([copies[i] for i in local])
            else:
                storage.set_value(array)


class ValueEntry:
    """A Python number or string, in a place that can be assigned."""

    kind: ClassVar[str] = "Python value"

    def __init__(self, value: Any, assign: Callable[[Any], None]) -> None:
        """An entry for a place that holds `value` now."""
        self._value = value
        self._assign = assign

    @property
    def identity(self) -> int:
        """What two entries of the same thing have in common: nothing, values are not shared."""
        return id(self)

    def save(self, key: str, arrays: dict[str, dict[str, Any]]) -> Record:
        """The record."""
        del key, arrays
        return {"kind": self.kind, "value": self._value}

    def differences(self, record: Record) -> list[str]:
        """Why a saved record cannot be given to this place."""
        if record["kind"] != self.kind:
            return [f"a Python value here, a {record['kind']} in the checkpoint"]
        here, saved = self._value, record["value"]
        if here is None or saved is None or _sort_of(here) == _sort_of(saved):
            return []
        return [f"{_sort_of(here)} {here!r} here, {_sort_of(saved)} {saved!r} in the checkpoint"]

    def sources(self, key: str, record: Record) -> list[EntrySource]:
        """The arrays that `restore` needs: none."""
        del key, record
        return []

    def restore(self, key: str, record: Record, arrays: Arrays) -> None:
        """Puts the saved value in its place."""
        del key, arrays
        self._assign(record["value"])


def _sort_of(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, (int, float)) else "string"


class StateEntry:
    """An object that gives its own state and takes it back."""

    kind: ClassVar[str] = "state"

    def __init__(self, owner: Any, methods: tuple[str, str]) -> None:
        """An entry for `owner`, whose `methods` give and take the state."""
        self.owner = owner
        self._methods = methods

    @property
    def identity(self) -> int:
        """What two entries of the same thing have in common."""
        return id(self.owner)

    def get(self) -> Any:
        """The state now."""
        return getattr(self.owner, self._methods[0])()

    def set(self, state: Any) -> None:
        """Gives the object a state."""
        getattr(self.owner, self._methods[1])(state)

    def save(self, key: str, arrays: dict[str, dict[str, Any]]) -> Record:
        """The record; adds the arrays of the state to `arrays`."""
        own: dict[str, Any] = {}
        state = encode(self.get(), key, own)
        # Copied: what an object gives may be what it goes on to change.
        arrays[STATES].update({name: np.array(array) for name, array in own.items()})
        return {"kind": self.kind, "state": state}

    def differences(self, record: Record) -> list[str]:
        """Why a saved record cannot be given to this object; what is in it, the object judges."""
        if record["kind"] != self.kind:
            saved = record["kind"]
            return [f"{type(self.owner).__name__} with its own state here, a {saved} in the "
                    "checkpoint"]  # fmt: skip
        if "workers" in record:  # else the state of this worker would be there
            return [f"{type(self.owner).__name__} had another state on each of "
                    f"{record['workers']} workers, and it is not known which of them is meant "
                    "here"]  # fmt: skip
        return []

    def sources(self, key: str, record: Record) -> list[EntrySource]:
        """The arrays that `restore` needs."""
        del key
        return [EntrySource(STATES, *array) for array in array_names(record["state"])]

    def restore(self, key: str, record: Record, arrays: Arrays) -> None:
        """Gives the object its saved state."""
        del key
        self.set(decode(record["state"], arrays[STATES]))


Entry = VariableEntry | ValueEntry | StateEntry


def all_sources(key: str, record: Record) -> list[EntrySource]:
    """Every array of a record, for the host: it is not known yet what they are for."""
    if "workers" in record:
        return []
    if record["kind"] == StateEntry.kind:
        return [EntrySource(STATES, *array) for array in array_names(record["state"])]
    if record["kind"] != VariableEntry.kind:
        return []
    shape, dtype = tuple(record["shape"]), record["dtype"]
    found = [EntrySource(VALUES, key, shape, dtype)] if record["has_value"] else []
    if "copies" in record:
        found.append(EntrySource(COPIES, key, (record["copies"], *shape), dtype))
    return found
