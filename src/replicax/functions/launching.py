"""Launches a compiled program once, through `jit` or, where nothing has changed, without it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import starmap
from typing import Any

import jax

from replicax.backend import compat, host_memory
from replicax.backend.runahead import RUN_AHEAD
from replicax.execution.epoch import EPOCH, advance
from replicax.functions.shortcut import (
    Direct,
    direct_launcher,
    find_shortcut,
    keep_what_is_left,
    no_shortcut,
)
from replicax.variables.pool import Pool
from replicax.variables.storage import COUNTS, Storage

Unpooled = Callable[[], tuple[Mapping[bool, Any], list[Storage]]]

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
        "_compiled",
        "_donates",
        "_lowered",
        "_num_looks",
        "_pools",
        "_read",
        "_strays",
        "_token_at",
        "_unpooled",
        "_variants",
        "_written",
        "direct",
        "is_spoilt",
    )

    def __init__(
        self,
        variants: Mapping[bool, Any],
        written: list[Storage],
        read: list[Storage],
        *,
        token_at: int,
        donates: bool,
        strays: list[Storage],
        pools: Sequence[Pool] = (),
        unpooled: Unpooled | None = None,
    ) -> None:
        """A launcher.

        Args:
            variants: The program, compiled with and without donation of what it writes.
            written: The variables that it replaces.
            read: The variables that it only reads.
            token_at: Which of all that it gives tells that it is done, counted from the end.
            donates: Whether written variables give their buffers away.
            strays: Those of `written` that it leaves on other devices than they live on.
            pools: Those of `written` that are pools.
            unpooled: Gives `variants` and `written` of the same program without pools.
        """
        self._variants = variants
        self._written = written
        self._read = read
        self._token_at = token_at
        self._donates = donates
        self._strays = strays
        self._pools = pools
        self._unpooled = unpooled
        self._lowered: Any = None  # kept from the first launch to the second
        self._num_looks = 0
        self.direct: Direct = no_shortcut
        self._compiled: set[bool] = set()  # which of the variants
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
            self._fill_pools()
            written = self._written
            RUN_AHEAD.make_room(follows=bool(written))
            before = [key.array for key in written]
            constant = [key.array for key in self._read]
            _refuse_deleted(written, self._read, arguments)
            gives = self._donates and not any(key.handed_out for key in written)
            COUNTS.stamp = object()
            parts = before, constant, arguments
            outputs: list[Any] = []
            try:
                if gives and not self._num_looks and not compat.is_transforming():
                    self._lowered = self._variants[True].lower(*parts)
                    compile_lowered(self._lowered)  # `jit` finds what it has made
                (outputs,) = starmap(self._variants[gives], (parts,))  # see `shortcut`
                if not self._donates:  # the old values stay until the new ones are certain
                    _await_or_drop(outputs, self._token_at)
                for key, array in zip(written, outputs[: len(written)], strict=True):
                    key.array = array
            except BaseException as error:
                self.is_spoilt = not isinstance(error, Exception) and gives not in self._compiled
                keep_what_is_left(written, outputs, error)
                raise
            self._compiled.add(gives)
            RUN_AHEAD.add(outputs[self._token_at])
            for pool in self._pools:
                pool.num_launches += 1
            if not gives or self._strays:
                self._tidy_up()
            if gives:
                self._look_for_shortcut(before, outputs, arguments)
            if EPOCH.is_watched and written:
                advance()
        RUN_AHEAD.settle()
        return outputs

    def lowered(self, arguments: list[Any], platforms: tuple[str, ...] | None = None) -> Any:
        """The lowered program, to be looked at; for `platforms`, or for that of its devices."""
        with RUN_AHEAD.lock:
            self._fill_pools()
            written = [key.live_array() for key in self._written]
            read = [key.live_array() for key in self._read]
        traced = self._variants[self._donates].trace(written, read, arguments)
        return traced.lower(lowering_platforms=platforms)

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
            self.direct = direct_launcher(
                shortcut, self._written, self._read, token_at=self._token_at, pools=self._pools
            )
        if shortcut is not None or self._num_looks > _MAX_LOOKS:
            self._lowered = None

    def _fill_pools(self) -> None:
        """Brings small variables together, unless others keep asking for single ones."""
        if any(pool.is_restless for pool in self._pools) and self._unpooled is not None:
            self._variants, self._written = self._unpooled()
            self._pools, self._unpooled, self._compiled = (), None, set()
            self._lowered, self._num_looks, self.direct = None, 0, no_shortcut
        for pool in self._pools:
            pool.fill()

    def _tidy_up(self) -> None:
        """What only some steps need: new buffers are nobody else's, single copies go home."""
        for key in self._written:
            key.handed_out = False
        for key in self._strays:
            key.bring_home()


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
        if type(array) is compat.ConcreteArray and array.is_deleted():
            jax.device_get(array)


def _await_or_drop(outputs: list[Any], token_at: int) -> None:
    try:
        outputs[token_at].block_until_ready()
    except Exception:
        outputs.clear()
        raise
