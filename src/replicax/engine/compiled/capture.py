"""A replica function inside the trace of a ``function``: variables in, variables out.

Enters the replica context, lets `engine.trace.spmd` trace the function for all
replicas, and turns what it returned into values of the surrounding trace.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from replicax.backend import placement
from replicax.backend.mesh import ReplicaMesh
from replicax.core import nest
from replicax.core.errors import DistributedValueError, TraceError
from replicax.core.options import RunOptions
from replicax.core.tracebacks import VALUE_NEEDED, argument_names, name_arguments
from replicax.engine.compiled.peers import TracedPeers
from replicax.engine.contexts import stack
from replicax.engine.contexts.replica import ReplicaContext
from replicax.engine.protocols import StrategyLike
from replicax.engine.trace.frame import Frame, current_frame
from replicax.engine.trace.spmd import Argument, Emitted, Outputs, Variant, trace_replicas
from replicax.jax_internals.traces import is_traced_inside
from replicax.values.distributed import ComponentView, Mirrored, PerReplica
from replicax.values.leaves import Leaf, leaf_kind
from replicax.values.regroup import same_python_value, select


@dataclasses.dataclass(frozen=True, slots=True)
class _Result:
    """How to make one leaf of the run's result.

    Attributes:
        kind: "object" (as it is), "argument", "mirrored", "bare" or "varying".
        value: The object, or an index: of the argument, or of the output. Before the output has
            one, the number that `TracedPeers` gave to what is mirrored or bare.
    """

    kind: str
    value: Any = None


class _OuterState:
    """The state of the surrounding trace, for `engine.trace.spmd`."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def read(self, key: Any) -> Any:
        return self._frame.read(key)

    def write(self, key: Any, value: Any) -> None:
        if not key.has_value and key not in self._frame.cells:
            self._frame.adopt(key, value)  # created by this very trace: there is no old value
        else:
            self._frame.write(key, value)


def run_traced(
    strategy: StrategyLike,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    frame: Frame,
    options: RunOptions,
) -> Any:
    """Runs `fn` on every replica, as part of the program that `frame` is the trace of."""
    mesh, reduction = strategy.extended.mesh, strategy.extended._reduction
    leaves, structure = nest.flatten((args, kwargs))
    paths = [path for path, _ in nest.leaves_with_path((args, kwargs))]
    arguments = {
        index: argument
        for index, (path, leaf) in enumerate(zip(paths, leaves, strict=True))
        if (argument := _as_argument(leaf, path)) is not None
    }
    plan: list[Any] = []
    frames: list[Frame] = []

    def body(args: list[Any], variant: Variant) -> Outputs:
        local = args
        peers = TracedPeers(strategy, mesh, variant, reduction)
        context = ReplicaContext._of(strategy, peers)
        mine = list(leaves)
        for index, value in zip(arguments, local, strict=True):
            mine[index] = value
        own_args, own_kwargs = nest.unflatten(structure, mine)
        try:
            entry = stack.Entry(strategy, stack.Mode.REPLICA, context)
            with stack.replaced_by(entry), jax.named_scope(getattr(fn, "__name__", "run")):
                result = fn(*own_args, **own_kwargs)
        finally:
            context._end()
        own = {id(value): index for index, value in zip(arguments, local, strict=True)}
        inner = current_frame()
        assert inner is not None
        result = result, [values for _, values in inner.asides]
        results, result_structure, outputs = _classify(result, own, peers, variant)
        created = list(inner.created)
        outputs.uniform.extend(value for _, value in created if value is not None)
        plan[:] = [results, result_structure, created, [take for take, _ in inner.asides]]
        return outputs

    frame.meshes.append(mesh)
    frame.compiler_options.update(options.experimental_xla_options or {})

    def name_of(number: int) -> str:
        index = list(arguments)[number]
        names = argument_names(fn, *nest.unflatten(structure, range(len(leaves))))
        return "".join(names.get(index, (paths[index],)))

    try:
        emitted = trace_replicas(body, list(arguments.values()), mesh, _OuterState(frame), frames)
    except VALUE_NEEDED as error:
        name_arguments(error, fn, name_of)
        raise
    results, result_structure, created, takers = plan
    pending = sum(value is not None for _, value in created)
    initial = iter(emitted.uniform[len(emitted.uniform) - pending :])
    frame.created.extend(
        (variable, None if value is None else next(initial)) for variable, value in created
    )
    merged = [_outer_value(result, emitted, leaves, mesh) for result in results]
    result, asides = nest.unflatten(result_structure, merged)
    if asides and not frame.is_own_level():
        raise TraceError(
            "a summary was recorded in a run inside a loop or a branch, from which it does not "
            "leave. Return the value from run, and record it outside."
        )
    frame.asides.extend(zip(takers, asides, strict=True))
    return result


