"""The compiled programs of one Python function, and how a call finds its program."""

from __future__ import annotations

import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from replicax.core import nest, recording
from replicax.core.errors import TraceError
from replicax.core.options import RunOptions
from replicax.core.tracebacks import VALUE_NEEDED, argument_names, name_arguments
from replicax.engine.contexts import stack
from replicax.engine.executors import run_on_replicas
from replicax.engine.functions import arguments, closures
from replicax.engine.functions.captures import Captures, can_be_input, constant_key
from replicax.engine.functions.closures import ById, Captured
from replicax.engine.functions.foreign_state import refuse_foreign_state
from replicax.engine.functions.program import Program, initial_values, trace_function
from replicax.engine.functions.repeating import Call, Repeat, not_repeated, repeat_of
from replicax.engine.functions.retraces import Retraces
from replicax.engine.protocols import StrategyLike
from replicax.jax_internals.traces import trace_settings
from replicax.values.distributed import PerReplica
from replicax.values.leaves import Leaf, leaf_kind
from replicax.values.whole_batches import notice_whole_batches

_ON_MESHES = (Leaf.PER_REPLICA, Leaf.MIRRORED)


@dataclasses.dataclass(slots=True)
class _Request:
    """A call, as a program is compiled for it.

    Attributes:
        fn: The function.
        leaves: Its arguments, then the captured values that are inputs of the program.
        structure: Of the arguments.
        captured: What the function has captured.
        inputs: Which of ``captured.inputs`` are inputs of the program; the others are constants.
        strategy: The strategy whose replicas it runs on, or None.
        options: How it runs on them.
    """

    fn: Callable[..., Any]
    leaves: Sequence[Any]
    structure: Any
    captured: Captured
    inputs: Sequence[int]
    strategy: StrategyLike | None
    options: RunOptions | None

    @property
    def num_arguments(self) -> int:
        return len(self.leaves) - len(self.inputs)

    def with_inputs(self, inputs: Sequence[int]) -> _Request:
        """The same call with these captured values as inputs."""
        if not inputs and not self.inputs:
            return self
        own = self.leaves[: self.num_arguments]
        lifted = [self.captured.inputs[i] for i in inputs]
        return dataclasses.replace(self, leaves=[*own, *lifted], inputs=inputs)

    def constant_keys(self) -> tuple[Hashable, ...]:
        """The keys of captured values that could be inputs and are constants."""
        values = enumerate(self.captured.inputs)
        return tuple([constant_key(x) for i, x in values if i not in self.inputs])

    def named_constants(self) -> dict[tuple[str, ...], Hashable]:
        """The same, by name."""
        names = [name for i, name in enumerate(self.captured.names) if i not in self.inputs]
        return dict(zip(names, self.constant_keys(), strict=True))

    def name_of(self, index: int) -> str:
        """What to call one of the leaves in an error."""
        if index < self.num_arguments:
            return arguments.path_of(index, self.structure)
        name = self.captured.names[self.inputs[index - self.num_arguments]]
        return f"the captured value {'.'.join(name)!r}"

    def lowered(self) -> list[Any]:
        """The arrays that enter the program."""
        return [
            arguments.lower(leaf, functools.partial(self.name_of, index))
            for index, leaf in enumerate(self.leaves)
            if arguments.is_traced(leaf)
        ]


@dataclasses.dataclass(frozen=True, slots=True)
class Prepared:
    """A program, and what it would be launched with.

    Attributes:
        program: The program, which no call has run yet, or some have.
        arrays: The arrays that enter it beside its variables.
        names: What to call each of them.
        given: What each of them was passed as.
    """

    program: Program
    arrays: list[Any]
    names: list[str]
    given: list[Any]


