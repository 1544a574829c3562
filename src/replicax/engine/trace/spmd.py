"""Turns a replica function into one program for all replicas.

`trace_replicas` traces it (once; or once per kind of replica where components
differ in shape or Python branches on the replica id), checks the trace for what
would drift or hang, and emits it as a `shard_map` into the surrounding trace.
State is read from and written to the surrounding trace through callbacks; what
it is, nothing here knows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from replicax.backend.mesh import PER_REPLICA, REPLICATED, ReplicaMesh
from replicax.core import notices
from replicax.core.errors import TraceError
from replicax.core.names import REPLICA_AXIS
from replicax.engine.analysis.local_numbering import number_constant
from replicax.engine.analysis.numbering import differing_outputs
from replicax.engine.analysis.varying import (
    analyse,
    divergent_branch,
    refuse_half_sums,
    refuse_repeated_writes,
)
from replicax.engine.threads import ReplicaThreads
from replicax.engine.trace.assigned import evaluated
from replicax.engine.trace.frame import Frame, StateKey
from replicax.engine.trace.lockstep import run_in_lockstep
from replicax.engine.trace.mapping import map_replicas
from replicax.engine.trace.rewriting import rewritten
from replicax.engine.trace.whole import asks_for_pieces, kept_whole, without_pieces
from replicax.jax_internals.programs import ClosedJaxpr, Literal, call_jaxpr, user_line
from replicax.jax_internals.traces import capture_thread_state

Shape = tuple[int, ...]

# What JAX raises when Python wants a number out of a traced value: if, int(), [index], numpy.
_CONVERSIONS_OF_TRACERS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.TracerArrayConversionError,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Argument:
    """One array argument of a replica function.

    Attributes:
        value: The array over all replicas, or one value for all.
        shapes: For a per-replica value the true shape of each component.
    """

    value: Any
    shapes: tuple[Shape, ...] | None = None

    def local(self, part: jax.Array, replica_id: int) -> jax.Array:
        """What replica `replica_id` gets, out of its part of `value`."""
        if self.shapes is None:
            return part
        shape = self.shapes[replica_id]
        if part.shape == shape:
            return part
        return part.reshape(()) if not shape else part[tuple(slice(size) for size in shape)]


@dataclasses.dataclass(slots=True)
class Variant:
    """One trace of the replica function, for one kind of replica.

    Attributes:
        example_id: A replica of this kind.
        replica_id: The replica's id where the trace may know it, else None.
        kind_of_replica: The kind of every replica.
        exchange: Gives every variant's value, in order of kinds.
        asked_replica_id: Whether the function asked for its traced replica id.
    """

    example_id: int
    replica_id: int | None
    kind_of_replica: tuple[int, ...]
    exchange: Callable[[Any], list[Any]]
    asked_replica_id: bool = False


@dataclasses.dataclass(slots=True)
class Outputs:
    """What a traced replica function gave back.

    Attributes:
        uniform: Arrays that are the same on every replica.
        varying: Arrays that each replica has its own of.
    """

    uniform: list[Any]
    varying: list[Any]


@dataclasses.dataclass(slots=True)
class Emitted:
    """The same arrays, seen from outside the replicas.

    Attributes:
        uniform: One value each.
        varying: One array each, all replicas on dim 0.
        shapes: For each of `varying` the true shape of every component.
    """

    uniform: list[Any]
    varying: list[Any]
    shapes: list[tuple[Shape, ...]]


class Body(Protocol):
    """The replica function with everything around it."""

    def __call__(self, args: list[Any], variant: Variant) -> Outputs:
        """Runs the function on local arguments, in the trace."""
        ...


class State(Protocol):
    """The surrounding trace's view of state."""

    def read(self, key: StateKey) -> Any:
        """The value over all replicas."""
        ...

    def write(self, key: StateKey, value: Any) -> None:
        """Stores the value over all replicas."""
        ...


@dataclasses.dataclass(slots=True)
class _Trace:
    """A traced variant: a jaxpr over state, then operands.

    Of the operands each has a name, which is equal for the same one of another variant.
    """

    jaxpr: Any
    frame: Frame
    written: list[StateKey]
    operands: list[Any]
    specs: list[PartitionSpec]
    num_uniform: int
    varying_shapes: list[Shape]
    names: list[Hashable] = dataclasses.field(default_factory=list)

    @property
    def varying_in(self) -> list[bool]:
        state = [key.per_replica for key in self.frame.entered]
        return state + [REPLICA_AXIS in spec for spec in self.specs]


