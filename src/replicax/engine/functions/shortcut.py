"""The direct way to a compiled program, without what `jit` does to find it.

`jit` describes every argument, and looks up the program, in each call. A step that is
repeated finds the same one each time. So it is enough to see that its inputs are like those
of the last call: variables stay as they are until somebody else touches them, and arrays that
come from one place share their types and layouts, which are then compared by identity.
Whatever is different goes through `jit`.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from replicax.backend.runahead import RUN_AHEAD
from replicax.backend.workers import lost_worker
from replicax.core import recording
from replicax.engine.storage import COUNTS, Storage, set_array
from replicax.engine.trace.epoch import EPOCH, advance
from replicax.jax_internals import arrays as jax_arrays
from replicax.jax_internals import executables as jax_executables
from replicax.jax_internals import traces as jax_traces

Direct = Callable[[Sequence[Any]], "list[jax.Array] | None"]
"""As `launching.Launcher.launch`, but gives None, doing nothing, where only `jit` can tell."""

_array = operator.attrgetter("array")
_handed_out = operator.attrgetter("handed_out")


@dataclasses.dataclass(frozen=True, slots=True)
class Shortcut:
    """What must be as it was for a program to be called directly.

    Attributes:
        executable: The program.
        state_kinds: For each variable the `jax_executables.kind_of` of its array.
        argument_kinds: The same for each argument.
        settings: The `jax_traces.trace_settings`.
    """

    executable: jax_executables.Executable
    state_kinds: list[Any]
    argument_kinds: list[Any]
    settings: Hashable


def find_shortcut(
    lowered: Any, before: Sequence[Any], state: list[Any], arguments: list[Any]
) -> Shortcut | None:
    """The direct way to a program that has just been launched through `jit`; None if it has none.

    Args:
        lowered: What the first launch through `jit` has compiled; it returns a list that begins
            with the next values of the variables that it replaces.
        before: What these variables were before the launch.
        state: All its variables after the launch, the replaced ones first.
        arguments: The other inputs.
    """
    state_kinds, argument_kinds = kinds_of(state), kinds_of(arguments)
    if state_kinds is None or argument_kinds is None:
        return None
    if not are_alike(kinds_of(before), state_kinds[: len(before)]):
        return None  # it changes what other programs take for granted
    executable = jax_executables.executable_of(lowered.compile(), [*state, *arguments])
    if executable is None:
        return None
    return Shortcut(executable, state_kinds, argument_kinds, jax_traces.trace_settings())


def no_shortcut(arguments: Sequence[Any]) -> None:
    """The `Direct` of a program that has not been found to have one."""


def direct_launcher(
    shortcut: Shortcut,
    written: list[Storage],
    read: list[Storage],
    *,
    token_at: int,
) -> Direct:
    """How to run a program by its shortcut; for the arguments see `launching.Launcher`.

    One closure, for the reason that `repeating.repeat_of` gives.
    """
    run_ahead, lock, tokens, counts = RUN_AHEAD, RUN_AHEAD.lock, RUN_AHEAD.tokens, COUNTS
    epoch, consume, kind_of = EPOCH, jax_executables.consume, jax_executables.kind_of
    trace_settings = jax_traces.trace_settings
    is_deleted: Callable[[Any], bool] = jax_arrays.ConcreteArray.is_deleted
    (trace, no_trace), (check, no_check), (devices, no_devices) = jax_executables.PLAIN_STATES
    array_of = _array
    execute, handlers = shortcut.executable.execute, shortcut.executable.handlers
    kept, settings = shortcut.executable.kept, shortcut.settings
    argument_kinds = list(shortcut.argument_kinds)  # of the last call: mostly the same objects
    state, follows = [*written, *read], bool(written)
    # A step that uses what it has written in the last one is done after it.
    links = any(kept is None or index in kept for index in range(len(written)))
    exposed: list[Storage] = []  # variables that are read, and that others could delete
    seen: object = None  # the stamp when the variables were last found fit for this
    failures = run_ahead.num_failures

    def is_fit(arrays: list[Any]) -> bool:
        exposed[:] = filter(_handed_out, read)
        return not any(map(_handed_out, written)) and are_alike(
            kinds_of(arrays), shortcut.state_kinds
        )

    def direct(arguments: Sequence[Any]) -> list[jax.Array] | None:
        nonlocal seen, failures
        with lock:
            if len(tokens) >= run_ahead.room:
                run_ahead.make_room(follows=follows)
            inputs: list[Any] = list(map(array_of, state))  # a comprehension is another frame
            stamp = counts.stamp  # after `inputs`, see Storage.set
            if stamp is not seen:
                if not is_fit(inputs):
                    return None
                seen = stamp
                run_ahead.begin_chain(written)
            if run_ahead.num_failures != failures:  # variables may be lost: let others look
                failures = run_ahead.num_failures
                return None
            try:
                for index, array in enumerate(arguments):
                    kind = kind_of(array)
                    if kind != argument_kinds[index] and not is_alike(kind, argument_kinds[index]):
                        return None
                    if is_deleted(array):
                        return None
                    argument_kinds[index] = kind
            except AttributeError:  # one is not on a device yet
                return None
            if (
                trace_settings() != settings
                or (exposed and any(map(jax_arrays.is_deleted, map(_array, exposed))))
                or trace.value is not no_trace
                or check.value is not no_check
                or devices.value is not no_devices
            ):
                return None
            inputs += arguments
            if kept is not None:
                inputs = [inputs[index] for index in kept]
            outputs: list[jax.Array] = []
            told = recording.recorder
            end_launch = None if told is None else told.begin_launch()
            try:
                # Unpacking runs the program, and the next instruction keeps what it gave. Ctrl-C
                # is noticed at calls and jumps only, not between those two.
                (outputs,) = map(consume, map(execute, (inputs,)), handlers)
                any(map(set_array, written, outputs))  # to the end: setting gives None
            except BaseException as error:
                keep_what_is_left(written, outputs, error)
                raise
            if run_ahead.chain is not written:
                run_ahead.begin_chain(written)
            run_ahead.num_chained += links
            tokens.append(outputs[token_at])
            if end_launch is not None:
                end_launch(outputs[token_at])  # pyright: ignore[reportArgumentType]
            if epoch.is_watched and written:
                advance()
        if run_ahead.settles:
            run_ahead.settle()
        return outputs

    return direct


def keep_what_is_left(written: list[Storage], outputs: Sequence[Any], error: BaseException) -> None:
    """Brings the variables in order after a launch that raised `error`.

    Args:
        written: The variables that the program replaces.
        outputs: Begins with their new values; empty if the program gave none.
        error: Of the program, or Ctrl-C.

    Raises:
        WorkerLostError: From `error`, if another worker has gone.
    """
    # Ctrl-C cannot split this: there are no Python instructions in it.
    any(map(set_array, written, outputs))
    if isinstance(error, Exception):
        for key in written:
            key.note_loss()
        if lost := lost_worker(error):
            raise lost from error


def kinds_of(arrays: Sequence[Any]) -> list[Any] | None:
    """The `jax_executables.kind_of` each, or None if one is not an array on its devices."""
    try:
        return list(map(jax_executables.kind_of, arrays))
    except AttributeError:  # random keys, a value of the host, or a variable that has gone
        return None


def are_alike(kinds: list[Any] | None, others: list[Any] | None) -> bool:
    """Whether an executable that can take arrays of some kinds can take the others.

    It does not see the abstract mesh that is part of the type of an array.
    """
    if kinds is None or others is None or len(kinds) != len(others):
        return False
    return kinds == others or all(map(is_alike, kinds, others))


def is_alike(kind: Any, other: Any) -> bool:
    """As `are_alike`, of one array."""
    (one, *layout), (two, *other_layout) = kind, other
    return (one.shape, one.dtype, one.weak_type, *layout) == (
        two.shape,
        two.dtype,
        two.weak_type,
        *other_layout,
    )