class CallSite:
    """The compiled programs of one Python function, by the types of its arguments.

    The function comes with every call and is not kept: a host loop may define it
    anew in each epoch.
    """

    def __init__(
        self,
        *,
        donate: bool,
        owner: weakref.ref[Any] | None = None,
        lifts: bool = False,
        max_programs: int | None = None,
        program_of: Callable[..., Any] | None = None,
    ) -> None:
        """A site without programs; they are compiled when they are first needed.

        Args:
            donate: Whether written variables give their buffers to the step.
            owner: What is told how to repeat the last call, which keeps the function alive; None
                for a site whose functions come and go.
            lifts: Whether captured values that change become inputs of the programs.
            max_programs: How many are kept; the oldest goes first.
            program_of: Makes a program, with the methods of `Program` that are used here, of what
                was traced; `Program` if None.
        """
        self._donate = donate
        self._program_of = Program if program_of is None else program_of
        self._owner = owner
        self._is_input = can_be_input if lifts else None
        self._max_programs = max_programs
        self._programs: dict[Hashable, Program] = {}
        self._watches: dict[Hashable, list[weakref.ref[Any]]] = {}
        self._repeated: Program | None = None
        self._captures = Captures()
        self._retraces = Retraces()
        self._lock = threading.RLock()
        self.num_traces = 0

    def call(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        strategy: StrategyLike | None = None,
        options: RunOptions | None = None,
    ) -> Any:
        """Runs `fn`, as it is or (with `strategy`) on every replica.

        Raises:
            TraceError: If the function creates variables on every call.
        """
        request, key, entry = self._request(fn, args, kwargs, strategy, options)
        program = self._programs.get(key)
        if program is None or not program.is_alive():
            with recording.within(recording.COMPILING):
                program = self._find_or_compile(key, request, args, kwargs)
            if program is None:  # other captured values are inputs now
                return self.call(fn, args, kwargs, strategy=strategy, options=options)
        result = program.run(request.lowered())
        is_plain = options is None and (entry is None or entry.mode is stack.Mode.SCOPE)
        if is_plain and self._owner is not None:
            scope = None if entry is None else entry.strategy.extended._serial
            structure, leaf_keys, *_ = key
            call = Call(request.captured, request.leaves, structure, leaf_keys, strategy, scope)
            self._set_repeat(repeat_of(call, program), program)
        return arguments.put_back(result, request.leaves) if program.returns_arguments else result

    def _request(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        strategy: StrategyLike | None,
        options: RunOptions | None,
    ) -> tuple[_Request, tuple[Any, ...], stack.Entry | None]:
        """A call as a program is compiled for it, the key of that program, and where it is made."""
        leaves, structure = arguments.flatten(args, kwargs)
        captured = closures.captured(fn, self._is_input)
        request = _Request(fn, leaves, structure, captured, (), strategy, options)
        if captured.inputs:
            request = request.with_inputs(self._captures.inputs(captured))
        entry = stack.top()
        try:
            leaf_keys = tuple(map(arguments.leaf_key, request.leaves))
            hash(structure)
        except Exception:
            refuse_foreign_state(fn, args, kwargs)  # which need not be hashable
            raise
        key = (
            structure,
            leaf_keys,
            None if entry is None else (entry.strategy.extended._serial, entry.mode),
            None if strategy is None else strategy.extended._serial,
            None if options is None else _options_key(options),
            trace_settings(),
            captured.key,
            request.constant_keys(),
        )
        return request, key, entry

    def prepare(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        strategy: StrategyLike | None = None,
    ) -> Prepared:
        """The program that `call` would run, kept for it, and the arrays that it would get.

        Raises:
            TraceError: If the function creates variables on every call.
        """
        request, key, _ = self._request(fn, args, kwargs, strategy, None)
        program = self._find_or_compile(key, request, args, kwargs)
        if program is None:  # other captured values are inputs now
            return self.prepare(fn, args, kwargs, strategy=strategy)
        traced_at = [i for i, leaf in enumerate(request.leaves) if arguments.is_traced(leaf)]
        names = [
            arguments.name_of(i, request.structure, fn)
            if i < request.num_arguments
            else request.name_of(i)
            for i in traced_at
        ]
        given = [request.leaves[i] for i in traced_at]
        return Prepared(program, request.lowered(), names, given)

    def history(self, fn: Callable[..., Any]) -> tuple[int, tuple[str, ...]]:
        """How many programs `fn` has had, and why it was traced again, the last reasons."""
        return self._retraces.history(fn)

    def _find_or_compile(
        self, key: Hashable, request: _Request, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Program | None:
        """A program for the request, or None if it has other inputs than that."""
        with self._lock:
            program = self._programs.get(key)
            if program is not None and program.is_alive():
                return program
            fn, captured = request.fn, request.captured
            refuse_foreign_state(fn, args, kwargs)
            if strategy := request.strategy:
                notice_whole_batches(args, kwargs, strategy.num_replicas_in_sync)
            if captured.inputs and self._captures.note(captured, fn):
                return None
            fixed = request.named_constants()
            constants = {**closures.constants(fn, self._is_input), **fixed}
            self._retraces.note(fn, name_of_function(fn), key, constants, fixed)
            leaves, structure = nest.flatten((args, kwargs))
            lifted = request.leaves[request.num_arguments :]
            request = dataclasses.replace(request, leaves=[*leaves, *lifted], structure=structure)
            try:
                program = self._compile(request)
            except Exception:
                if not request.inputs:
                    raise
                self._compile(request.with_inputs(()))  # raises if it has other reasons to fail
                needed = [i for i in request.inputs if not self._can_be_input(request, i)]
                self._captures.refuse(captured, needed or request.inputs)
                return None
            self._keep(key, program)
            return program

    def _can_be_input(self, request: _Request, index: int) -> bool:
        try:
            self._compile(request.with_inputs([index]))
        except Exception:
            return False
        return True

    # -- what is kept ------------------------------------------------------------------------

    def _keep(self, key: Hashable, program: Program) -> None:
        """Keeps a program until something that it is for has gone."""
        if self._max_programs is not None and len(self._programs) >= self._max_programs:
            oldest, *_ = list(self._programs)  # no iterator: what is collected meanwhile is dropped
            self._drop(oldest)
        site = weakref.ref(self)

        def drop(_: Any) -> None:
            """Called by the garbage collector, perhaps in the middle of JAX."""
            own = site()
            if own is not None:
                own._drop(key)

        self._watches[key] = [
            weakref.ref(target, drop) for target in (*program.lives(), *_targets_in(key))
        ]
        self._programs[key] = program

    def _drop(self, key: Hashable) -> None:
        program = self._programs.pop(key, None)
        self._watches.pop(key, None)
        if program is not None and program is self._repeated:
            self._set_repeat(not_repeated, None)

    def _set_repeat(self, repeat: Repeat, program: Program | None) -> None:
        owner = None if self._owner is None else self._owner()
        if owner is not None:
            self._repeated = program
            owner._set_repeat(repeat)

    def program_for(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        strategy: StrategyLike | None = None,
    ) -> tuple[Program, list[Any]]:
        """A program for these arguments and its array arguments, to be looked at."""
        leaves, structure = nest.flatten((args, kwargs))
        captured = closures.captured(fn)
        request = _Request(fn, leaves, structure, captured, (), strategy, None)
        return self._compile(request), request.lowered()

    def _compile(self, request: _Request) -> Program:
        fn, leaves, strategy = request.fn, request.leaves, request.strategy
        num_arguments, is_input = request.num_arguments, self._is_input
        traced_at = [i for i, leaf in enumerate(leaves) if arguments.is_traced(leaf)]
        lifts = [arguments.lift(leaves[i]) for i in traced_at]
        arrays = request.lowered()

        meshes = [leaf.mesh for leaf in leaves if leaf_kind(leaf) in _ON_MESHES]

        def call(traced: list[Any]) -> Any:
            mine = list(leaves)
            for index, lift, array in zip(traced_at, lifts, traced, strict=True):
                mine[index] = lift(array)
            own = fn
            if is_input is not None:
                values = list(request.captured.inputs)
                for index, value in zip(request.inputs, mine[num_arguments:], strict=True):
                    values[index] = value
                own = closures.with_inputs(fn, is_input, values)

            @functools.wraps(own, updated=())
            def counted(*args: Any, **kwargs: Any) -> Any:
                result = own(*args, **kwargs)
                self.num_traces += 1  # not when the trace is given up and starts over
                return result

            args, kwargs = nest.unflatten(request.structure, mine[:num_arguments])
            if strategy is None:
                return counted(*args, **kwargs)
            result = run_on_replicas(strategy, counted, args, kwargs, request.options)
            passed: dict[int, Any] = {id(mine[i]): arguments.PassedThrough(i) for i in traced_at}
            for index in range(num_arguments, len(mine)):
                if leaf_kind(leaves[index]) is Leaf.HOST_ARRAY:  # never the same object
                    copies = [mine[index]] * strategy.num_replicas_in_sync
                    mesh = strategy.extended.mesh
                    passed[id(mine[index])] = PerReplica(mesh, components=copies)
            return nest.map_leaves(lambda leaf: passed.get(id(leaf), leaf), result)

        def name_of(number: int) -> str:
            index = traced_at[number]
            numbers = nest.unflatten(request.structure, range(num_arguments))
            found = argument_names(fn, *numbers).get(index)
            return request.name_of(index) if found is None else "".join(found)

        try:
            traced = trace_function(call, arrays, meshes)
        except VALUE_NEEDED as error:
            name_arguments(error, fn, name_of)
            raise
        if traced.frame.created:
            initial_values(traced, arrays)
            traced = trace_function(call, arrays, meshes)
            if traced.frame.created:
                names = sorted({variable.name for variable, _ in traced.frame.created})
                raise TraceError(
                    f"{name_of_function(fn)!r} creates variables {names} every time it is called. "
                    "Create them once: outside the function, or the first time only "
                    "(if self.v is None: self.v = Variable(...))."
                )
        return self._program_of(traced, name=_plain_name(fn), donate=self._donate)


def _targets_in(key: Any) -> Iterator[Any]:
    """The objects that a key knows by identity."""
    if isinstance(key, tuple):
        for part in key:
            yield from _targets_in(part)
    elif isinstance(key, ById) and key.is_weak:
        yield key.target()


def _options_key(options: RunOptions) -> Hashable:
    xla = options.experimental_xla_options
    return (
        options.experimental_enable_dynamic_batch_size,
        options.experimental_bucketizing_dynamic_shape,
        None if xla is None else tuple(sorted(xla.items())),
    )


def name_of_function(fn: Any) -> str:
    """What to call a function in a message."""
    return getattr(fn, "__qualname__", None) or repr(fn)


def _plain_name(fn: Any) -> str:
    """A name that every worker of a cluster gives to the function: without its address."""
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__
