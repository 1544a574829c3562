"""What could be done about the costs of a step, with figures: one small function for each hint.

Each looks at a `StepProgram` and gives a `Hint` or several, or nothing. `explain` shows them all.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator

from replicax.core.shown import as_size
from replicax.costs.collectives import REPLICAS, Collective
from replicax.costs.program import COPIED, IN_PARTS, StepProgram, StepState

SMALL = 64 * 1024
"""Bytes: a collective of fewer takes the time of its messages, not of its bytes."""

_MANY = 8  # small collectives, from which on they are worth a word
_SHARE = 0.1  # of the memory of a device that is worth a word
_LARGE = 1_000_000  # bytes of a captured or returned array that are worth a word
_WHOLE = 16_000  # bytes of an argument that every replica gets whole


@dataclasses.dataclass(frozen=True, slots=True)
class Hint:
    """What could be done about one cost.

    Attributes:
        topic: What it is about, in a word or two.
        text: What costs, how much, and what to do.
        saves_bytes: The memory that one device has more of then, if that is the gain.
        sends_less: The bytes that a device sends less of in a step, if that is the gain.
    """

    topic: str
    text: str
    saves_bytes: int | None = None
    sends_less: float | None = None


def hints_for(program: StepProgram) -> tuple[Hint, ...]:
    """All hints for a step.

    Args:
        program: What is known of it.

    Returns:
        The hints: first those about memory, then those about what is sent.

    Example:
        >>> import replicax as rx
        >>> from replicax.costs.program import inspect_step
        >>> v = rx.Variable([0.0] * 4, name="v")
        >>> step = rx.function(lambda x: v.assign_add(x), donate=False)
        >>> found = inspect_step(step, ([1.0] * 4,), compiles=False)
        >>> [hint.topic for hint in hints_for(found)]
        ['donation']
    """
    return tuple(hint for look in _HINTS for hint in look(program))


# -- memory ------------------------------------------------------------------------------------


def optimizer_state(program: StepProgram) -> Iterator[Hint]:
    """Slots that are the same on every replica."""
    slots = [one for one in program.state if one.slot_of is not None]
    saved = _saved_by_parts(slots, program.num_replicas)
    if saved >= _SHARE * program.memory.total and saved:
        yield Hint(
            "optimizer state",
            f"{program.memory.slots / program.memory.total:.0%} of the memory of a device is "
            f"optimizer state, the same on all {program.num_replicas} replicas: "
            f"Sharding(stage=1) saves {as_size(saved)} per device.",
            saves_bytes=saved,
        )


def weights(program: StepProgram) -> Iterator[Hint]:
    """Trainable variables that are the same on every replica."""
    held = [one for one in program.state if one.slot_of is None and one.is_trainable]
    saved = _saved_by_parts(held, program.num_replicas)
    if saved >= _SHARE * program.memory.total and saved:
        size = sum(one.device_bytes for one in held)
        yield Hint(
            "weights",
            f"{size / program.memory.total:.0%} of the memory of a device is weights, the same on "
            f"all {program.num_replicas} replicas: Sharding(stage=3) saves {as_size(saved)} per "
            "device, and gathers each weight where it is read.",
            saves_bytes=saved,
        )


def donation(program: StepProgram) -> Iterator[Hint]:
    """Variables that do not give their buffers to the new values."""
    size = sum(one.device_bytes for one in program.state if one.is_written)
    if not program.donates and size:
        yield Hint(
            "donation",
            f"function(donate=False) keeps the old values of the variables beside the new ones: "
            f"function(donate=True) saves {as_size(size)} per device.",
            saves_bytes=size,
        )


def whole_arguments(program: StepProgram) -> Iterator[Hint]:
    """Arrays that every replica gets whole."""
    for one in program.arguments:
        if one.is_per_replica or program.num_replicas == 1 or one.device_bytes < _WHOLE:
            continue
        saved = one.device_bytes - one.device_bytes // program.num_replicas
        yield Hint(
            "whole argument",
            f"argument {one.name} is a whole array of {as_size(one.device_bytes)} on each of "
            f"{program.num_replicas} replicas{_sent(one.is_from_host)}: if it is a batch, "
            f"strategy.distribute_batch gives each replica its part and saves {as_size(saved)} per "
            "device.",
            saves_bytes=saved,
        )


def constants(program: StepProgram) -> Iterator[Hint]:
    """Large arrays that the function has captured."""
    size = program.memory.constants
    if size >= _LARGE:
        yield Hint(
            "captured arrays",
            f"the function has captured arrays of {as_size(size)}, which are constants of the "
            "program: another value compiles it again. Pass them as arguments, or make them "
            "variables.",
        )


def activations(program: StepProgram) -> Iterator[Hint]:
    """What the backward pass needs of the forward pass."""
    memory = program.memory
    between = memory.activations
    if memory.temporaries is not None:
        between = min(between, memory.temporaries)
    if between >= 0.5 * memory.total and between >= _LARGE:
        yield Hint(
            "activations",
            f"up to {as_size(between)} of {as_size(memory.total)} on a device are kept from the "
            "forward pass for the backward pass: jax.checkpoint around a layer keeps its inputs "
            "only, and computes the rest again.",
        )


def results(program: StepProgram) -> Iterator[Hint]:
    """Large results."""
    written = sum(one.device_bytes for one in program.state if one.is_written)
    size = program.memory.outputs - (0 if program.donates else written)
    if size >= _LARGE and size >= _SHARE * program.memory.total:
        yield Hint(
            "results",
            f"each step returns {as_size(size)} per device, which stays for as long as somebody "
            "holds the result: return sums or means of it.",
        )


# -- what is sent ------------------------------------------------------------------------------


def gradients(program: StepProgram) -> Iterator[Hint]:
    """All-reduces of gradients whose slots are split, and of which a part would do."""
    split = {one.slot_of for one in program.state if one.slot_of and one.layout == IN_PARTS}
    reduced = [
        one
        for one in _over_replicas(program)
        if one.kind == "all-reduce" and one.variables and split.issuperset(one.variables)
    ]
    less = sum(one.times * one.ring().num_bytes for one in reduced) / 2
    if less:
        yield Hint(
            "gradients",
            f"all replicas get the whole sums of gradients of which they need a part: "
            f"Sharding(stage=2) sends {as_size(less)} less per device and step.",
            sends_less=less,
        )


def small_all_reduces(program: StepProgram) -> Iterator[Hint]:
    """Many all-reduces that one could do."""
    small = [one for one in _over_replicas(program) if one.kind == "all-reduce" and _is_small(one)]
    count = sum(one.times for one in small)
    if len(small) >= _MANY:
        size = sum(one.times * one.num_bytes for one in small)
        saved = sum(one.times * one.ring().num_rounds for one in small)
        saved -= small[0].ring().num_rounds
        yield Hint(
            "small all-reduces",
            f"{count} small all-reduces send {as_size(size)} in all, most of them at "
            f"{_usual_line(small)}: pass the nest of values to one all_reduce, which packs it and "
            f"saves {saved} messages one after the other.",
        )


def small_parts(program: StepProgram) -> Iterator[Hint]:
    """Many gathers of variables that are too small to be split."""
    held = {one.name: one for one in program.state if one.layout == IN_PARTS and not one.slot_of}
    small = [
        one
        for one in _over_replicas(program)
        if one.kind == "all-gather" and _is_small(one) and held.keys() & set(one.variables)
    ]
    if len(small) >= _MANY:
        size = sum(held[name].num_bytes for one in small for name in one.variables if name in held)
        yield Hint(
            "small parts",
            f"{len(small)} of the all-gathers are for variables of {as_size(size)} in all: "
            "Sharding(partitioner=experimental.partitioners.MinSizePartitioner("
            f"{SMALL}, max_shards={program.num_replicas})) leaves small ones whole.",
        )


def loops(program: StepProgram) -> Iterator[Hint]:
    """Collectives that a loop repeats, and that could be executed once."""
    for one in _over_replicas(program):
        if one.could_be is None or one.count is None:
            continue
        less = (one.count - 1) * one.ring().num_bytes
        yield Hint(
            "collective in a loop",
            f"the {one.kind} of {as_size(one.num_bytes)} at {short(one.line)} is executed "
            f"{one.count} times by a loop, and could be once, {one.could_be}: sends "
            f"{as_size(less)} less per device and step.",
            sends_less=less,
        )


def host_calls(program: StepProgram) -> Iterator[Hint]:
    """Values that cross to the host and back."""
    for one in program.host_calls:
        times = "in each round of a loop" if one.count is None else "each step"
        times = f"{one.count} times each step" if one.count and one.count > 1 else times
        size = one.num_bytes_to_host + one.num_bytes_from_host
        yield Hint(
            "host callback",
            f"{as_size(size)} cross to the host and back {times}, in the {one.kind} at "
            f"{short(one.line)}, and the device waits for Python.",
        )


def host_arguments(program: StepProgram) -> Iterator[Hint]:
    """Host arrays that each call sends to the devices."""
    for one in program.arguments:
        if one.is_from_host and one.device_bytes >= _LARGE and program.num_replicas == 1:
            yield Hint(
                "host argument",
                f"argument {one.name}, a host array of {as_size(one.device_bytes)}, is sent to the "
                "device in each step: keep it there if it is the same (jax.device_put), or let a "
                "distributed dataset send it ahead.",
            )


def retraces(program: StepProgram) -> Iterator[Hint]:
    """A function that needs one program after the other."""
    if len(program.retraces) >= 2:
        yield Hint(
            "retraces",
            f"{program.name!r} has had {program.num_programs} programs so far, the last because "
            f"{program.retraces[-1]}",
        )


def inserted(program: StepProgram) -> Iterator[Hint]:
    """What XLA's partitioner sends without being asked."""
    found = [one for one in program.collectives if one.is_inserted]
    size = sum(one.times * one.ring().num_bytes for one in found)
    if found and size >= _SHARE * program.ring_bytes and size >= SMALL:
        yield Hint(
            "partitioner",
            f"XLA's partitioner adds {len(found)} collectives, by which a device sends "
            f"{as_size(size)} per step, most of them for {_usual_line(found)}: cut the variables "
            "and values that meet there along the same dims.",
        )


