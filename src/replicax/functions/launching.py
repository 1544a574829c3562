"""Launches a compiled program once: the part of a step that Python does every time.

What a step needs is bound when the program is made, in one closure, because between
two steps the devices have used up the processor's caches: there each Python call and
each attribute costs several times what it costs in a loop.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from itertools import starmap
from typing import Any

import jax

from replicax.backend import compat
from replicax.backend.runahead import RUN_AHEAD
from replicax.backend.workers import lost_worker
from replicax.execution.epoch import EPOCH, advance
from replicax.functions.shortcut import Shortcut, are_alike, find_shortcut, kinds_of
from replicax.variables.storage import COUNTS, Storage, set_array

Launch = Callable[[list[Any]], list[jax.Array]]
"""From the arrays of the arguments to what the program gives: the new values of the written
variables, then the outputs. They may not have been computed yet."""

_MAX_LOOKS = 4  # for a shortcut; where the inputs keep changing their places, `jit` is as good

_array = operator.attrgetter("array")
_handed_out = operator.attrgetter("handed_out")


def launcher(
    variants: Mapping[bool, Any],
    written: list[Storage],
    read: list[Storage],
    *,
    token_at: int,
    donates: bool,
    strays: list[Storage],
) -> Launch:
    """How to run a program on the current values of its variables, and keep the new ones.

    Args:
        variants: The program, compiled with and without donation of what it writes.
        written: The variables that it replaces.
        read: The variables that it only reads.
        token_at: Which of all that it gives tells that it is done.
        donates: Whether written variables give their buffers away.
        strays: Those of `written` that it leaves on other devices than they live on.
    """
    run_ahead, lock, tokens, counts = RUN_AHEAD, RUN_AHEAD.lock, RUN_AHEAD.tokens, COUNTS
    epoch = EPOCH
    kind_of, trace_settings, consume = compat.kind_of, compat.trace_settings, compat.consume
    is_deleted: Callable[[Any], bool] = compat.ConcreteArray.is_deleted
    (trace, no_trace), (check, no_check), (devices, no_devices) = compat.PLAIN_STATES
    state, num_written = [*written, *read], len(written)
    lowered: Any = None  # kept from the first launch to the second
    num_looks = 0
    shortcut: Shortcut | None = None
    execute: Any = None
    handlers: tuple[Any, ...] = ()
    argument_kinds = settings = kept = None
    seen: object = None  # the stamp when the variables were last found fit for the shortcut

    exposed: list[Storage] = []  # variables that are read, and that others could delete

    def is_fit(arrays: list[Any]) -> bool:
        """Whether the shortcut can take these arrays of the variables."""
        exposed[:] = filter(_handed_out, read)
        return shortcut is not None and are_alike(kinds_of(arrays), shortcut.state_kinds)

    def look_for_shortcut(before: list[Any], arguments: list[Any]) -> None:
        nonlocal shortcut, num_looks, lowered, execute, handlers, argument_kinds, settings, kept
        num_looks += 1
        if lowered is None or num_looks == 1:  # what is launched once is not worth it
            return
        shortcut = find_shortcut(lowered, before, [key.array for key in state], arguments)
        if shortcut is not None:
            execute, handlers = shortcut.executable.execute, shortcut.executable.handlers
            kept, settings = shortcut.executable.kept, shortcut.settings
            argument_kinds = shortcut.argument_kinds
        if shortcut is not None or num_looks > _MAX_LOOKS:
            lowered = None

    def launch(arguments: list[Any]) -> list[jax.Array]:
        nonlocal seen, argument_kinds, lowered
        with lock:
            if len(tokens) >= run_ahead.room:
                run_ahead.make_room()
            inputs: list[Any] = [key.array for key in state]
            stamp = counts.stamp  # after `inputs`, see Storage.set
            is_short = gives = stamp is seen
            if not is_short:
                gives = donates and not any(map(_handed_out, written))
                is_short = gives and is_fit(inputs)
            inputs += arguments
            done: list[Any] = []
            stored = False
            if is_short:
                seen = stamp
                try:
                    kinds = list(map(kind_of, arguments))
                except AttributeError:  # one is not on a device yet
                    kinds = None
                is_short = (
                    (kinds == argument_kinds or are_alike(kinds, argument_kinds))
                    and not any(map(is_deleted, arguments))
                    and not (exposed and any(map(is_deleted, map(_array, exposed))))
                    and trace.value is no_trace
                    and check.value is no_check
                    and devices.value is no_devices
                    and trace_settings() == settings
                )
                if is_short:
                    argument_kinds = kinds  # likelier to be the same objects next time
            try:
                try:
                    # The result must reach `done` before Ctrl-C is noticed: the inputs are gone.
                    if is_short:
                        used = inputs if kept is None else [inputs[index] for index in kept]
                        done.extend(map(consume, map(execute, (used,)), handlers))
                    else:
                        _refuse_deleted(inputs)
                        counts.stamp = object()
                        parts = inputs[:num_written], inputs[num_written : len(state)], arguments
                        if gives and not num_looks and trace.value is no_trace:
                            lowered = variants[True].lower(*parts)  # which `jit` then finds
                        done.extend(starmap(variants[gives], (parts,)))
                    if not donates:  # the old values stay until the new ones are certain
                        _await_or_drop(done, token_at)
                finally:
                    if done:
                        for key, array in zip(written, done[0]):  # noqa: B905 - more are outputs
                            key.array = array
                        stored = True
            except Exception as error:
                for key in written:
                    key.note_loss()
                if lost := lost_worker(error):
                    raise lost from error
                raise
            finally:
                if done and not stored:
                    # Ctrl-C came before the end of the loop above. It cannot split this: it is
                    # noticed between Python instructions, and there are none in it. `any` goes to
                    # the end, setting gives None.
                    any(map(set_array, written, done[0]))
            outputs = done[0]
            tokens.append(outputs[token_at])
            if not gives or strays:
                _tidy_up(written, strays)
            elif not is_short:
                look_for_shortcut(inputs[:num_written], arguments)
            if epoch.is_watched and written:
                advance()
        if run_ahead.settles:
            run_ahead.settle()
        return outputs

    return launch


def _refuse_deleted(inputs: list[Any]) -> None:
    """Lets JAX say so; a program on several devices that gets such an array ends the process."""
    for array in inputs:
        if type(array) is compat.ConcreteArray and array.is_deleted():
            jax.device_get(array)


def _await_or_drop(done: list[Any], token_at: int) -> None:
    try:
        done[0][token_at].block_until_ready()
    except Exception:
        done.clear()
        raise


def _tidy_up(written: list[Storage], strays: list[Storage]) -> None:
    """What only some steps need: new buffers are nobody else's, single copies go home."""
    for key in written:
        key.handed_out = False
    for key in strays:
        key.bring_home()
