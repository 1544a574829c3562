"""The compiled programs of one Python function, and how a call finds its program."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from replicax.backend import compat
from replicax.context import stack
from replicax.core import nest, notices
from replicax.core.errors import TraceError
from replicax.core.options import RunOptions
from replicax.execution.cache import ById, function_key
from replicax.functions import arguments
from replicax.functions.program import Program, initial_values, trace_function
from replicax.functions.repeating import Call, Repeat, not_repeated, repeat_of
from replicax.values.distributed import Mirrored, PerReplica

RETRACES_BEFORE_WARNING = 5


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
        self._versions: dict[Hashable, int] = {}
        self.repeat: Repeat = not_repeated
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
        result = program.run(self._lowered(leaves, structure))
        is_plain = options is None and (entry is None or entry.mode is stack.Mode.SCOPE)
        if is_plain and not self._is_keyed:  # a keyed site must not keep its function alive
            scope = None if entry is None else entry.strategy.extended.serial
            call = Call(fn, leaves, structure, key[1], strategy, scope)
            self.repeat = repeat_of(call, program)
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
        """A number for what the function has captured."""
        fn = getattr(fn, "__func__", fn)  # of a method, bound weakly or not
        if self._is_keyed or not getattr(fn, "__closure__", None):
            return 0
        return self._versions.setdefault(function_key(fn), len(self._versions))

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
                    f"{name_of_function(fn)!r} creates variables {names} every time it is called. "
                    "Create them once: outside the function, or the first time only "
                    "(if self.v is None: self.v = Variable(...))."
                )
        return Program(traced, name=_plain_name(fn), donate=self._donate)

    def _warn_of_retraces(self, key: Any, fn: Callable[..., Any]) -> None:
        if len(self._programs) >= RETRACES_BEFORE_WARNING and self._last_key is not None:
            notices.notify_once(
                ("retraces", ById(self)),
                f"{name_of_function(fn)!r} has been traced {len(self._programs)} times; last "
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


def _what_changed(old: Any, new: Any, fn: Callable[..., Any]) -> str:
    if old[0] != new[0]:
        return f"the structure of its arguments changed from {old[0]} to {new[0]}"
    for index, (before, after) in enumerate(zip(old[1], new[1], strict=True)):
        if before != after:
            change = arguments.describe_change(before, after)
            return f"argument {arguments.name_of(index, old[0], fn)} changed: {change}"
    return "the strategy, its options, JAX's settings or a captured value changed"


def name_of_function(fn: Any) -> str:
    """What to call a function in a message."""
    return getattr(fn, "__qualname__", None) or repr(fn)


def _plain_name(fn: Any) -> str:
    """A name that every worker of a cluster gives to the function: without its address."""
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__