_HINTS: tuple[Callable[[StepProgram], Iterator[Hint]], ...] = (
    optimizer_state,
    weights,
    activations,
    donation,
    whole_arguments,
    constants,
    results,
    gradients,
    small_all_reduces,
    small_parts,
    loops,
    inserted,
    host_calls,
    host_arguments,
    retraces,
)


def short(line: str) -> str:
    """``file:line`` without the folders.

    Example:
        >>> short("/home/me/train.py:12")
        'train.py:12'
    """
    return line.rpartition("/")[2]


def _saved_by_parts(held: list[StepState], num_replicas: int) -> int:
    """What a device has less of when these are split; those of fewer elements stay whole."""
    saved = 0
    for one in held:
        size = one.num_bytes
        itemsize = size // max(_num_elements(one), 1)
        if one.layout == COPIED and _num_elements(one) >= num_replicas > 1:
            saved += size - -(-_num_elements(one) // num_replicas) * itemsize
    return saved


def _num_elements(one: StepState) -> int:
    count = 1
    for size in one.shape:
        count *= size
    return count


def _over_replicas(program: StepProgram) -> list[Collective]:
    return [one for one in program.collectives if one.over == REPLICAS and not one.is_inserted]


def _is_small(one: Collective) -> bool:
    return one.num_bytes < SMALL


def _usual_line(found: list[Collective]) -> str:
    ((line, _),) = collections.Counter(short(one.line) for one in found).most_common(1)
    return line


def _sent(is_from_host: bool) -> str:
    return ", sent there in each step" if is_from_host else ""