def trace_replicas(
    body: Body, args: Sequence[Argument], mesh: ReplicaMesh, state: State, frames: list[Frame]
) -> Emitted:
    """Traces `body` for all replicas and emits it into the surrounding trace.

    Args:
        body: The replica function.
        args: Its array arguments.
        mesh: The devices of the replicas.
        state: The surrounding trace's state.
        frames: Gets the frame of every variant, also when tracing fails.

    Raises:
        TraceError: If the program would make replicas drift apart or wait for ever.
    """
    kinds = _kinds_by_shape(args, mesh.num_replicas)
    try:
        return _trace_kinds(kinds, False, body, args, mesh, state, frames)
    except _BranchedOnReplicaId as branched:
        error = branched.__cause__
        assert error is not None
    frames.clear()
    line = notices.line_of(error)
    notices.notify_once(
        ("branch on replica id", line),
        f"Python branches on the replica id at {line}, so the replica function is traced once for "
        f"each of {mesh.num_replicas} replicas. Use jnp.where or lax.cond to trace it once.",
    )
    every = tuple(range(mesh.num_replicas))
    try:
        return _trace_kinds(every, True, body, args, mesh, state, frames)
    except _CONVERSIONS_OF_TRACERS:
        raise error from None


class _BranchedOnReplicaId(Exception):
    """Python wanted the value of a traced replica id, as far as one can tell."""


def _kinds_by_shape(args: Sequence[Argument], num_replicas: int) -> tuple[int, ...]:
    """The kind of each replica: replicas with the same component shapes are of one kind."""
    numbers: dict[Any, int] = {}
    rows = [
        tuple(arg.shapes[replica] for arg in args if arg.shapes is not None)
        for replica in range(num_replicas)
    ]
    return tuple(numbers.setdefault(row, len(numbers)) for row in rows)


def _trace_kinds(
    kind_of_replica: tuple[int, ...],
    fixed_ids: bool,
    body: Body,
    args: Sequence[Argument],
    mesh: ReplicaMesh,
    state: State,
    frames: list[Frame],
) -> Emitted:
    num_kinds = max(kind_of_replica) + 1
    examples = [kind_of_replica.index(kind) for kind in range(num_kinds)]
    if num_kinds == 1:
        variant = Variant(0, None, kind_of_replica, lambda value: [value])
        traces = [_trace_variant(variant, body, args, mesh, frames)]
    else:
        traces = _trace_together(examples, fixed_ids, kind_of_replica, body, args, mesh, frames)
    _name_operands(traces)
    if mesh.num_replicas > 1:
        _check_writes(traces)
    else:
        refuse_repeated_writes(traces[0].jaxpr)
    if mesh.num_logical_devices > 1 and mesh.mesh.devices.flat[0].platform == "cpu":
        for trace in traces:
            refuse_half_sums(trace.jaxpr, axis=REPLICA_AXIS)
    is_whole = mesh.num_logical_devices > 1 and _diverges(traces, mesh)
    if is_whole:
        for trace in traces:
            trace.jaxpr = without_pieces(trace.jaxpr)
    return _emit(traces, kind_of_replica, mesh, state, is_whole)


def _name_operands(traces: Sequence[_Trace]) -> None:
    """Names the operands of all variants.

    The function may make an array anew each time that it is traced, as ``jnp.array([1, 2])`` does;
    by its content it is the same one in all variants.
    """
    everywhere = set.intersection(*({id(value) for value in trace.operands} for trace in traces))
    for trace in traces:
        trace.names = [
            (id(value) if id(value) in everywhere else number_constant(value), spec)
            for value, spec in zip(trace.operands, trace.specs, strict=True)
        ]


def _diverges(traces: Sequence[_Trace], mesh: ReplicaMesh) -> bool:
    """Whether replicas take different branches, in which XLA must not exchange pieces."""
    if mesh.num_replicas == 1 or len(traces) > 1:
        return len(traces) > 1
    branch = divergent_branch(traces[0].jaxpr, traces[0].varying_in, axis=REPLICA_AXIS)
    if branch is None:
        return False
    if asks_for_pieces(traces[0].jaxpr):
        _tell_of_branch(branch)
    return True


def _tell_of_branch(branch: Any) -> None:
    line = user_line(branch)
    notices.notify_once(
        ("divergent branch", line),
        f"replicas take different branches of the {branch.primitive.name} at {line}, so every "
        f"logical device computes the whole replica function instead of its piece. Compute both "
        "branches and choose with jnp.where to have it partitioned.",
    )


