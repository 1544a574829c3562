"""`function`: compiles a whole Python function, variables, runs and all, into one program."""

from __future__ import annotations

import functools
import importlib
import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from replicax.core import recording
from replicax.core.errors import ContextError
from replicax.core.options import RunOptions
from replicax.core.tracebacks import fold
from replicax.engine.contexts import stack
from replicax.engine.eager.captured import with_captured
from replicax.engine.functions import signature
from replicax.engine.functions.call_site import CallSite, Prepared, name_of_function
from replicax.engine.functions.inline import run_inline
from replicax.engine.functions.repeating import Repeat, not_repeated
from replicax.engine.functions.settings import SETTINGS
from replicax.engine.protocols import DIFFERENT, CompiledCallable, HostIterable, StrategyLike
from replicax.engine.trace.frame import current_frame
from replicax.engine.trace.host_loop import HostLoopRequired, host_loop
from replicax.jax_internals.traces import is_transforming
from replicax.values.distributed import PerReplica

_MAX_LOOP_PROGRAMS = 256

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")


def run_functions_eagerly(run_eagerly: bool) -> None:
    """Makes every ``function`` run as plain Python, so that pdb and print work in it.

    Args:
        run_eagerly: True to run as Python, False to compile again.

    Example:
        >>> import replicax as rx
        >>> rx.run_functions_eagerly(True)
        >>> rx.function(lambda x: x if isinstance(x, float) else None)(1.0)
        1.0
        >>> rx.run_functions_eagerly(False)
    """
    SETTINGS.run_eagerly = bool(run_eagerly)


def functions_run_eagerly() -> bool:
    """Whether ``run_functions_eagerly(True)`` is in force.

    Returns:
        True if functions run as Python.

    Example:
        >>> import replicax as rx
        >>> rx.functions_run_eagerly()
        False
    """
    return SETTINGS.run_eagerly


