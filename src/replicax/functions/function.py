"""`function`: compiles a whole Python function, variables, runs and all, into one program."""

from __future__ import annotations

import functools
import inspect
import operator
import threading
import types
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, overload

from replicax.backend import compat
from replicax.context import stack
from replicax.core import nest, notices
from replicax.core.errors import ContextError, TraceError
from replicax.core.options import RunOptions
from replicax.core.protocols import CompiledCallable, HostIterable
from replicax.execution.cache import ById, function_key
from replicax.execution.frame import current_frame
from replicax.execution.host_loop import HostLoopRequired, host_loop
from replicax.functions import arguments, signature
from replicax.functions.program import Program, initial_values, trace_function
from replicax.values.distributed import Mirrored, PerReplica

RETRACES_BEFORE_WARNING = 5
_MAX_SITES = 256


class _Settings:
    eagerly = False


def run_functions_eagerly(run_eagerly: bool) -> None:
    """Makes every ``function`` run as plain Python, so that pdb and print work in it.

    Example:
        >>> import replicax as rx
        >>> rx.run_functions_eagerly(True)
        >>> rx.function(lambda x: x if isinstance(x, float) else None)(1.0)
        1.0
        >>> rx.run_functions_eagerly(False)
    """
    _Settings.eagerly = bool(run_eagerly)


def functions_run_eagerly() -> bool:
    """Whether ``run_functions_eagerly(True)`` is in force.

    Example:
        >>> import replicax as rx
        >>> rx.functions_run_eagerly()
        False
    """
    return _Settings.eagerly


class CallSite:
    """The compiled programs of one Python function, by the types of its arguments.

    The function comes with every call and is not kept: a host loop may define it
    anew in each epoch.
    """

    def __init__(self, *, donate: bool, is_keyed: bool = False) -> None:
        """A site without programs; they are compiled when they are first needed.

        Args:
            donate: Whether written variables give their buffers to the step.
            is_keyed: Whether the site was chosen by the key of the function, so that
                what the function has captured is known to be the same.
        """
        self._donate = donate
        self._is_keyed = is_keyed
        self._programs: dict[Hashable, Program] = {}
        self._last_key: Any = None
        self._lock = threading.RLock()
        self._captured: list[Any] = []
        self._versions: dict[Hashable, int] = {}
        self._last_version = 0
        self.num_traces = 0

    def call(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        strategy: Any = None,
        options: RunOptions | None = None,
    ) -> Any:
        """Runs `fn`, as it is or (with `strategy`) on every replica.

        Raises:
            TraceError: If the function creates variables on every call.
        """
        leaves, structure = arguments.flatten(args, kwargs)
        entry = stack.top()
        key = (
            structure,
            tuple(map(arguments.leaf_key, leaves)),
            None if entry is None else (entry.strategy.extended.serial, entry.mode),
            None if strategy is None else strategy.extended.serial,
            None if options is None else _options_key(options),
            compat.trace_settings(),
            self._version(fn),
        )
        program = self._programs.get(key)
        if program is None or not program.is_alive():
            program = self._find_or_compile(key, fn, args, kwargs, strategy, options)
        result = program.launch(self._lowered(leaves, structure))
        return arguments.put_back(result, leaves) if program.returns_arguments else result

    def _find_or_compile(
        self,
        key: Hashable,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        strategy: Any,
        options: RunOptions | None,
    ) -> Program:
        with self._lock:
            program = self._programs.get(key)
            if program is None or not program.is_alive():
                self._warn_of_retraces(key, fn)
                program = self._compile(fn, *nest.flatten((args, kwargs)), strategy, options)
                self._programs[key] = program
            return program

    def _version(self, fn: Callable[..., Any]) -> int:
        """A number for what the function has captured; checked by identity, which is quick."""
        fn = getattr(fn, "__func__", fn)  # of a method, bound weakly or not
        if self._is_keyed or not getattr(fn, "__closure__", None):
            return self._last_version
        captured = _captured_by(fn)
        if len(captured) != len(self._captured) or any(
            map(operator.is_not, captured, self._captured)
        ):
            key = function_key(fn)
            self._last_version = self._versions.setdefault(key, len(self._versions))
            self._captured = captured
        return self._last_version

    def _lowered(self, leaves: Sequence[Any], structure: Any) -> list[Any]:
        return [
            arguments.lower(leaf, lambda i=i: arguments.path_of(i, leaves, structure))
            for i, leaf in enumerate(leaves)
            if arguments.is_traced(leaf)
        ]

    def program_for(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        strategy: Any = None,
    ) -> tuple[Program, list[Any]]:
        """A program for these arguments and its array arguments, to be looked at."""
        leaves, structure = nest.flatten((args, kwargs))
        return self._compile(fn, leaves, structure, strategy, None), self._lowered(
            leaves, structure
        )

    def _compile(
        self,
        fn: Callable[..., Any],
        leaves: list[Any],
        structure: Any,
        strategy: Any,
        options: RunOptions | None,
    ) -> Program:
        traced_at = [i for i, leaf in enumerate(leaves) if arguments.is_traced(leaf)]
        lifts = [arguments.lift(leaves[i]) for i in traced_at]
        arrays = self._lowered(leaves, structure)

        meshes = [leaf.mesh for leaf in leaves if isinstance(leaf, (PerReplica, Mirrored))]

        def counted(*args: Any, **kwargs: Any) -> Any:
            result = fn(*args, **kwargs)
            self.num_traces += 1  # not when the trace is given up and starts over
            return result

        def call(traced: list[Any]) -> Any:
            mine = list(leaves)
            for index, lift, array in zip(traced_at, lifts, traced, strict=True):
                mine[index] = lift(array)
            args, kwargs = nest.unflatten(structure, mine)
            if strategy is None:
                return counted(*args, **kwargs)
            result = strategy.extended.run_traced(counted, args, kwargs, options)
            passed = {id(mine[index]): arguments.PassedThrough(index) for index in traced_at}
            return nest.map_leaves(lambda leaf: passed.get(id(leaf), leaf), result)

        traced = trace_function(call, arrays, meshes)
        if traced.frame.created:
            initial_values(traced, arrays)
            traced = trace_function(call, arrays, meshes)
            if traced.frame.created:
                names = sorted({variable.name for variable, _ in traced.frame.created})
                raise TraceError(
                    f"{_name(fn)!r} creates variables {names} every time it is called. "
                    "Create them once: outside the function, or the first time only "
                    "(if self.v is None: self.v = Variable(...))."
                )
        return Program(traced, donate=self._donate)

    def _warn_of_retraces(self, key: Any, fn: Callable[..., Any]) -> None:
        if len(self._programs) >= RETRACES_BEFORE_WARNING and self._last_key is not None:
            notices.notify_once(
                ("retraces", ById(self)),
                f"{_name(fn)!r} has been traced {len(self._programs)} times; last "
                f"because {_what_changed(self._last_key, key, fn)}. Pass values that change as "
                "arrays, and keep their shapes.",
            )
        self._last_key = key


