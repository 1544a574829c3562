"""One compiled program: a traced function, its variables, and how to launch it.

Variables that it writes are donated inputs and come back as outputs; those it
only reads are plain inputs. A step is: collect buffers, launch, store buffers,
wrap the results.
"""

from __future__ import annotations

import dataclasses
import hashlib
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from replicax.backend import comparing, placement, workers
from replicax.backend.digests import digest
from replicax.backend.mesh import ReplicaMesh
from replicax.backend.runahead import RUN_AHEAD
from replicax.core import nest, recording
from replicax.core.errors import TraceError
from replicax.engine.analysis.varying import refuse_repeated_writes
from replicax.engine.functions.arguments import PassedThrough
from replicax.engine.functions.launching import Launcher, compile_lowered
from replicax.engine.storage import COUNTS, Storage
from replicax.engine.trace.frame import Frame, StateKey
from replicax.engine.trace.host_calls import HostCalls, has_host_calls
from replicax.engine.trace.host_loop import HostLoopRequired
from replicax.engine.trace.spmd import without_devices
from replicax.jax_internals import arrays as jax_arrays
from replicax.jax_internals.programs import Literal, eval_jaxpr, sub_jaxprs
from replicax.jax_internals.traces import trace_settings
from replicax.values.distributed import Mirrored, PerReplica
from replicax.values.leaves import Leaf, leaf_kind

LARGEST_TOKEN = 4 * 2**20  # bytes; as many as there are programs in flight are kept
_ONE_LEAF = nest.flatten(0)[1]


@dataclasses.dataclass(slots=True)
class TracedFunction:
    """What tracing a function gave.

    Attributes:
        jaxpr: The program, over state, then arguments; writes, then results, then what was emitted.
        consts: Its constants.
        frame: The state it touched.
        results: For each leaf of the result an index of an output and how to
            wrap it, or the leaf itself.
        structure: The structure of the result.
    """

    jaxpr: Any
    consts: Sequence[Any]
    frame: Frame
    results: list[_Output | TracedObject]
    structure: Any
    num_outputs: int

    @property
    def mesh(self) -> ReplicaMesh | None:
        """The devices the program runs on; None for one default device."""
        meshes = list(self.frame.meshes)
        meshes += [key.mesh for key in self.frame.entered if isinstance(key, Storage) and key.mesh]
        distinct = list(dict.fromkeys(meshes))
        if len(distinct) > 1:
            raise TraceError(
                "one function uses variables or runs of strategies on different devices: "
                f"{[mesh.devices for mesh in distinct]}. Use one strategy in one function."
            )
        return distinct[0] if distinct else None


@dataclasses.dataclass(frozen=True, slots=True)
class _Output:
    """A leaf of the result that the program computes."""

    index: int
    mesh: ReplicaMesh | None
    shapes: Any
    mirrored: bool

    @property
    def is_bare(self) -> bool:
        return self.shapes is None and not self.mirrored

    def wrapper(self) -> Callable[[jax.Array], Any]:
        """What the array becomes outside the program; made once, called every step."""
        mesh = self.mesh
        assert mesh is not None
        if self.mirrored:
            return Mirrored._maker(mesh)
        return PerReplica._maker(mesh, self.shapes)


@dataclasses.dataclass(frozen=True, slots=True)
class TracedObject:
    """A leaf of the result that is known while tracing."""

    value: Any


def trace_function(
    call: Callable[[list[Any]], Any], arrays: Sequence[Any], meshes: Sequence[ReplicaMesh]
) -> TracedFunction:
    """Traces ``call(arrays)``, whose arguments live on `meshes`.

    Raises:
        HostLoopRequired: If it must run as Python; what it created has its initial values.
    """
    frame = Frame(in_replica=False)
    frame.meshes.extend(meshes)
    box: list[Any] = []
    dropped: list[HostLoopRequired] = []

    def traced(*arrays: Any) -> Any:
        with frame.tracing():
            try:
                result = call(list(arrays))
            except HostLoopRequired as error:
                result = None
                dropped.append(error)
            if frame.asides and not dropped:
                result = result, [values for _, values in frame.asides]
            leaves, structure = nest.flatten(result)
            outputs: list[Any] = []
            results = [_classify(leaf, outputs) for leaf in leaves]
            initial = [value for _, value in frame.created if value is not None]
            emitted = [value for _, value in frame.emitted]
            written = frame.written_values()
        box.extend((results, structure, len(outputs)))
        return written, outputs, emitted, initial

    closed = jax.make_jaxpr(traced)(*arrays)
    results, structure, num_outputs = box
    jaxpr = frame.program(closed.jaxpr)
    refuse_repeated_writes(jaxpr)
    traced_function = TracedFunction(jaxpr, closed.consts, frame, results, structure, num_outputs)
    for error in dropped:
        initial_values(traced_function, arrays)  # the user may have kept what was created
        raise error
    return traced_function