class Function(CompiledCallable, Generic[P, R]):
    """A compiled function; made by `function`. It takes and returns what the Python function does.

    Attributes:
        python_function: The function that it compiles.
        input_signature: What calls are checked against, or None.

    Example:
        >>> import replicax as rx
        >>> double = rx.function(lambda x: 2 * x)
        >>> double(4.0), double.trace_count
        (Array(8., dtype=float32, weak_type=True), 1)
    """

    def __init__(
        self, python_function: Callable[P, R], input_signature: Any = None, donate: bool = True
    ) -> None:
        functools.update_wrapper(self, python_function)
        self.python_function = python_function
        self._donate = donate
        name = name_of_function(python_function)
        self.input_signature = (
            None if input_signature is None else signature.parse_signature(input_signature, name)
        )
        self._site = CallSite(donate=donate, owner=weakref.ref(self))
        self._repeat = not_repeated
        self._loop_site = CallSite(donate=donate, lifts=True, max_programs=_MAX_LOOP_PROGRAMS)
        self._runs_as_loop = False
        self._methods: dict[int, Function[..., Any]] = {}

    def __repr__(self) -> str:
        return f"<replicax.function {name_of_function(self.python_function)}>"

    @property
    def trace_count(self) -> int:
        """How often the Python function has been traced."""
        return self._site.num_traces

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Function[P, R]: ...

    @overload
    def __get__(
        self: Function[Concatenate[Any, Q], R], instance: object, owner: type | None = None
    ) -> Function[Q, R]: ...

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """The function bound to `instance`: every instance has its own programs."""
        if instance is None:
            return self
        bound = self._methods.get(id(instance))  # equal instances are still different ones
        if bound is None:
            # The bound function must not keep its instance alive, and goes with it.
            bound = self._with_function(_WeakMethod(self.python_function, instance))
            self._methods[id(instance)] = bound
            weakref.finalize(instance, self._methods.pop, id(instance), None).atexit = False
        return bound

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the compiled function."""
        told = recording.recorder
        if told is not None and told.begin_call(self):
            try:
                return self(*args, **kwargs)
            finally:
                told.end_call()
        try:
            result = self._repeat(None, args, kwargs)
            return self._call_anew(args, kwargs) if result is DIFFERENT else result
        except Exception as error:
            fold(error)
            raise

    def _call_anew(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = self._checked(args, kwargs)
        if SETTINGS.run_eagerly or current_frame() is not None:
            return self.python_function(*args, **kwargs)
        if is_transforming():  # a JAX transformation that we did not start: be part of it
            return self.python_function(*args, **kwargs)
        entry = stack.top()
        if entry is not None and entry.mode is stack.Mode.UPDATE:  # which collects what is assigned
            return self.python_function(*args, **kwargs)
        if entry is not None and entry.mode is stack.Mode.REPLICA and stack.has_strategy():
            return self._call_in_replica(entry, args, kwargs)
        if self._runs_as_loop or _has_host_data(args, kwargs):
            return self._loop(args, kwargs)
        try:
            return self._site.call(self.python_function, args, kwargs)
        except HostLoopRequired:
            self._runs_as_loop = True
            return self._loop(args, kwargs)

    def _run_replicated(
        self,
        strategy: StrategyLike,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: RunOptions | None,
    ) -> Any:
        """Runs the function on every replica of `strategy`; called by `engine.run`."""
        if SETTINGS.run_eagerly or current_frame() is not None:
            fn = self.__call__ if self.input_signature is not None else self.python_function
            return run_inline(strategy, fn, args, kwargs, options)
        if self.input_signature is not None:
            args, kwargs = self._checked(args, kwargs)
        fn = self.python_function
        return self._site.call(fn, args, kwargs, strategy=strategy, options=options)

    def _prepare(
        self, strategy: StrategyLike | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Prepared:
        """The program of a call, or with `strategy` of its ``run``; the call will find it.

        Raises:
            ContextError: Where the call would have no program of its own.
        """
        name = name_of_function(self.python_function)
        args, kwargs = self._checked(args, kwargs)
        entry = stack.top()
        is_inside = entry is not None and entry.mode is not stack.Mode.SCOPE
        if is_inside or current_frame() is not None or is_transforming():
            raise ContextError(
                f"the program of {name!r} was asked for inside {stack.describe()} or a program "
                "that is being traced, whose part it would be. Ask for it outside of steps."
            )
        if SETTINGS.run_eagerly:
            raise ContextError(
                f"{name!r} has no program while functions run as plain Python. Call "
                "replicax.run_functions_eagerly(False) first."
            )
        is_loop = strategy is None and (self._runs_as_loop or _has_host_data(args, kwargs))
        if not is_loop:
            try:
                return self._site.prepare(self.python_function, args, kwargs, strategy=strategy)
            except HostLoopRequired:
                if strategy is not None:
                    raise
        raise ContextError(
            f"{name!r} is no single program: it goes through a dataset, so it runs as Python and "
            "each step in it is a program. Ask for the program of such a step, with one batch."
        )

    def _set_repeat(self, repeat: Repeat) -> None:
        """Takes over how to repeat the last call; the call site knows it."""
        if self.input_signature is None:  # what it checks would not be checked again
            self._repeat = repeat

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """The program for these arguments, lowered by JAX: ``.as_text()``, ``.compile()``.

        Args:
            *args: The arguments of the function.
            **kwargs: The same by keyword.

        Returns:
            A ``jax.stages.Lowered``.
        """
        program, arrays = self._site.program_for(self.python_function, args, kwargs)
        return program.launcher.lowered(arrays)

    def lower_run(self, strategy: StrategyLike, *args: Any, **kwargs: Any) -> Any:
        """The program that ``strategy.run(self, args, kwargs)`` would launch, lowered by JAX.

        Args:
            strategy: The strategy that would run it.
            *args: The arguments of the function.
            **kwargs: The same by keyword.

        Returns:
            A ``jax.stages.Lowered``.
        """
        program, arrays = self._site.program_for(
            self.python_function, args, kwargs, strategy=strategy
        )
        return program.launcher.lowered(arrays)

    def explain(self, *args: Any, strategy: StrategyLike | None = None, **kwargs: Any) -> Any:
        """What a call costs, before it is made: ``replicax.explain(self, *args, **kwargs)``.

        Args:
            *args: The arguments of the function.
            strategy: The strategy whose ``run`` is to be explained; None for a call.
            **kwargs: Arguments by keyword.

        Returns:
            An ``Explanation``: tables to print, and the same as data.
        """
        costs = importlib.import_module("replicax.costs.explain")  # it is above, and seldom asked
        return costs.explain(self, *args, strategy=strategy, **kwargs)

    def _checked(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self.input_signature is None:
            return args, kwargs
        name = name_of_function(self.python_function)
        return signature.check_arguments(self.input_signature, args, kwargs, name), {}

    def _call_in_replica(
        self, entry: stack.Entry, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """All replicas call together: one program for all of them.

        Every replica may have made the function for itself; any of them serves. If only some
        replicas of an eager run call it, each of those runs the Python function.
        """
        strategy = entry.strategy

        def call(own: dict[str, Any], function: Any, args: Any, kwargs: Any) -> Any:
            first = function.values[0] if isinstance(function, PerReplica) else function
            return first._call_with(own, args, kwargs, strategy)

        fn = self.python_function
        label = f"the function {_shared_name(fn)!r}"
        return entry.replica_context._together(
            label, call, (self, args, kwargs), own=fn, alone=lambda: fn(*args, **kwargs)
        )

    def _call_with(
        self,
        own: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        strategy: StrategyLike,
    ) -> Any:
        """Calls for all replicas, with the captured values that they have of their own.

        Args:
            own: By their path in `captured_by`. They are inputs of the program, as arguments are.
            args: The arguments.
            kwargs: The same by keyword.
            strategy: Whose replicas call.
        """
        if not own:
            return self._site.call(self.python_function, args, kwargs, strategy=strategy)
        python_function = with_captured(self.python_function, {path: path for path in own})

        def call(own: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return with_captured(python_function, own)(*args, **kwargs)

        call.__qualname__ = _shared_name(self.python_function)
        return self._site.call(call, (own, args, kwargs), {}, strategy=strategy)

    def _with_function(self, python_function: Callable[..., Any]) -> Function[..., Any]:
        """The same of another function."""
        made: Function[..., Any] = Function(python_function, None, self._donate)
        made.input_signature = self.input_signature
        return made

    def _loop(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs as Python, with every ``run`` inside compiled."""
        with host_loop(self._compiled_run):
            return self.python_function(*args, **kwargs)

    def _compiled_run(
        self,
        strategy: StrategyLike,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: RunOptions | None,
    ) -> Any:
        return self._loop_site.call(fn, args, kwargs, strategy=strategy, options=options)