def _options_key(options: RunOptions) -> Hashable:
    xla = options.experimental_xla_options
    return (
        options.experimental_enable_dynamic_batch_size,
        options.experimental_bucketizing_dynamic_shape,
        None if xla is None else tuple(sorted(xla.items())),
    )


def _captured_by(fn: Any) -> list[Any]:
    """What the function has captured, and what the functions among that have."""
    seen, captured, functions = {id(fn)}, [], [fn]
    for function in functions:  # grows meanwhile
        for cell in function.__closure__:
            try:
                value = cell.cell_contents
            except ValueError:  # a cell that is still empty
                value = None
            captured.append(value)
            if type(value) is types.FunctionType and value.__closure__ and id(value) not in seen:
                seen.add(id(value))
                functions.append(value)
    return captured


def _what_changed(old: Any, new: Any, fn: Callable[..., Any]) -> str:
    if old[0] != new[0]:
        return f"the structure of its arguments changed from {old[0]} to {new[0]}"
    for index, (before, after) in enumerate(zip(old[1], new[1], strict=True)):
        if before != after:
            change = arguments.describe_change(before, after)
            return f"argument {arguments.name_of(index, old[0], fn)} changed: {change}"
    return "the strategy, its options, JAX's settings or a captured value changed"


def _name(fn: Any) -> str:
    return getattr(fn, "__qualname__", None) or repr(fn)


