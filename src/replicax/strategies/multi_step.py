"""Many steps in one call: ``extended.experimental_run_steps_on_iterator``.

Steps over inputs of one type are one program: the first step as it is, the
others as one scan over the stacked inputs, with the outputs of the step before
as the carry. Where that cannot be, they run one by one, as Python.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from replicax.backend import placement
from replicax.core import nest, notices, recording
from replicax.core.enums import ReduceOp, ReduceOpLike
from replicax.core.errors import ContextError, OutOfRangeError
from replicax.engine.contexts import stack
from replicax.engine.eager.solo import reduced_alone
from replicax.engine.functions.call_site import CallSite
from replicax.engine.functions.closures import function_key
from replicax.engine.functions.settings import SETTINGS
from replicax.engine.protocols import StrategyLike
from replicax.engine.trace.frame import current_frame
from replicax.engine.trace.host_loop import HostLoopRequired, enter_host_code
from replicax.values.distributed import Mirrored, PerReplica
from replicax.values.leaves import Leaf, leaf_kind
from replicax.values.regroup import same_python_value

_MAX_SITES = 64
_CALL = "extended.experimental_run_steps_on_iterator"

StepFunction = Callable[["MultiStepContext", Any], Any]


class MultiStepContext:
    """What the steps of one ``experimental_run_steps_on_iterator`` give back.

    Every step gets it as its first argument; a step may read what the one
    before has set.

    Args:
        initial_loop_values: The outputs that the first step finds, by name.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     context = rx.experimental.MultiStepContext()
        ...     per_replica = strategy.run(lambda: rx.get_replica_context().num_replicas_in_sync)
        ...     context.set_last_step_output("count", per_replica, rx.ReduceOp.SUM)
        >>> context.last_step_outputs["count"]
        Array(4, dtype=int32)
    """

    def __init__(self, initial_loop_values: Mapping[str, Any] | None = None) -> None:
        """A context for steps that start with `initial_loop_values`."""
        values = {} if initial_loop_values is None else initial_loop_values
        if not isinstance(values, Mapping):
            raise TypeError(
                f"initial_loop_values is {values!r}; expected a dict of values by output name."
            )
        self._last_step_outputs: dict[str, Any] = dict(values)
        self._non_tensor_outputs: dict[str, Any] = {}

    @property
    def last_step_outputs(self) -> dict[str, Any]:
        """What the last step has set, by name."""
        return self._last_step_outputs

    @property
    def non_tensor_outputs(self) -> dict[str, Any]:
        """Objects that the steps have set, by name."""
        return self._non_tensor_outputs

    @property
    def run_op(self) -> None:
        """None: there is no graph, and the steps have run when the context is returned."""
        return None

    def set_last_step_output(
        self, name: str, output: Any, reduce_op: ReduceOpLike | None = None
    ) -> None:
        """Makes `output` the value of `name`, of this step.

        Args:
            name: What to call it.
            output: A value, or a nest of values.
            reduce_op: How to combine the replicas. None keeps `output` as it is, and
                is for cross-replica context only.

        Raises:
            ContextError: Without `reduce_op` in replica context.
        """
        op = None if reduce_op is None else ReduceOp.parse(reduce_op)

        def reduce_and_set(strategy: StrategyLike, value: Any) -> None:
            assert op is not None
            self._last_step_outputs[name] = strategy.reduce(op, value, axis=None)

        entry = stack.top()
        if stack.in_cross_replica_context() and entry is not None:
            if op is None:
                self._last_step_outputs[name] = output
            else:
                reduce_and_set(entry.strategy, output)
            return
        if op is None:
            raise ContextError(
                f"set_last_step_output({name!r}) was called inside {stack.describe()} without "
                "reduce_op. Say how to combine the replicas, or return the value from the replica "
                "function and set it in the function of the step."
            )
        if entry is None:  # no strategy, and so one replica
            self._last_step_outputs[name] = reduced_alone(op, output)
            return
        _require_no_replica_trace("set_last_step_output")
        entry.replica_context.merge_call(reduce_and_set, args=(output,))

    def set_non_tensor_output(self, name: str, output: Any) -> None:
        """Keeps `output`, any object; in replica context a tuple of what the replicas have.

        Args:
            name: What to call it.
            output: The object.

        Raises:
            TypeError: For an array that exists only inside a compiled program.
        """

        def keep_all(strategy: StrategyLike, value: Any) -> None:
            self._non_tensor_outputs[name] = strategy.experimental_local_results(value)

        entry = stack.top()
        if not stack.in_cross_replica_context():
            if entry is None:  # no strategy, and so one replica
                self._non_tensor_outputs[name] = (output,)
                return
            _require_no_replica_trace("set_non_tensor_output")
            entry.replica_context.merge_call(keep_all, args=(output,))
            return
        for leaf in nest.flatten(output)[0]:
            parts = leaf._parts() if isinstance(leaf, PerReplica) else (_array_of(leaf),)
            if any(isinstance(part, Tracer) for part in parts):
                raise TypeError(
                    f"set_non_tensor_output({name!r}) got {leaf!r}, an array of a compiled step. "
                    "Use set_last_step_output."
                )
        self._non_tensor_outputs[name] = output

    def _take(self, outputs: dict[str, Any], objects: dict[str, Any]) -> None:
        """Makes these the outputs; for the library."""
        self._last_step_outputs = outputs
        self._non_tensor_outputs = objects


def _require_no_replica_trace(call: str) -> None:
    """What a compiled replica function sets cannot be seen outside of it."""
    frame = current_frame()
    if frame is not None and frame.in_replica:
        raise HostLoopRequired(
            f"the replica function calls {call}; return the value from it, and call {call} in the "
            "function of the step"
        )


class StepPrograms:
    """The compiled steps of one strategy, by the function of the step."""

    def __init__(self) -> None:
        self._sites: collections.OrderedDict[Hashable, CallSite | str] = collections.OrderedDict()

    def find(self, key: Hashable) -> CallSite | str:
        """The site of a function, or why it has to run as Python."""
        site = self._sites.get(key)
        if site is None:
            site = self._sites[key] = CallSite(donate=True)
            if len(self._sites) > _MAX_SITES:
                self._sites.popitem(last=False)
        return site

    def give_up(self, key: Hashable, reason: str) -> None:
        """Remembers that a function has to run as Python."""
        self._sites[key] = reason


def run_steps(
    strategy: StrategyLike,
    fn: StepFunction,
    iterator: Iterator[Any],
    iterations: int,
    initial_loop_values: Mapping[str, Any] | None,
    programs: StepPrograms,
) -> MultiStepContext:
    """Runs ``fn(context, next(iterator))`` `iterations` times, in cross-replica context.

    Raises:
        OutOfRangeError: If the iterator ends early; the steps before that have run.
    """
    if isinstance(iterations, bool) or not isinstance(iterations, (int, np.integer)):
        raise TypeError(f"iterations of {_CALL} is {iterations!r}; expected an int.")
    if iterations < 1:
        raise ValueError(f"iterations of {_CALL} is {iterations}; expected 1 or more.")
    if not isinstance(iterator, Iterator):
        raise TypeError(f"{_CALL} needs an iterator; got {iterator!r}. Pass iter(...) of it.")
    told = recording.recorder
    if told is not None and told.begin_call(fn):
        try:
            return run_steps(strategy, fn, iterator, iterations, initial_loop_values, programs)
        finally:
            told.end_call()
    enter_host_code(_CALL)
    context = MultiStepContext(initial_loop_values)
    inputs = [item for _, item in zip(range(iterations), iterator, strict=False)]
    if told is not None:
        told.note_calls(fn, len(inputs) - 1)
    with strategy.scope():
        if inputs and not _run_as_program(fn, inputs, context, programs):
            _run_one_by_one(fn, inputs, context)
    if len(inputs) < iterations:
        raise OutOfRangeError(
            f"the iterator of {_CALL} ended after {len(inputs)} of {iterations} steps. Those have "
            "run. Ask for fewer iterations, or repeat the data."
        )
    return context


def _run_one_by_one(fn: StepFunction, inputs: Sequence[Any], context: MultiStepContext) -> None:
    try:
        for item in inputs:
            fn(context, item)
    except HostLoopRequired as error:  # a compiled function inside one step
        raise ContextError(f"a step of {_CALL} cannot be compiled: {error}.") from None


def _run_as_program(
    fn: StepFunction, inputs: Sequence[Any], context: MultiStepContext, programs: StepPrograms
) -> bool:
    """Runs all steps as one program, or says once why not and returns False."""
    if SETTINGS.run_eagerly:
        return False
    key = function_key(fn)
    site = programs.find(key)
    uniform = _uniform(inputs)
    if not isinstance(site, str) and not isinstance(uniform, str):
        try:
            outputs, held = site.call(_all_steps(fn), (uniform, context.last_step_outputs), {})
        except HostLoopRequired as error:
            site = str(error)
            programs.give_up(key, site)
        else:
            context._take(outputs, held.objects)
            return True
    reason = site if isinstance(site, str) else uniform
    notices.notify_once(
        ("steps one by one", key),
        f"{_CALL} runs its steps one by one, as Python, and not as one program: {reason}.",
    )
    return False


@dataclasses.dataclass(frozen=True, slots=True)
class _Held:
    """Objects that pass through a compiled program unseen."""

    objects: dict[str, Any]


def _all_steps(fn: StepFunction) -> Callable[[Sequence[Any], dict[str, Any]], Any]:
    def steps(inputs: Sequence[Any], initial: dict[str, Any]) -> tuple[dict[str, Any], _Held]:
        context = MultiStepContext(initial)
        fn(context, inputs[0])
        if len(inputs) > 1:
            _scan(fn, inputs[1:], context)
        return context.last_step_outputs, _Held(context.non_tensor_outputs)

    return steps


def _scan(fn: StepFunction, inputs: Sequence[Any], context: MultiStepContext) -> None:
    """The steps after the first, whose outputs `context` has, as one loop of the program."""
    flat = [nest.flatten(item)[0] for item in inputs]
    structure = nest.flatten(inputs[0])[1]
    columns = [_Column(leaves) for leaves in zip(*flat, strict=True)]
    before = _Row(context.last_step_outputs)

    def body(carry: list[Any], slices: list[Any]) -> tuple[list[Any], None]:
        context._take(before.lifted(carry), context.non_tensor_outputs)
        own = iter(slices)
        leaves = [column.lifted(own) for column in columns]
        fn(context, nest.unflatten(structure, leaves))
        after = _Row(context.last_step_outputs)
        if not after.is_like(before):
            raise HostLoopRequired("its outputs are not of one type in all steps")
        return after.arrays, None

    stacked = [column.stacked for column in columns if column.stacked is not None]
    last, _ = lax.scan(body, before.arrays, stacked)
    context._take(before.lifted(last), context.non_tensor_outputs)


class _Column:
    """One leaf of the inputs, over all steps."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        self._first = leaves[0]
        arrays = [_array_of(leaf) for leaf in leaves]
        self.stacked = None if arrays[0] is None else jnp.stack(arrays)

    def lifted(self, slices: Iterator[Any]) -> Any:
        return self._first if self.stacked is None else _lifted(self._first, next(slices))