def _classify(leaf: Any, outputs: list[Any]) -> _Output | TracedObject:
    match leaf_kind(leaf):
        case Leaf.PER_REPLICA if leaf._is_traced:
            outputs.append(leaf._as_packed())
            return _Output(len(outputs) - 1, leaf.mesh, leaf.shapes, False)
        case Leaf.MIRRORED if isinstance(leaf._replicated(), Tracer):
            outputs.append(leaf._replicated())
            return _Output(len(outputs) - 1, leaf.mesh, None, True)
        case Leaf.TRACER | Leaf.HOST_ARRAY:
            outputs.append(jnp.asarray(leaf))
            return _Output(len(outputs) - 1, None, None, False)
    return TracedObject(leaf)


def initial_values(traced: TracedFunction, arrays: Sequence[Any]) -> None:
    """Gives the variables that the trace created their initial values.

    Those that were computed by the trace are computed now, by a program that does
    nothing else.
    """
    pending = [variable for variable, value in traced.frame.created if value is not None]
    if not pending:
        return
    first = len(traced.jaxpr.outvars) - len(pending)
    jaxpr = traced.jaxpr.replace(outvars=traced.jaxpr.outvars[first:])

    def compute(consts: list[Any], state: list[Any], arrays: Sequence[Any]) -> Any:
        values = eval_jaxpr(jaxpr, consts, *state, *arrays)
        return jnp.zeros((), jnp.int32), values

    mesh = traced.mesh
    shardings = None if mesh is None else mesh.replicated
    state = [_state_or_zeros(key) for key in traced.frame.entered]
    program = jax.jit(compute, out_shardings=shardings)
    values = RUN_AHEAD.launch(program, list(traced.consts), state, list(arrays))
    for variable, value in zip(pending, values, strict=True):
        variable._storage.set_value(placement.one_device(value) if mesh is not None else value)


def _state_or_zeros(key: StateKey) -> Any:
    assert isinstance(key, Storage)
    return key.live_array() if key.has_value else jnp.zeros(key.global_shape, key.dtype)


def _token_among(outputs: Sequence[Any], jaxpr: Any) -> int:
    """Which output tells that a step is done; the number of outputs if it needs one more.

    An output of its own for this costs a step of small programs 5 to 10 percent. The
    smallest result serves as well. A large one would be kept alive by it, and what a call
    or a loop gives may be an input that JAX passes through it.
    """
    computed = {
        variable
        for equation in jaxpr.eqns
        if equation.primitive.name == "shard_map" or not sub_jaxprs(equation.params)
        for variable in equation.outvars
        if not jnp.issubdtype(variable.aval.dtype, jax.dtypes.extended)
    }
    sizes = {
        index: variable.aval.size * variable.aval.dtype.itemsize
        for index, variable in enumerate(outputs)
        # A constant cannot even be looked up.
        if not isinstance(variable, Literal) and variable in computed
    }
    index = min(sizes, key=sizes.__getitem__, default=len(outputs))
    return index if sizes.get(index, 0) <= LARGEST_TOKEN else len(outputs)


def _captured(array: jax.Array) -> Storage:
    """An array over several workers that the function captured: JAX wants it as an input."""
    storage = Storage("a captured value", array.shape, array.dtype)
    storage.array, storage.handed_out = array, True
    return storage


def _is_global(array: Any) -> bool:
    return isinstance(array, jax.Array) and not array.is_fully_addressable


class SettingsChanged(Exception):
    """JAX would trace differently now than when the program was traced, so it is another one."""