def _as_argument(leaf: Any, path: str) -> Argument | None:
    """The array argument that `leaf` becomes, or None if it is passed as it is."""
    name = f"the argument of run at {path}"
    match leaf_kind(leaf):
        case Leaf.PER_REPLICA:
            return Argument(leaf._as_packed(name), leaf.shapes)
        case Leaf.MIRRORED:
            return Argument(placement.narrowed(leaf._replicated(name), name))
        case Leaf.JAX_ARRAY | Leaf.TRACER:
            fitting = placement.narrowed(leaf, name)
            return Argument(placement.uncommitted_argument(fitting, lambda: name))
        case Leaf.HOST_ARRAY if placement.is_array_like(leaf):
            return Argument(placement.narrowed(leaf, name))
        case Leaf.HOST_ARRAY:
            raise DistributedValueError(
                f"{name} is a host array of dtype {leaf.dtype}, which cannot enter a compiled run. "
                "Call run outside function, or convert it to numbers."
            )
    return None


def _classify(
    result: Any, arguments: dict[int, int], peers: TracedPeers, variant: Variant
) -> tuple[list[_Result], Any, Outputs]:
    """What each leaf of a replica's result is, the same for every variant."""
    leaves, structure = nest.flatten(result)
    structures = variant.exchange(structure)
    nest.require_same_structure(structures)
    outputs = Outputs([], [])
    results = []
    for leaf in leaves:
        found = _classify_leaf(leaf, arguments, peers)
        others = variant.exchange(found)
        if any(other.kind != found.kind for other in others):
            found = _Result("varying")
        elif found.kind == "object":
            found = _common_object(found, others, variant)
        elif any(other.value != found.value for other in others):
            found = _Result("varying")
        if found.kind in ("mirrored", "bare"):
            found = _Result(found.kind, len(outputs.uniform))
            outputs.uniform.append(leaf)
        elif found.kind == "varying":
            found = _Result("varying", len(outputs.varying))
            outputs.varying.append(leaf)
        results.append(found)
    return results, structure, outputs


def _classify_leaf(leaf: Any, arguments: dict[int, int], peers: TracedPeers) -> _Result:
    if isinstance(leaf, ComponentView):
        return _Result("object", leaf._owner)
    if id(leaf) in arguments and isinstance(leaf, Tracer):
        return _Result("argument", arguments[id(leaf)])
    if (number := peers.number_of_mirrored(leaf)) is not None:
        return _Result("mirrored", number)
    if (number := peers.number_of_shared(leaf)) is not None:
        return _Result("bare", number)
    kind = leaf_kind(leaf)
    # A tracer of an outer trace was captured: one object for all replicas.
    is_own = kind is Leaf.HOST_ARRAY or (kind is Leaf.TRACER and is_traced_inside(leaf))
    return _Result("varying") if is_own else _Result("object", leaf)


def _common_object(found: _Result, others: list[_Result], variant: Variant) -> _Result:
    values = [other.value for other in others]
    if all(value is found.value for value in values) or same_python_value(values):
        return found
    if all(placement.is_array_like(value) for value in values):
        return _Result("varying")
    return _Result("per kind", (values, variant.kind_of_replica))


def _outer_value(result: _Result, emitted: Emitted, leaves: list[Any], mesh: ReplicaMesh) -> Any:
    match result.kind:
        case "argument":
            value = leaves[result.value]
            return select(value, 0) if mesh.num_replicas == 1 else value
        case "mirrored":
            array = emitted.uniform[result.value]
            return Mirrored(mesh, array=array) if mesh.num_replicas > 1 else array
        case "bare":
            return emitted.uniform[result.value]
        case "varying":
            array, shapes = emitted.varying[result.value], emitted.shapes[result.value]
            if mesh.num_replicas == 1:
                return jnp.reshape(array, shapes[0])
            return PerReplica(mesh, packed=array, shapes=shapes)
        case "per kind":
            values, kinds = result.value
            here = [values[kinds[replica_id]] for replica_id in mesh.local_replicas]
            return PerReplica(mesh, components=here)
    return result.value
