"""`StepProgram`: what one step sends, keeps and computes, from its program, without running it.

A step is traced as its next call would trace it, and the program is kept for that call; so a step
that was inspected runs as if nobody had looked. The trace tells the collectives, the operations
and the state. Compiling it tells what XLA makes of these, and its memory.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from replicax.backend.mesh import ReplicaMesh
from replicax.core.errors import ContextError
from replicax.costs.arithmetic import Arithmetic, count_arithmetic, kept_for_backward
from replicax.costs.collectives import Collective, as_compiled
from replicax.costs.compiled import Compiled, read_compiled
from replicax.costs.primitives import num_bytes
from replicax.costs.traced import HostCall, read_trace
from replicax.engine.functions.call_site import Prepared
from replicax.engine.functions.function import Function, function
from replicax.engine.functions.program import Program
from replicax.engine.run import prepare
from replicax.engine.storage import Storage
from replicax.strategies.base import Strategy
from replicax.strategies.extended import StrategyExtended
from replicax.values.leaves import Leaf, leaf_kind
from replicax.variables.registry import owners
from replicax.variables.variable import Variable

COPIED = "a copy on every replica"
OF_EACH = "a value of each replica"
IN_PARTS = "split over the replicas"
IN_PIECES = "cut over the logical devices"
AT_HOME = "on one device"


@dataclasses.dataclass(frozen=True, slots=True)
class StepState:
    """A variable that a step uses.

    Attributes:
        name: Its name.
        slot_of: The name of the variable that an optimizer keeps it for; None for other variables.
        shape: The shape of its whole value.
        dtype: The type.
        num_bytes: The bytes of the whole value.
        device_bytes: The bytes that one device holds of it.
        layout: Where it is, one of the constants of this module.
        is_trainable: Whether gradients are usually taken with respect to it.
        is_written: Whether the step writes it.
    """

    name: str
    slot_of: str | None
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    device_bytes: int
    layout: str
    is_trainable: bool
    is_written: bool


@dataclasses.dataclass(frozen=True, slots=True)
class StepArgument:
    """An array that is passed to a step.

    Attributes:
        name: The parameter, and where in it.
        shape: The shape: of a per-replica value, of all components together.
        dtype: The type.
        device_bytes: The bytes that one device holds of it.
        is_per_replica: Whether each replica has its own part; the others are whole on each.
        is_from_host: Whether each call sends it to the devices, because it is a host array.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    device_bytes: int
    is_per_replica: bool
    is_from_host: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Memory:
    """What one device holds while the step runs, in bytes.

    Attributes:
        variables: Variables, without those in `slots`.
        slots: What optimizers keep for variables.
        arguments: What is passed to the step.
        constants: Arrays that the function has captured, which XLA does not count.
        outputs: What the step returns, and new values of variables that are not donated. Once the
            program is compiled it is XLA's number, with 8 bytes for the address of each output.
        temporaries: What XLA needs between: activations, gradients, scratch. None before the
            program is compiled.
        activations: What the trace keeps of the forward pass for the backward pass; XLA has it
            among its temporaries, or computes it again.
        code: The program itself, where the platform counts it.
    """

    variables: int
    slots: int
    arguments: int
    constants: int
    outputs: int
    temporaries: int | None
    activations: int
    code: int = 0

    @property
    def state(self) -> int:
        """All variables."""
        return self.variables + self.slots

    @property
    def total(self) -> int:
        """All of it; before the program is compiled, with the activations for its temporaries."""
        between = self.activations if self.temporaries is None else self.temporaries
        held = self.state + self.arguments + self.constants + self.outputs
        return held + between + self.code