class _WeakMethod:
    """A bound method that does not keep its instance alive."""

    def __init__(self, fn: Callable[..., Any], instance: Any) -> None:
        functools.update_wrapper(self, fn)
        self.__func__ = fn
        try:
            self._instance = weakref.ref(instance)
        except TypeError:
            raise TypeError(
                f"function cannot compile method {name_of_function(fn)!r}: its object {instance!r} "
                "cannot be held weakly. Add '__weakref__' to the __slots__ of the class."
            ) from None

    def __repr__(self) -> str:
        return f"<method {name_of_function(self.__func__)} of {self._instance()!r}>"

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(types.MethodType(self.__func__, self._instance()))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        instance = self._instance()
        if instance is None:
            raise ContextError(f"the object of method {name_of_function(self.__func__)!r} is gone.")
        return types.MethodType(self.__func__, instance)(*args, **kwargs)


def _shared_name(fn: Callable[..., Any]) -> str:
    """A name that all replicas and workers give to the function: without its address."""
    return getattr(fn, "__qualname__", type(fn).__qualname__)


def _has_host_data(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(isinstance(value, HostIterable) for value in (*args, *kwargs.values()))


@overload
def function(
    fn: Callable[P, R], input_signature: Any = None, donate: bool = True
) -> Function[P, R]: ...


@overload
def function(
    fn: None = None, input_signature: Any = None, donate: bool = True
) -> Callable[[Callable[P, R]], Function[P, R]]: ...


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

    Returns:
        The compiled function, with the arguments and results of `fn`; without `fn`, a decorator.

    Raises:
        TypeError: If `fn` is not callable, or a generator or coroutine.

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
            f"function cannot compile {name_of_function(fn)!r}, which is a generator or coroutine. "
            "Return a value instead of yielding."
        )
    return Function(fn, input_signature, donate)
