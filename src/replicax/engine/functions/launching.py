"""Launches a compiled program once, through `jit` or, where nothing has changed, without it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import starmap
from typing import Any

import jax

from replicax.backend import host_memory, placement
from replicax.backend.runahead import RUN_AHEAD
from replicax.backend.workers import translated
from replicax.core import recording
from replicax.engine.functions.shortcut import (
    Direct,
    direct_launcher,
    find_shortcut,
    keep_what_is_left,
    no_shortcut,
)
from replicax.engine.storage import COUNTS, Storage
from replicax.engine.trace.epoch import EPOCH, advance
from replicax.engine.trace.host_calls import HostCalls
from replicax.jax_internals.arrays import ConcreteArray
from replicax.jax_internals.traces import concretely, is_transforming

_MAX_LOOKS = 4  # for a shortcut; where the inputs keep changing their places, `jit` is as good

LONG_SECONDS = 0.5
"""A compilation that takes longer has used much memory, beside which a trim costs little time."""


class Launcher:
    """Runs a program on the current values of its variables, and keeps the new ones.

    Attributes:
        direct: The quickest way, which may have nothing to say.
        is_spoilt: Whether Ctrl-C came while the program was compiled. Once in some hundred times
            JAX then takes every later use of it for a recursion, so it has to be traced anew.
    """

    __slots__ = (
        "_donates",
        "_host_calls",
        "_is_compiled",
        "_lowered",
        "_num_looks",
        "_program",
        "_read",
        "_strays",
        "_token_at",
        "_watch",
        "_written",
        "direct",
        "is_spoilt",
    )

    def __init__(
        self,
        program: Any,
        written: list[Storage],
        read: list[Storage],
        *,
        token_at: int,
        donates: bool,
        strays: list[Storage],
        host_calls: HostCalls | None = None,
    ) -> None:
        """A launcher.

        Args:
            program: The program, as `jit` has it.
            written: The variables that it replaces.
            read: The variables that it only reads.
            token_at: Which of all that it gives tells that it is done, counted from the end.
            donates: Whether it takes the buffers of what it writes.
            strays: Those of `written` that it leaves on other devices than they live on.
            host_calls: Its host callbacks, if one that fails would make devices wait for ever.
        """
        self._program = program
        self._written = written
        self._read = read
        self._token_at = token_at
        self._donates = donates
        self._strays = strays
        self._host_calls = host_calls
        self._watch: Callable[[Sequence[Any]], None] | None = None
        self._lowered: Any = None  # kept from the first launch to the second
        self._num_looks = 0
        self.direct: Direct = no_shortcut
        self._is_compiled = False
        self.is_spoilt = False

    def launch(self, arguments: list[Any]) -> list[jax.Array]:
        """Runs the program.

        Args:
            arguments: The arrays of the arguments.

        Returns:
            What the program gives: the new values of the written variables, then the outputs. They
            may not have been computed yet.
        """
        outputs = self.direct(arguments)
        return self.launch_jitted(arguments) if outputs is None else outputs

    def launch_jitted(self, arguments: list[Any]) -> list[jax.Array]:
        """Runs the program as `launch` does, the long way."""
        with RUN_AHEAD.lock:
            written = self._written
            RUN_AHEAD.make_room(follows=bool(written))
            for key in (*written, *self._read):
                key.begin_use()
            before = [key.array for key in written]
            constant = [key.array for key in self._read]
            _refuse_deleted(written, self._read, arguments)
            were_held = any(key.handed_out for key in written)
            if were_held and self._donates:
                before = _without_holders(written)
            COUNTS.stamp = object()
            parts = before, constant, arguments
            outputs: list[Any] = []
            try:
                if self._donates and not self._num_looks and not is_transforming():
                    self._lowered = self._program.lower(*parts)
                    compile_lowered(self._lowered)  # `jit` finds what it has made
                told = recording.recorder
                end_launch = None if told is None else told.begin_launch()
                (outputs,) = starmap(self._program, (parts,))  # see `shortcut`
                if end_launch is not None:
                    end_launch(outputs[self._token_at])
                if not self._donates:  # the old values stay until the new ones are certain
                    _await_or_drop(outputs, self._token_at, self._host_calls)
                for key, array in zip(written, outputs[: len(written)], strict=True):
                    key.array = array
            except BaseException as error:
                self.is_spoilt = not isinstance(error, Exception) and not self._is_compiled
                keep_what_is_left(written, outputs, error)
                raise
            self._is_compiled = True
            RUN_AHEAD.add(outputs[self._token_at])
            if were_held or self._strays:
                self._tidy_up()
            if self._donates:
                self._look_for_shortcut(before, outputs, arguments)
            if EPOCH.is_watched and written:
                advance()
        RUN_AHEAD.settle()
        if self._host_calls is not None and self._donates:
            self._await_host_calls(self._host_calls, outputs)
        if self._watch is not None:
            self._watch(arguments)
        return outputs

    def watch(self, look: Callable[[Sequence[Any]], None]) -> None:
        """Has `look` called after each launch, with the arguments."""
        self._watch = look

    def _await_host_calls(self, calls: HostCalls, outputs: list[jax.Array]) -> None:
        """Without the lock, which a callback that reads a variable waits for."""
        translated(outputs[self._token_at].block_until_ready)
        try:
            calls.refuse_failures()
        except Exception:
            with RUN_AHEAD.lock:
                for key, array in zip(self._written, outputs, strict=False):
                    array.delete()
                    key.note_loss()
            raise

    def traced(self, arguments: list[Any]) -> Any:
        """The program as JAX has traced it, to be looked at.

        Its inputs are the variables that it writes, those it only reads, and `arguments`; its
        outputs the new values of the former, and then the results.
        """
        with RUN_AHEAD.lock:
            written = [key.live_array() for key in self._written]
            read = [key.live_array() for key in self._read]
        return self._program.trace(written, read, arguments)

    def lowered(self, arguments: list[Any], platforms: tuple[str, ...] | None = None) -> Any:
        """The lowered program, to be looked at; for `platforms`, or for that of its devices."""
        return self.traced(arguments).lower(lowering_platforms=platforms)

    def _look_for_shortcut(
        self, before: list[Any], outputs: list[Any], arguments: list[Any]
    ) -> None:
        """Looks after a launch through `jit` for the direct way to launch again.

        There is none for a program that leaves variables where they do not live.
        """
        self._num_looks += 1
        if self._lowered is None or self._num_looks == 1:  # what is launched once is not worth it
            return
        state = [*outputs[: len(before)], *(key.array for key in self._read)]
        shortcut = find_shortcut(self._lowered, before, state, arguments)
        if shortcut is not None:
            direct = direct_launcher(shortcut, self._written, self._read, token_at=self._token_at)
            self.direct = direct if self._watch is None else _watched(direct, self._watch)
        if shortcut is not None or self._num_looks > _MAX_LOOKS:
            self._lowered = None

    def _tidy_up(self) -> None:
        """What only some steps need: new buffers are nobody else's, single copies go home."""
        for key in self._written:
            key.handed_out = False
        for key in self._strays:
            key.bring_home()