@dataclasses.dataclass(frozen=True, slots=True)
class StepProgram:
    """What is known of the program of one step.

    Attributes:
        name: The name of the function.
        strategy: The strategy whose replicas it runs on, as text.
        num_replicas: How many replicas there are.
        num_logical_devices: How many devices each of them spans.
        num_workers: How many processes have some of the devices.
        traced_collectives: What the trace asks for, in its order.
        collectives: What the compiled program sends; before it is compiled, the same.
        host_calls: Callbacks to Python.
        arithmetic: What the trace computes, on one replica.
        state: The variables that the step uses; those it writes come first.
        arguments: The arrays that are passed to it.
        memory: What one device holds.
        donates: Whether the new values of variables take the place of the old ones.
        num_traces: How often the Python function has been traced so far, its ``trace_count``.
        num_programs: How many programs it has had; one that creates variables in its first call
            is traced twice for one program.
        retraces: Why it needed another program, the last reasons, oldest first.
        compiled: What XLA says; None before the program is compiled.
    """

    name: str
    strategy: str
    num_replicas: int
    num_logical_devices: int
    num_workers: int
    traced_collectives: tuple[Collective, ...]
    collectives: tuple[Collective, ...]
    host_calls: tuple[HostCall, ...]
    arithmetic: Arithmetic
    state: tuple[StepState, ...]
    arguments: tuple[StepArgument, ...]
    memory: Memory
    donates: bool
    num_traces: int
    num_programs: int
    retraces: tuple[str, ...]
    compiled: Compiled | None

    @property
    def num_devices(self) -> int:
        """How many devices the program runs on."""
        return self.num_replicas * self.num_logical_devices

    @property
    def ring_bytes(self) -> float:
        """What each device sends in a step, at least, when all collectives use rings."""
        return sum(one.times * one.ring().num_bytes for one in self.collectives)

    @property
    def tree_bytes(self) -> float:
        """What the busiest device sends in a step, at least, when all collectives use trees."""
        return sum(one.times * one.tree().num_bytes for one in self.collectives)


def inspect_step(
    step: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    strategy: Strategy | None = None,
    compiles: bool = True,
) -> StepProgram:
    """What is known of the program of ``step(*args)``, or of ``strategy.run(step, args)``.

    Args:
        step: A ``function``, or any function, which is then seen as if it were one.
        args: Its arguments.
        kwargs: The same by keyword.
        strategy: Whose replicas would run it; None for a call as it stands.
        compiles: Whether the program is compiled, too, which the memory between its inputs and
            outputs and the collectives of logical devices need.

    Returns:
        The facts. The program is kept for the next call of `step`.

    Raises:
        TypeError: If `step` cannot be called, or `strategy` is no strategy.
        ContextError: Where there is no single program: in a step, while functions run as plain
            Python, for a function that goes through a dataset, and under a strategy whose replicas
            do not run one program together.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     w = rx.Variable([1.0, 2.0, 3.0], name="w")
        >>> def replica_step(x):
        ...     gradient = rx.grad(lambda: (x * w).sum(), w)
        ...     return rx.get_replica_context().all_reduce("SUM", gradient)
        >>> def step(x):
        ...     w.assign_sub(strategy.run(replica_step, args=(x,)))
        >>> batch = strategy.distribute_batch([[1.0] * 3] * 4)
        >>> found = inspect_step(step, (batch,))
        >>> [(c.kind, c.num_bytes, c.variables) for c in found.collectives]
        [('all-reduce', 12, ('w',))]
        >>> found.memory.variables, found.memory.arguments
        (12, 24)
    """
    fn, strategy = _checked(step, strategy)
    prepared = prepare(strategy, fn, tuple(args), dict(kwargs or {}))
    program = prepared.program
    trace = program.launcher.traced(prepared.arrays)
    found = _of_trace(fn, strategy, prepared, trace.jaxpr)
    if not compiles:
        return found
    compiled = read_compiled(trace.lower().compile(), num_logical_devices=found.num_logical_devices)
    planned = compiled.memory
    memory = dataclasses.replace(
        found.memory,
        outputs=planned.outputs - planned.donated,
        temporaries=planned.temporaries,
        code=planned.code,
    )
    return dataclasses.replace(
        found,
        collectives=as_compiled(found.traced_collectives, compiled.collectives),
        memory=memory,
        compiled=compiled,
    )


def _checked(
    step: Callable[..., Any], strategy: Strategy | None
) -> tuple[Function[..., Any], Strategy | None]:
    if strategy is not None and not isinstance(strategy, Strategy):
        raise TypeError(
            f"strategy is {strategy!r}; expected the strategy that would run the step, or None for "
            "a step that is called as it is."
        )
    if strategy is not None and type(strategy.extended).run is not StrategyExtended.run:
        raise ContextError(
            f"{strategy!r} runs functions in a way of its own, and not as one program for all "
            "replicas. Explain the step under a strategy whose replicas run in step, such as "
            "MirroredStrategy."
        )
    return function(step), strategy