class Program:
    """A traced function, ready to be launched again and again.

    Attributes:
        mesh: The devices it runs on; None for one default device.
        returns_arguments: Whether an argument comes back as it was passed.
        per_replica_outputs: Which of its outputs, after the variables, each replica has its own of.
        launcher: Runs it once; gives its outputs.
        finish: Makes the result of the function from the outputs.
        only_result: What `finish` does, if it makes the result of one of the outputs: how, and of
            which one.
    """

    def __init__(self, traced: TracedFunction, *, name: str, donate: bool) -> None:
        """Prepares `traced`, of a function of this `name`; the first launch compiles it."""
        self._name = name
        written = set(traced.frame.written)
        state = [key for key in traced.frame.entered if isinstance(key, Storage)]
        self._written = [key for key in state if key in written]
        captured = {i: _captured(c) for i, c in enumerate(traced.consts) if _is_global(c)}
        self._read = [key for key in state if key not in written] + list(captured.values())
        self._structure = traced.structure
        self._results = traced.results
        self._takers = [take for take, _ in traced.frame.asides]
        self.returns_arguments = any(
            isinstance(result, TracedObject) and isinstance(result.value, PassedThrough)
            for result in traced.results
        )
        self.per_replica_outputs = frozenset(
            result.index
            for result in traced.results
            if isinstance(result, _Output) and result.shapes is not None
        )
        self.mesh = traced.mesh
        outputs = traced.jaxpr.outvars[len(self._written) :][: traced.num_outputs]
        token = _token_among(outputs, traced.jaxpr)
        self._num_results = max(traced.num_outputs, token + 1)
        jaxpr, host_calls = self._guarded(traced)
        self._freed_seen = -1  # how many variables had gone when `is_alive` last looked
        self.finish: Callable[[list[jax.Array]], Any] | None = None  # known after a first launch
        self.only_result: tuple[Callable[[jax.Array], Any], int] | None = None
        self.launcher = Launcher(
            self._jitted(traced, jaxpr, captured, donate=donate),
            self._written,
            self._read,
            token_at=token - self._num_results,
            donates=donate,
            strays=[
                key
                for key in self._written
                if key.mesh is None and (self.mesh is not None or key.home is not None)
            ],
            host_calls=host_calls,
        )

    def _guarded(self, traced: TracedFunction) -> tuple[Any, HostCalls | None]:
        """The trace, with host callbacks that cannot make devices wait for each other."""
        jaxpr, mesh = traced.jaxpr, self.mesh
        if mesh is None or mesh.mesh.size == 1 or not has_host_calls(jaxpr):
            return jaxpr, None
        calls = HostCalls(self._name)
        return calls.guarded(jaxpr), calls

    def _jitted(
        self, traced: TracedFunction, jaxpr: Any, captured: dict[int, Storage], *, donate: bool
    ) -> Any:
        """The program as `jit` has it: over written and read variables and arguments."""
        order = {key: index for index, key in enumerate([*self._written, *self._read])}
        positions = [order[key] for key in traced.frame.entered if isinstance(key, Storage)]
        outputs_of = {key: index for index, key in enumerate(traced.frame.written)}
        written_at = [outputs_of[key] for key in self._written]
        num_written = len(written_at)
        last = num_written + traced.num_outputs
        consts = list(enumerate(traced.consts))
        captured_at = {index: order[key] for index, key in captured.items()}
        has_token = self._num_results == traced.num_outputs
        options = dict(traced.frame.compiler_options) or None
        mesh = self.mesh if self.mesh is not None and not self.mesh.is_default else None
        if mesh is None and self.mesh is not None:
            jaxpr = without_devices(jaxpr)
        outputs = [None if mesh is None else mesh.replicated] * self._num_results
        for result in traced.results:
            if mesh is not None and isinstance(result, _Output) and result.shapes is not None:
                outputs[result.index] = mesh.per_replica
        settings: dict[str, Any] = {}

        def replay(written: list[Any], read: list[Any], arrays: list[Any]) -> Any:
            # JAX calls this again when its settings have changed; nobody looks before.
            if settings.setdefault("first", trace_settings()) != trace_settings():
                raise SettingsChanged
            state = [*written, *read]
            values = [state[captured_at[i]] if i in captured_at else c for i, c in consts]
            outs = eval_jaxpr(jaxpr, values, *(state[i] for i in positions), *arrays)
            token = [] if has_token else [jnp.zeros((), jnp.int32)]
            return [*(outs[i] for i in written_at), *outs[num_written:last], *token]

        # What profilers show for it; XLA's module is named after it.
        replay.__name__ = replay.__qualname__ = self._name.rpartition(".")[2]
        layouts = None
        if mesh is not None:
            layouts = [key.sharding or mesh.replicated for key in self._written] + outputs
        return jax.jit(
            replay,
            donate_argnums=(0,) if donate else (),
            out_shardings=layouts,
            compiler_options=options,
        )

    def lives(self) -> list[object]:
        """An object for each of its variables that goes when the variable does."""
        return [key.life for key in (*self._written, *self._read)]

    def is_alive(self) -> bool:
        """Whether it can be used: all its variables exist, and its compilation was not interrupted.

        Looks at the variables only after one has gone.

        Raises:
            LostVariableError: If one was lost in a failed execution.
        """
        if self.launcher.is_spoilt:
            return False
        freed = COUNTS.freed + RUN_AHEAD.num_failures
        if freed != self._freed_seen:
            if not all(key.is_alive() for key in (*self._written, *self._read)):
                return False
            self._freed_seen = freed
        return True

    def run(self, arrays: list[Any]) -> Any:
        """One step: launches the program and makes the result of the function."""
        if self.finish is not None:
            return self.finish(self.launcher.launch(arrays))
        with recording.within(recording.COMPILING):
            if self.mesh is not None and self.mesh.spans_workers:
                self._agree_with_other_workers(arrays)
            outputs = self.launcher.launch(arrays)
            self.finish = self._finisher(outputs)
        return self.finish(outputs)

    def _agree_with_other_workers(self, arrays: list[Any]) -> None:
        """Raises where the workers would launch different programs, which would hang.

        Compiles first, so that no worker waits in a collective for the compiler of another.
        """
        lowered = self.launcher.lowered(arrays)
        compile_lowered(lowered)
        program = hashlib.blake2b(lowered.as_text().encode(), digest_size=16).hexdigest()
        names = [key.name for key in (*self._written, *self._read)]
        group = workers.require()
        group.agree(
            f"the program of {self._name}",
            [names, program],
            "All workers must compile the same steps in the same order, with the same constants "
            "and shapes. Look for code that depends on the worker.",
        )
        here = [index for index, array in enumerate(arrays) if not _is_global(array)]
        what = f"what is passed to every replica of {self._name}"
        group.agree(
            what,
            [digest(arrays[index]) for index in here],
            "An argument that is no per-replica value must be the same on all workers. Pass "
            "strategy.reduce(...) of it, or a per-replica value.",
        )
        if here:
            series = comparing.Series(what)
            self.launcher.watch(lambda arrays: series.note([arrays[index] for index in here]))

    def _finisher(self, outputs: list[jax.Array]) -> Callable[[list[jax.Array]], Any]:
        """How outputs like these become the result; hands on what leaves beside it."""
        finish, takers = self._result_maker(outputs), self._takers
        if not takers:
            return finish

        def finish_and_hand_on(outputs: list[jax.Array]) -> Any:
            result, asides = finish(outputs)
            for take, values in zip(takers, asides, strict=True):
                take(values)
            return result

        return finish_and_hand_on

    def _result_maker(self, outputs: list[jax.Array]) -> Callable[[list[jax.Array]], Any]:
        """How outputs like these become the result."""
        first = -self._num_results
        wraps = [
            (None, result.value)
            if isinstance(result, TracedObject)
            else (self._wrapper(outputs[first + result.index], result), first + result.index)
            for result in self._results
        ]
        structure, (wrap, value) = self._structure, (wraps or [(None, None)])[0]
        if structure != _ONE_LEAF:
            return lambda outputs: nest.unflatten(
                structure,
                [at if wrap is None else wrap(outputs[at]) for wrap, at in wraps],
            )
        if wrap is None:
            return lambda outputs: value
        if wrap is _as_it_is:
            return operator.itemgetter(value)
        self.only_result = wrap, value
        return lambda outputs: wrap(outputs[value])

    def _wrapper(self, example: jax.Array, result: _Output) -> Callable[[jax.Array], Any]:
        if not result.is_bare:
            return result.wrapper()
        if self.mesh is None:
            return _as_it_is
        if jnp.issubdtype(example.dtype, jax.dtypes.extended):
            return placement.one_device
        take_first, is_committed = jax_arrays.uncommitted_first(example), jax_arrays.is_committed
        if example.committed:
            return take_first
        return lambda array: take_first(array) if is_committed(array) else array


def _as_it_is(array: jax.Array) -> jax.Array:
    return array