def _watched(direct: Direct, look: Callable[[Sequence[Any]], None]) -> Direct:
    def launch(arguments: Sequence[Any]) -> list[jax.Array] | None:
        outputs = direct(arguments)
        if outputs is not None:
            look(arguments)
        return outputs

    return launch


def _without_holders(written: list[Storage]) -> list[Any]:
    """The arrays of variables, to be given away: copies of those that somebody outside holds."""
    with concretely():
        return [
            placement.in_own_buffers(key.live_array()) if key.handed_out else key.array
            for key in written
        ]


def compile_lowered(lowered: Any) -> None:
    """Compiles a program, and leaves no more memory in use than the program itself has."""
    start = time.monotonic()
    lowered.compile()
    if time.monotonic() - start > LONG_SECONDS:
        host_memory.give_back_free()


def _refuse_deleted(written: list[Storage], read: list[Storage], arguments: list[Any]) -> None:
    """Raises before a program on several devices gets such an array and ends the process.

    Arguments that others have parts of were looked at before; here JAX says it.
    """
    for key in (*written, *read):
        if key.handed_out or key.array is None or key.array.is_deleted():
            key.refuse_deleted()
    for array in arguments:
        if type(array) is ConcreteArray and array.is_deleted():
            jax.device_get(array)


def _await_or_drop(outputs: list[Any], token_at: int, host_calls: HostCalls | None) -> None:
    try:
        outputs[token_at].block_until_ready()
        if host_calls is not None:
            host_calls.refuse_failures()
    except Exception:
        outputs.clear()
        raise
