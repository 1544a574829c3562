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

from replicax.backend.runahead import RUN_AHEAD
from replicax.backend.workers import lost_worker
from replicax.execution.epoch import EPOCH, advance
from replicax.variables.storage import COUNTS, Storage, set_array

Launch = Callable[[list[Any]], list[jax.Array]]
"""From the arrays of the arguments to the outputs, which may not have been computed yet."""

_array = operator.attrgetter("array")
_handed_out = operator.attrgetter("handed_out")


def launcher(
    variants: Mapping[bool, Callable[..., Any]],
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
        token_at: Which output tells that it is done.
        donates: Whether written variables give their buffers away.
        strays: Those of `written` that it leaves on other devices than they live on.
    """
    run_ahead, lock, tokens, counts = RUN_AHEAD, RUN_AHEAD.lock, RUN_AHEAD.tokens, COUNTS
    donating = variants[True] if donates else None
    epoch = EPOCH
    handed_out_seen = -1

    def launch(arrays: list[Any]) -> list[jax.Array]:
        nonlocal handed_out_seen
        with lock:
            if len(tokens) >= run_ahead.room:
                run_ahead.make_room()
            handed_out = counts.handed_out
            program = donating
            if (handed_out != handed_out_seen and any(map(_handed_out, written))) or not program:
                program = variants[False]
            state = list(map(_array, written))
            constant = list(map(_array, read)) if read else read
            done: list[Any] = []
            stored = False
            try:
                try:
                    # The result must reach `done` before Ctrl-C is noticed: the inputs are gone.
                    done.extend(starmap(program, ((state, constant, arrays),)))
                    if not donates:  # the old values stay until the new ones are certain
                        _await_or_drop(done, token_at)
                finally:
                    if done:
                        # Ctrl-C cannot split this: it is noticed between Python instructions,
                        # and there are none in it. `any` goes to the end, setting gives None.
                        any(map(set_array, written, done[0][0]))
                        stored = True
            except Exception as error:
                for key in written:
                    key.note_loss()
                if lost := lost_worker(error):
                    raise lost from error
                raise
            finally:
                if done and not stored:  # Ctrl-C came between the two lines above
                    any(map(set_array, written, done[0][0]))
            outputs = done[0][1]
            tokens.append(outputs[token_at])
            if program is not donating or strays:
                _tidy_up(written, strays)
            handed_out_seen = handed_out
            if epoch.is_watched and written:
                advance()
        if run_ahead.settles:
            run_ahead.settle()
        return outputs

    return launch


def _await_or_drop(done: list[Any], token_at: int) -> None:
    try:
        done[0][1][token_at].block_until_ready()
    except Exception:
        done.clear()
        raise


def _tidy_up(written: list[Storage], strays: list[Storage]) -> None:
    """What only some steps need: new buffers are nobody else's, single copies go home."""
    for key in written:
        key.handed_out = False
    for key in strays:
        key.bring_home()