class Function(CompiledCallable):
    """A compiled function; made by `function`."""

    def __init__(
        self, python_function: Callable[..., Any], input_signature: Any = None, donate: bool = True
    ) -> None:
        """Wraps `python_function`."""
        functools.update_wrapper(self, python_function)
        self.python_function = python_function
        self._donate = donate
        name = _name(python_function)
        self.input_signature = (
            None if input_signature is None else signature.parse_signature(input_signature, name)
        )
        self._site = CallSite(donate=donate)
        self._run_sites: dict[Hashable, CallSite] = {}
        self._runs_as_loop = False
        self._methods: weakref.WeakKeyDictionary[Any, Function] = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<replicax.function {_name(self.python_function)}>"

    @property
    def trace_count(self) -> int:
        """How often the Python function has been traced."""
        return self._site.num_traces

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The function bound to `instance`: every instance has its own programs."""
        if instance is None:
            return self
        bound = self._methods.get(instance)
        if bound is None:
            # The bound function must not keep its instance alive: it is the value in a table
            # whose key is the instance.
            method = _WeakMethod(self.python_function, instance)
            bound = Function(method, None, self._donate)
            bound.input_signature = self.input_signature
            self._methods[instance] = bound
        return bound

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the compiled function."""
        args, kwargs = self._checked(args, kwargs)
        if _Settings.eagerly or current_frame() is not None:
            return self.python_function(*args, **kwargs)
        if compat.is_transforming():  # a JAX transformation that we did not start: be part of it
            return self.python_function(*args, **kwargs)
        entry = stack.top()
        if entry is not None and entry.mode is stack.Mode.REPLICA and stack.has_strategy():
            return self._call_in_replica(entry, args, kwargs)
        if self._runs_as_loop or _has_host_data(args, kwargs):
            return self._loop(args, kwargs)
        try:
            return self._site.call(self.python_function, args, kwargs)
        except HostLoopRequired:
            self._runs_as_loop = True
            return self._loop(args, kwargs)

    def run_replicated(
        self, strategy: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: Any
    ) -> Any:
        """Runs the function on every replica of `strategy`; called by ``Strategy.run``."""
        if _Settings.eagerly or current_frame() is not None:
            return strategy.extended.call_for_each_replica_inline(
                self.__call__ if self.input_signature is not None else self.python_function,
                args,
                kwargs,
                options,
            )
        args, kwargs = self._checked(args, kwargs)
        return self._site.call(
            self.python_function, args, kwargs, strategy=strategy, options=options
        )

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """The program for these arguments, lowered by JAX: ``.as_text()``, ``.compile()``."""
        program, arrays = self._site.program_for(self.python_function, args, kwargs)
        return program.lowered(arrays)

    def lower_run(self, strategy: Any, *args: Any, **kwargs: Any) -> Any:
        """The program that ``strategy.run(self, args, kwargs)`` would launch, lowered by JAX."""
        program, arrays = self._site.program_for(
            self.python_function, args, kwargs, strategy=strategy
        )
        return program.lowered(arrays)

    def _checked(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self.input_signature is None:
            return args, kwargs
        name = _name(self.python_function)
        return signature.check_arguments(self.input_signature, args, kwargs, name), {}

    def _call_in_replica(self, entry: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """All replicas call together: one program for all of them."""
        strategy = entry.strategy

        def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return self._site.call(self.python_function, args, kwargs, strategy=strategy)

        label = f"the function {_name(self.python_function)!r}"
        return entry.replica_context.together(label, call, (args, kwargs))

    def _loop(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs as Python, with every ``run`` inside compiled."""
        with host_loop(self._compiled_run):
            return self.python_function(*args, **kwargs)

    def _compiled_run(
        self,
        strategy: Any,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Any,
    ) -> Any:
        key = function_key(fn)
        site = self._run_sites.get(key)
        if site is None:
            if len(self._run_sites) >= _MAX_SITES:
                self._run_sites.pop(next(iter(self._run_sites)))
            site = self._run_sites[key] = CallSite(donate=self._donate, is_keyed=True)
        return site.call(fn, args, kwargs, strategy=strategy, options=options)


class _WeakMethod:
    """A bound method that does not keep its instance alive."""

    def __init__(self, fn: Callable[..., Any], instance: Any) -> None:
        functools.update_wrapper(self, fn)
        self.__func__ = fn
        self._instance = weakref.ref(instance)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(types.MethodType(self.__func__, self._instance()))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        instance = self._instance()
        if instance is None:
            raise ContextError(f"the object of method {_name(self.__func__)!r} is gone.")
        return types.MethodType(self.__func__, instance)(*args, **kwargs)


def _has_host_data(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(isinstance(value, HostIterable) for value in (*args, *kwargs.values()))


@overload
def function(
    fn: Callable[..., Any], input_signature: Any = None, donate: bool = True
) -> Function: ...


@overload
def function(
    fn: None = None, input_signature: Any = None, donate: bool = True
) -> Callable[[Callable[..., Any]], Function]: ...


def function(
    fn: Callable[..., Any] | None = None, input_signature: Any = None, donate: bool = True
) -> Any:
    """Compiles a Python function into one program, variables and runs included.

    Works as ``@function`` and as ``@function(...)``. The function is traced once
    for each combination of argument types; arrays and floats may change freely,
    ints, bools, strings and other objects are part of the program. Pass it to
    ``Strategy.run``, or call ``run`` inside it: either way there is one program
    for all replicas.

    Args:
        fn: The function.
        input_signature: For each positional argument a ``TensorSpec``, or a nest
            of them, that calls are checked against.
        donate: Whether variables give their buffers to the step that replaces
            them. False needs more memory, and keeps the values when a step fails.

    Example:
        >>> import replicax as rx
        >>> v = rx.Variable(1.0)
        >>> @rx.function
        ... def step(x):
        ...     v.assign_add(x)
        ...     return v * 2
        >>> step(2.0)
        Array(6., dtype=float32)
        >>> step.trace_count
        1
    """
    if fn is None:
        return functools.partial(function, input_signature=input_signature, donate=donate)
    if isinstance(fn, Function):
        return fn
    if not callable(fn):
        raise TypeError(f"function needs a callable; got {fn!r}.")
    if inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn):
        raise TypeError(
            f"function cannot compile {_name(fn)!r}, which is a generator or coroutine. Return a "
            "value instead of yielding."
        )
    return Function(fn, input_signature, donate)