class _Row:
    """The outputs of one step, as the arrays that a loop carries."""

    def __init__(self, outputs: dict[str, Any]) -> None:
        self._leaves, self._structure = nest.flatten(outputs)
        arrays = [_array_of(leaf) for leaf in self._leaves]
        self.arrays = [_strong(array) for array in arrays if array is not None]
        self._is_array = [array is not None for array in arrays]

    def lifted(self, arrays: Sequence[Any]) -> dict[str, Any]:
        own = iter(arrays)
        leaves = [
            _lifted(leaf, next(own)) if is_array else leaf
            for leaf, is_array in zip(self._leaves, self._is_array, strict=True)
        ]
        return nest.unflatten(self._structure, leaves)

    def is_like(self, other: _Row) -> bool:
        """Whether a loop can carry this where it carried `other`."""
        return (
            self._structure == other._structure
            and self._is_array == other._is_array
            and all(
                _type_of(mine) == _type_of(theirs)
                if is_array
                else mine is theirs or same_python_value([mine, theirs])
                for mine, theirs, is_array in zip(
                    self._leaves, other._leaves, self._is_array, strict=True
                )
            )
        )


def _strong(array: Any) -> Any:
    return lax.convert_element_type(array, array.dtype) if array.weak_type else array


def _uniform(inputs: Sequence[Any]) -> list[Any] | str:
    """The inputs as one program takes them, or why it cannot."""
    structure = nest.flatten(inputs[0])[1]
    named = [nest.leaves_with_path(item) for item in inputs]
    for index, item in enumerate(inputs):
        if nest.flatten(item)[1] != structure:
            return f"its inputs differ in structure (step 0 and step {index})"
    columns = []
    for column in zip(*named, strict=True):
        path, leaves = column[0][0], [leaf for _, leaf in column]
        if all(type(leaf) in (bool, int) for leaf in leaves) and not same_python_value(leaves):
            leaves = [placement.narrowed(leaf, f"the input{path}") for leaf in leaves]
        types = [_type_of(leaf) for leaf in leaves]
        for index, (kind, leaf) in enumerate(zip(types, leaves, strict=True)):
            if kind is object and leaf_kind(leaf) in (Leaf.PER_REPLICA, Leaf.HOST_ARRAY):
                return f"its input{path} has no numbers, and stays on the host"
            if kind != types[0] or (kind is object and not _is_same(leaf, leaves[0])):
                return f"its input{path} is not the same in step 0 and step {index}"
        columns.append(leaves)
    return [nest.unflatten(structure, leaves) for leaves in zip(*columns, strict=True)] or list(
        inputs
    )