def _trace_together(
    examples: list[int],
    fixed_ids: bool,
    kind_of_replica: tuple[int, ...],
    body: Body,
    args: Sequence[Argument],
    mesh: ReplicaMesh,
    frames: list[Frame],
) -> list[_Trace]:
    """Traces the variants on threads, so that each can ask what the others have."""
    threads = ReplicaThreads(len(examples))
    surroundings = capture_thread_state()

    def exchange(value: Any) -> list[Any]:
        share = lambda values: [values] * len(examples)  # noqa: E731
        return threads.meet("an operation across replicas", share, payload=value)

    def task(example: int) -> _Trace:
        variant = Variant(example, example if fixed_ids else None, kind_of_replica, exchange)
        with surroundings():
            return _trace_variant(variant, body, args, mesh, frames)

    return threads.run([lambda example=example: task(example) for example in examples])


def _trace_variant(
    variant: Variant, body: Body, args: Sequence[Argument], mesh: ReplicaMesh, frames: list[Frame]
) -> _Trace:
    frame = Frame(in_replica=True)
    frame.exchange = variant.exchange
    frames.append(frame)
    counts: list[Any] = []

    def traced(*parts: jax.Array) -> tuple[list[Any], list[Any], list[Any]]:
        with frame.tracing():
            local = [
                arg.local(part, variant.example_id) for arg, part in zip(args, parts, strict=True)
            ]
            outputs = body(local, variant)
            varying = [jnp.asarray(value) for value in outputs.varying]
            written = _written_by_any(variant.exchange(frame.written))
            values = [frame.read(key) for key in written]
        counts.extend((written, len(outputs.uniform), [value.shape for value in varying]))
        return values, outputs.uniform, varying

    specs = tuple(REPLICATED if arg.shapes is None else PER_REPLICA for arg in args)
    mapped = jax.shard_map(
        traced,
        mesh=mesh.mesh,
        in_specs=specs,
        out_specs=REPLICATED,  # only traced, never run: the layout is chosen when it is emitted
        axis_names={REPLICA_AXIS},
        check_vma=False,
    )
    try:
        closed = jax.make_jaxpr(mapped)(*(arg.value for arg in args))
    except _CONVERSIONS_OF_TRACERS as error:
        if variant.asked_replica_id:
            raise _BranchedOnReplicaId from error
        raise
    (equation,) = closed.jaxpr.eqns
    values = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(closed.jaxpr.invars, (arg.value for arg in args), strict=True))
    operands = [atom.val if isinstance(atom, Literal) else values[atom] for atom in equation.invars]
    jaxpr = frame.program(equation.params["jaxpr"])
    written, num_uniform, shapes = counts
    return _Trace(
        jaxpr, frame, written, operands, list(equation.params["in_specs"]), num_uniform, shapes
    )


def _written_by_any(written: list[list[StateKey]]) -> list[StateKey]:
    return list(dict.fromkeys(key for keys in written for key in keys))


def _check_writes(traces: Sequence[_Trace]) -> None:
    """Raises if a value that must be the same on all replicas is not."""
    first = traces[0]
    shared = [i for i, key in enumerate(first.written) if not key.per_replica]
    uniform = range(len(first.written), len(first.written) + first.num_uniform)
    for trace in traces:
        varies = analyse(trace.jaxpr, trace.varying_in, axis=REPLICA_AXIS)
        for position in shared:
            if varies[position]:
                raise _drift(trace, position)
        if any(varies[position] for position in uniform):
            raise TraceError(
                "merge_fn returned a value that differs between replicas as if it were one value. "
                "It probably uses a local of the replica function; pass that through "
                "merge_call(merge_fn, args=...) instead."
            )
    if len(traces) > 1:
        numbers = [
            [("state", key) for key in trace.frame.entered]
            + [("operand", name) for name in trace.names]
            for trace in traces
        ]
        variants = [ClosedJaxpr(trace.jaxpr, ()) for trace in traces]
        positions = [*shared, *uniform]
        for position in differing_outputs(variants, numbers, positions, axis=REPLICA_AXIS):
            raise _drift(first, position)


def _drift(trace: _Trace, position: int) -> TraceError:
    key = trace.written[position] if position < len(trace.written) else None
    if key is None:
        return TraceError(
            "a value that should be the same on all replicas depends on the replica's id or on "
            "the shape of its component."
        )
    return TraceError(
        f"variable {key.name!r} is mirrored, but the value assigned at "
        f"{trace.frame.cells[key].site} differs between replicas, so its copies would drift apart. "
        "Reduce the value first (ReplicaContext.all_reduce, or extended.reduce_to in merge_call), "
        "or create the variable with an aggregation."
    )