def _of_trace(fn: Function[..., Any], strategy: Any, prepared: Prepared, jaxpr: Any) -> StepProgram:
    """What the traced program tells."""
    launcher = prepared.program.launcher
    written, read = launcher._written, launcher._read
    mesh = prepared.program.mesh
    num_replicas = 1 if mesh is None else mesh.num_replicas
    names = dict(enumerate(key.name for key in (*written, *read)))
    variables = owners()
    state = tuple(
        _state_of(key, variables.get(key), is_written=i < len(written))
        for i, key in enumerate((*written, *read))
    )
    served = {i: key.name for i, key in enumerate(written) if state[i].slot_of is None}
    traced = read_trace(jaxpr, names, served or {i: key.name for i, key in enumerate(written)})
    passed = tuple(
        _argument_of(array, leaf, name)
        for array, leaf, name in zip(prepared.arrays, prepared.given, prepared.names, strict=True)
    )
    results = _result_bytes(prepared.program, jaxpr.jaxpr, num_replicas)
    if not launcher._donates:
        results += sum(one.device_bytes for one in state if one.is_written)
    memory = Memory(
        variables=sum(one.device_bytes for one in state if one.slot_of is None),
        slots=sum(one.device_bytes for one in state if one.slot_of is not None),
        arguments=sum(one.device_bytes for one in passed),
        constants=sum(_nbytes(const) for const in jaxpr.consts),
        outputs=results,
        temporaries=None,
        activations=kept_for_backward(jaxpr),
    )
    num_programs, retraces = fn._site.history(fn.python_function)
    if strategy is None:
        owned = (variables[key].strategy for key in (*written, *read) if key in variables)
        strategy = next((one for one in owned if one is not None), None)
    return StepProgram(
        name=getattr(fn.python_function, "__qualname__", repr(fn.python_function)),
        strategy="no strategy" if mesh is None else _name_of(strategy, mesh),
        num_replicas=num_replicas,
        num_logical_devices=1 if mesh is None else mesh.num_logical_devices,
        num_workers=1 if mesh is None else len({d.process_index for d in mesh.devices}),
        traced_collectives=traced.collectives,
        collectives=traced.collectives,
        host_calls=traced.host_calls,
        arithmetic=count_arithmetic(jaxpr),
        state=state,
        arguments=passed,
        memory=memory,
        donates=launcher._donates,
        num_traces=fn.trace_count,
        num_programs=num_programs,
        retraces=retraces,
        compiled=None,
    )


def _state_of(key: Storage, variable: Variable | None, *, is_written: bool) -> StepState:
    whole = math.prod(key.shape) * key.dtype.itemsize
    layout, here = COPIED, whole
    if key.layout is not None:
        layout, here = IN_PARTS, key.layout.part_size * key.dtype.itemsize
    elif key.mesh is None:
        layout = AT_HOME
    elif key.spec is not None:
        layout = IN_PIECES
        sharding = key.sharding
        assert sharding is not None
        here = math.prod(sharding.shard_shape(key.global_shape)) * key.dtype.itemsize
    elif key.per_replica:
        layout = OF_EACH
    return StepState(
        key.name,
        None if variable is None else variable._slot_of,
        tuple(key.shape),
        str(key.dtype),
        whole,
        here,
        layout,
        variable is not None and variable.trainable,
        is_written,
    )


def _argument_of(array: Any, leaf: Any, name: str) -> StepArgument:
    kind = leaf_kind(leaf)
    shape, dtype = tuple(getattr(array, "shape", ())), getattr(array, "dtype", None)
    here = shape
    if isinstance(array, jax.Array):
        here = array.sharding.shard_shape(shape)
    held = jax.dtypes.canonicalize_dtype(type(array)) if dtype is None else dtype
    return StepArgument(
        name,
        shape,
        str(held),
        math.prod(here) * held.itemsize,
        kind is Leaf.PER_REPLICA,
        kind is Leaf.HOST_ARRAY or dtype is None,
    )


def _result_bytes(program: Program, jaxpr: Any, num_replicas: int) -> int:
    """The bytes of the results on one device; new values of variables are none."""
    outs = jaxpr.outvars[len(program.launcher._written) :]
    own = program.per_replica_outputs
    return sum(
        num_bytes(var) // (num_replicas if index in own else 1) for index, var in enumerate(outs)
    )


def _nbytes(const: Any) -> int:
    return math.prod(const.shape) * const.dtype.itemsize


def _name_of(strategy: Any, mesh: ReplicaMesh) -> str:
    kind = "" if strategy is None else f"{type(strategy).__name__}, "
    count, spans = mesh.num_replicas, mesh.num_logical_devices
    text = f"{kind}{count} replica{'s' if count > 1 else ''}"
    text += f" of {spans} logical devices" if spans > 1 else ""
    sharding = None if strategy is None else strategy.extended.sharding
    return text if sharding is None else f"{text}, {sharding._describe()} split over them"