def _is_same(one: Any, other: Any) -> bool:
    """Whether two objects may stand for each other; some answer ``==`` with no bool."""
    return one is other or (one == other) is True


def _type_of(leaf: Any) -> Hashable:
    """Equal for leaves that can be stacked; `object` for those that are no arrays."""
    match leaf_kind(leaf):
        case Leaf.PER_REPLICA:
            numeric = all(map(placement.is_array_like, leaf._parts()))
            return leaf._program_key if numeric else object
        case Leaf.MIRRORED:
            return "mirrored", id(leaf.mesh), leaf.shape, leaf.dtype
        case Leaf.JAX_ARRAY | Leaf.TRACER | Leaf.HOST_ARRAY if placement.is_array_like(leaf):
            return np.shape(leaf), jnp.result_type(leaf)
    return float if type(leaf) is float else object


def _array_of(leaf: Any) -> Any:
    """The array that `leaf` is or holds; None for any other object."""
    if _type_of(leaf) is object:
        return None
    match leaf_kind(leaf):
        case Leaf.PER_REPLICA:
            return leaf._as_packed()
        case Leaf.MIRRORED:
            return leaf._replicated()
    return jnp.asarray(leaf)


def _lifted(like: Any, array: Any) -> Any:
    """What a step sees of `array`, a value of the same type as `like`."""
    match leaf_kind(like):
        case Leaf.PER_REPLICA:
            return PerReplica(like.mesh, packed=array, shapes=like.shapes)
        case Leaf.MIRRORED:
            return Mirrored(like.mesh, array=array)
    return array