def _emit(
    traces: Sequence[_Trace],
    kind_of_replica: tuple[int, ...],
    mesh: ReplicaMesh,
    state: State,
    is_whole: bool,
) -> Emitted:
    first = traces[0]
    keys = list(dict.fromkeys(key for trace in traces for key in trace.frame.entered))
    # What several variants use is one input, so that `lockstep` sees that it is the same.
    inputs = {
        name: (value, spec)
        for trace in traces
        for name, value, spec in zip(trace.names, trace.operands, trace.specs, strict=True)
    }
    shapes = _shapes_by_replica(traces, kind_of_replica)

    def replica(parts: list[Any]) -> tuple[list[Any], ...]:
        if is_whole:
            parts = kept_whole(parts)
        local = {
            key: value[0] if key.per_replica else value
            for key, value in zip(keys, parts[: len(keys)], strict=True)
        }
        found = dict(zip(inputs, parts[len(keys) :], strict=True))
        rows = [
            [local[key] for key in trace.frame.entered] + [found[name] for name in trace.names]
            for trace in traces
        ]
        if len(traces) == 1 and mesh.num_logical_devices > 1 and not is_whole:
            outs = evaluated(first.jaxpr, rows[0], mesh)
        else:
            outs = _run_variants(traces, rows, kind_of_replica)
        outs = kept_whole(outs) if is_whole else outs
        num_written = len(first.written)
        shared, own = [], []
        for key, value in zip(first.written, outs[:num_written], strict=True):
            if key.per_replica:
                own.append(value[None])
            else:
                shared.append(value)
        uniform = outs[num_written : num_written + first.num_uniform]
        varying = [jnp.atleast_1d(value) for value in outs[num_written + first.num_uniform :]]
        return shared, own, uniform, varying

    state_specs = [PER_REPLICA if key.per_replica else REPLICATED for key in keys]
    shared, own, uniform, varying = map_replicas(
        replica,
        [*(state.read(key) for key in keys), *(value for value, _ in inputs.values())],
        [*state_specs, *(spec for _, spec in inputs.values())],
        mesh=mesh,
        out_specs=(REPLICATED, PER_REPLICA, REPLICATED, PER_REPLICA),
    )
    shared, own = iter(shared), iter(own)
    for key in first.written:
        state.write(key, next(own) if key.per_replica else next(shared))
    return Emitted(uniform, varying, shapes)


def _run_variants(
    traces: Sequence[_Trace], inputs: list[list[Any]], kind_of_replica: tuple[int, ...]
) -> list[Any]:
    if len(traces) == 1:
        return call_jaxpr(traces[0].jaxpr, inputs[0], "replica")
    first = traces[0]
    num_common = len(first.written) + first.num_uniform
    outs = run_in_lockstep(
        [ClosedJaxpr(trace.jaxpr, ()) for trace in traces],
        inputs,
        kind_of_replica,
        axis=REPLICA_AXIS,
        shared_outputs=range(num_common),
    )
    kind = jnp.asarray(np.asarray(kind_of_replica, np.int32))[lax.axis_index(REPLICA_AXIS)]
    varying = [
        lax.select_n(kind, *_padded(values))
        for values in zip(*(row[num_common:] for row in outs), strict=True)
    ]
    return [*outs[0][:num_common], *varying]


def _shapes_by_replica(
    traces: Sequence[_Trace], kind_of_replica: tuple[int, ...]
) -> list[tuple[Shape, ...]]:
    rows = list(zip(*(trace.varying_shapes for trace in traces), strict=True))
    for row in rows:
        if len({len(shape) for shape in row}) > 1:
            raise TraceError(
                f"the replica function returned values of different rank, with shapes {row}. "
                "Return values of one rank from every replica."
            )
    return [tuple(row[kind] for kind in kind_of_replica) for row in rows]


def _padded(values: Sequence[jax.Array]) -> list[jax.Array]:
    largest = tuple(map(max, zip(*(value.shape for value in values), strict=True)))
    dtype = jnp.result_type(*values)
    return [
        lax.pad(
            value.astype(dtype),
            jnp.zeros((), dtype),
            [(0, most - size, 0) for size, most in zip(value.shape, largest, strict=True)],
        )
        for value in values
    ]


def without_devices(jaxpr: Any) -> Any:
    """`jaxpr` with runs that go where their inputs are, for programs on JAX's default device."""

    def changed(eqn: Any) -> Any:
        if eqn.primitive.name != "shard_map":
            return eqn
        return eqn.replace(params={**eqn.params, "mesh": eqn.params["mesh"].abstract_mesh})

    return rewritten(jaxpr, changed)
