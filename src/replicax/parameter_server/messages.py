"""What the coordinator, workers and servers tell each other: plain data, arrays apart from it.

Every class here is frozen and holds numbers, strings, tuples and, in fields that are called
``value``, ``values``, ``rows``, ``arguments`` or ``results``, arrays. A transport between
processes sends those as raw buffers. `OptimizerSpec` and a `dataset_fn` are the only things that
hold Python functions.

A *shard* is one array on one server: a whole variable, or some rows of one. All shards are
numbered by the coordinator, and so are optimizers, programs, datasets, iterators and closures.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import jax
import numpy as np

Array = np.ndarray | jax.Array
"""An array on the host, or one of this process that NumPy can look at."""

NEW = -1
"""The version of a shard that a reader has not seen."""


@dataclasses.dataclass(frozen=True, slots=True)
class ShardSpec:
    """One array on one server.

    Attributes:
        shard_id: Its number; no other shard of the cluster has it.
        server: The server that holds it.
        name: The name of the variable, for errors.
        shape: The shape of what the server holds.
        dtype: The name of its dtype, for ``jax.numpy.dtype``.
        start: The row of the variable that it starts with.
    """

    shard_id: int
    server: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    start: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """An optimizer, as one server updates its own shards by it.

    Attributes:
        optimizer_id: Its number.
        transformation: Makes the Optax transformation, of the values of `inputs`.
        parameters: The tree that the transformation sees: the number of the shard at each leaf
            that the server holds, None at the others.
        state: The state of the transformation in the same way; leaves that are no arrays are
            `FixedLeaf`.
        slots: The number of each shard of the state that belongs to a parameter, with that of the
            parameter.
        inputs: The numbers of shards that the transformation reads, and does not change.
        by_rows: Whether rows without a gradient stay as they are, so that an update by rows may
            leave them out.
    """

    optimizer_id: int
    transformation: Any
    parameters: Any
    state: Any
    slots: tuple[tuple[int, int], ...] = ()
    inputs: tuple[int, ...] = ()
    by_rows: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class FixedLeaf:
    """A leaf of the state of an optimizer that no server changes."""

    value: Any


class UpdateKind(enum.Enum):
    """What an update does to a shard."""

    ASSIGN = "assign"
    ADD = "add"
    ASSIGN_ROWS = "assign rows"
    ADD_ROWS = "add rows"
    GRADIENT = "gradient"
    ROW_GRADIENT = "row gradient"


@dataclasses.dataclass(frozen=True, slots=True)
class Update:
    """One change of one shard.

    Attributes:
        kind: What it does.
        shard_id: Which shard it changes.
        value: The new value, what is added, or the gradient; for rows one row for each of `rows`.
        rows: The rows of the shard that it changes, as int32. One that occurs twice is added twice;
            those outside of the shard are left out. None for updates of the whole.
        optimizer_id: The optimizer, for a gradient. Gradients of one optimizer in one attempt are
            one update of it on the server.
    """

    kind: UpdateKind
    shard_id: int
    value: Array
    rows: Array | None = None
    optimizer_id: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """One execution of one closure.

    Attributes:
        epoch: How often the servers have been rolled back; servers refuse older epochs.
        closure: The number of the closure.
        number: How often it was tried before.
    """

    epoch: int
    closure: int
    number: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class ReadReply:
    """Some shards of one server.

    Attributes:
        clock: How many closures had been committed there.
        versions: The version of each shard that was asked for.
        values: The value of each; None where the reader has that version already.
    """

    clock: int
    versions: tuple[int, ...]
    values: tuple[Array | None, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class RowsReply:
    """Some rows of one shard.

    Attributes:
        clock: How many closures had been committed there.
        values: One row for each that was asked for; zeros for those outside of the shard.
    """

    clock: int
    values: Array


@dataclasses.dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """All that a server knows.

    Attributes:
        clock: How many closures were committed.
        shards: The shards that it holds.
        values: The value of each.
    """

    clock: int
    shards: tuple[ShardSpec, ...]
    values: tuple[Array, ...]


class InputSource(enum.Enum):
    """Where an input of a stage comes from."""

    ARGUMENT = "argument"  # of the call, by position
    ELEMENT = "element"  # a leaf of an element of a dataset, by its place in `ProgramSpec.elements`
    VARIABLE = "variable"  # by its place in `ProgramSpec.reads`
    ROWS = "rows"  # by its place in `ProgramSpec.lookups`
    WORKER = "worker"  # the number of the worker, as int32


@dataclasses.dataclass(frozen=True, slots=True)
class StageInput:
    """One input of a stage."""

    source: InputSource
    index: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Element:
    """One leaf of one element that a closure takes from an iterator.

    Attributes:
        iterator_id: The iterator.
        turn: Which of the elements that the closure takes from it, from 0.
        leaf: Which leaf of the element.
        shape: The shape that the program is for.
        dtype: The name of the dtype that it is for.
    """

    iterator_id: int
    turn: int
    leaf: int
    shape: tuple[int, ...]
    dtype: str


@dataclasses.dataclass(frozen=True, slots=True)
class Lookup:
    """Some rows of a variable that a program needs.

    Attributes:
        shards: The shards of the variable, in the order of their rows.
        stage: The stage that computes which rows.
        output: Which of its outputs: an int32 array of any shape.
    """

    shards: tuple[ShardSpec, ...]
    stage: int
    output: int


@dataclasses.dataclass(frozen=True, slots=True)
class Emission:
    """An update that a program makes: what its last stage computes for it.

    Attributes:
        kind: What the update does.
        shards: The shards of the variable, in the order of their rows. An update by rows goes to
            the shards that have the rows, any other is cut as the variable is.
        output: The output with the value.
        rows: The output with the rows, of the variable; None for an update of the whole.
        optimizer_id: The optimizer, for a gradient.
        is_copied: Whether each shard is all of the variable, a copy on each server.
    """

    kind: UpdateKind
    shards: tuple[ShardSpec, ...]
    output: int
    rows: int | None = None
    optimizer_id: int | None = None
    is_copied: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class ProgramStage:
    """A part of a program, which runs when the rows it needs are known.

    Attributes:
        exported: A ``jax.export.Exported``; ``bytes(exported.serialize())`` for the wire.
        inputs: Where its arguments come from.
    """

    exported: Any
    inputs: tuple[StageInput, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ProgramSpec:
    """A traced closure.

    Attributes:
        program_id: Its number.
        name: The name of the function, for errors.
        stages: Run in order. The outputs of the last one are the results, then what the
            updates need.
        reads: The shards of each variable that is read; what is cut is joined on dim 0.
        lookups: The rows that it needs.
        elements: The leaves of elements of datasets that it needs.
        emissions: The updates that it makes.
        num_results: How many outputs of the last stage are results.
    """

    program_id: int
    name: str
    stages: tuple[ProgramStage, ...]
    reads: tuple[tuple[ShardSpec, ...], ...]
    lookups: tuple[Lookup, ...]
    elements: tuple[Element, ...]
    emissions: tuple[Emission, ...]
    num_results: int


@dataclasses.dataclass(frozen=True, slots=True)
class ClosureCall:
    """One closure for one worker.

    Attributes:
        attempt: Which closure, and which execution of it.
        program_id: The program, which the worker has been given before.
        arguments: Its arguments.
    """

    attempt: Attempt
    program_id: int
    arguments: tuple[Array, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ClosureReply:
    """What a worker has done.

    Attributes:
        results: The results of the closure.
        clocks: The clock of each server that it read from, when it did so first.
        servers: The servers on which it has staged updates.
    """

    results: tuple[Array, ...]
    clocks: dict[int, int]
    servers: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class OtherShapes:
    """A worker's reply when an element has other shapes than the program is for.

    The worker keeps the elements for the next attempt at the same closure.

    Attributes:
        elements: What the elements are, in the order of ``ProgramSpec.elements``.
    """

    elements: tuple[Element, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class DatasetSpec:
    """What the elements of a dataset look like, by its first one.

    Attributes:
        structure: An element, with the number of its leaf at each place.
        shapes: The shape of each leaf.
        dtypes: The name of the dtype of each.
    """

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
