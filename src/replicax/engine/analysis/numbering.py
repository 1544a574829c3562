"""Finds out which values are computed in the same way by all variants of a replica function.

Value numbering over a plan of aligned variants: two values get the same number when they are the
same operation on values with the same numbers. A mirrored variable may only be written with a value
whose number is the same in every variant, and a loop or branch around a collective may only depend
on such a predicate. Equal numbers say nothing about replicas of one variant: ``varying`` does.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from replicax.engine.analysis.alignment import (
    Constant,
    LockstepError,
    Meeting,
    Plan,
    Source,
    Step,
    align,
    scan_carry,
    while_consts,
)
from replicax.engine.analysis.local_numbering import (
    LocalNumbering,
    RefState,
    content,
    number_constant,
    ref_states,
    unrepeated,
)
from replicax.engine.analysis.uniform import not_uniform, uniform_p
from replicax.jax_internals.programs import user_line


def differing_outputs(
    variants: Sequence[Any],
    input_numbers: Sequence[Sequence[Hashable]],
    outputs: Sequence[int],
    *,
    axis: str,
) -> list[int]:
    """The positions among ``outputs`` that not all variants compute in the same way.

    Args:
        variants: A closed jaxpr for each kind of replica.
        input_numbers: For each variant one hashable for each input; equal ones in two variants
            mean that the inputs are the same value. ``number_constant`` gives those of constants.
        outputs: Which outputs to compare.
        axis: The mesh axis that counts the replicas.

    Raises:
        LockstepError: The variants do not meet at the same collectives.
    """
    outs = number_plan(align(variants, axis=axis), input_numbers)
    return [position for position in outputs if len({row[position] for row in outs}) > 1]


def number_plan(plan: Plan, input_numbers: Sequence[Sequence[Hashable]]) -> list[list[int]]:
    """For each variant the numbers of its outputs.

    Raises:
        LockstepError: A predicate around a collective is not the same in all variants.
    """
    numbering = _Numbering()
    ins = [
        [
            numbering.number("input", number, *_type_of(slot))
            for slot, number in zip(slots, numbers, strict=True)
        ]
        for slots, numbers in zip(plan.ins, input_numbers, strict=True)
    ]
    return numbering.run(plan, ins)


def _type_of(source: Source) -> tuple[Hashable, ...]:
    return source.aval.shape, str(source.aval.dtype)


class _Numbering:
    """One joint walk over all variants; numbers are small integers for equal keys."""

    def __init__(self) -> None:
        self._local = LocalNumbering()
        self.number = self._local.number

    def run(self, plan: Plan, ins: Sequence[Sequence[Any]]) -> list[list[int]]:
        """The numbers of the outputs of each variant; ``ins`` are numbers and Ref states."""
        envs = [
            dict(zip(slots, row, strict=True)) for slots, row in zip(plan.ins, ins, strict=True)
        ]
        for number, segment in enumerate(plan.segments):
            for env, steps in zip(envs, segment, strict=True):
                for step in steps:
                    self._run_step(step, env)
            if number < len(plan.meetings):
                self._run_meeting(plan.meetings[number], envs)
        return [
            [content(self._read(env, source)) for source in row]
            for env, row in zip(envs, plan.outs, strict=True)
        ]

    def _read(self, env: dict[Any, Any], source: Source) -> Any:
        if isinstance(source, Constant):
            return self.number("constant", number_constant(source.value))
        return env[source]

    def _run_step(self, step: Step, env: dict[Any, Any]) -> None:
        values = [self._read(env, source) for source in step.ins]
        env.update(zip(step.outs, self._local.run_equation(step.eqn, values), strict=True))

    def _run_meeting(self, meeting: Meeting, envs: Sequence[dict[Any, Any]]) -> None:
        ins = [
            [self._read(env, source) for source in step.ins]
            for env, step in zip(envs, meeting.steps, strict=True)
        ]
        if meeting.name == "scan":
            outs = self._run_scan(meeting, ins)
        elif meeting.name == "while":
            outs = self._run_while(meeting, ins)
        elif meeting.name == "cond":
            outs = self._run_cond(meeting, ins)
        elif meeting.steps[0].eqn.primitive is uniform_p:
            if not all(_agreement(ins)):
                raise not_uniform(meeting.steps[0].eqn)
            outs = ins
        else:
            count = len(meeting.steps[0].outs)
            shared = [self.number("collective", id(meeting), p) for p in range(count)]
            outs = [shared for _ in meeting.steps]
        for env, step, row in zip(envs, meeting.steps, outs, strict=True):
            env.update(zip(step.outs, row, strict=True))

    def _label(
        self, what: str, meeting: Meeting, rows: Sequence[Sequence[Hashable]]
    ) -> list[list[int]]:
        """New numbers for ``rows`` of one meeting: equal where the old ones are equal."""
        same = _agreement(rows)
        return [
            [
                self.number(what, id(meeting), p, None if p < len(same) and same[p] else variant)
                for p in range(len(row))
            ]
            for variant, row in enumerate(rows)
        ]

    def _settle(
        self,
        meeting: Meeting,
        start: Sequence[Sequence[int]],
        states: Sequence[Sequence[RefState]],
        body: Any,
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Runs a loop body until what its rounds agree on is stable.

        Returns:
            What the loop carries to its end, and what its body gives beside that.
        """
        carry = self._label("carry", meeting, start)
        before = [[state.number for state in row] for row in states]
        held = self._label("held", meeting, before)
        while True:
            _set(states, held)
            outs, extra = body(carry)
            after = [[state.number for state in row] for row in states]
            carry_next = self._label("carry", meeting, _paired(carry, outs))
            held_next = self._label("held", meeting, _paired(held, after))
            if carry_next == carry and held_next == held:
                kept = self._label("kept", meeting, held)
                _set(states, _where_changed(held, after, before, kept))
                carried = self._label("carried", meeting, carry)
                return _where_changed(carry, outs, start, carried), extra
            carry, held = carry_next, held_next

    def _run_scan(self, meeting: Meeting, ins: list[list[Any]]) -> list[list[int]]:
        spans = [scan_carry(step) for step in meeting.steps]
        start = [row[first:last] for row, (first, last) in zip(ins, spans, strict=True)]

        def body(carry: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
            rows = []
            for row, middle, (first, last) in zip(ins, carry, spans, strict=True):
                slices = [self.number("row", number) for number in row[last:]]
                rows.append([*row[:first], *middle, *slices])
            outs = self.run(meeting.bodies[0], rows)
            counts = [last - first for first, last in spans]
            return (
                [row[:count] for row, count in zip(outs, counts, strict=True)],
                [row[count:] for row, count in zip(outs, counts, strict=True)],
            )

        carried, stacked = self._settle(meeting, start, _states(ins), body)
        stacked = self._label("stacked", meeting, stacked)
        return [[*first, *second] for first, second in zip(carried, stacked, strict=True)]

    def _run_while(self, meeting: Meeting, ins: list[list[Any]]) -> list[list[int]]:
        consts = [while_consts(step) for step in meeting.steps]
        start = [row[sum(counts) :] for row, counts in zip(ins, consts, strict=True)]

        def body(carry: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
            cond_rows, body_rows = [], []
            for row, middle, (num_cond, num_body) in zip(ins, carry, consts, strict=True):
                cond_rows.append([*row[:num_cond], *middle])
                body_rows.append([*row[num_cond : num_cond + num_body], *middle])
            _check_predicate(meeting, self.run(meeting.bodies[0], cond_rows))
            return self.run(meeting.bodies[1], body_rows), []

        carried, _ = self._settle(meeting, start, _states(ins), body)
        return carried

    def _run_cond(self, meeting: Meeting, ins: list[list[Any]]) -> list[list[int]]:
        _check_predicate(meeting, [row[:1] for row in ins])
        states = _states(ins)
        before = [[state.number for state in row] for row in states]
        outs: list[list[tuple[int, ...]]] = [[()] * len(step.outs) for step in meeting.steps]
        after: list[list[tuple[int, ...]]] = [[()] * len(row) for row in states]
        for branch in meeting.bodies:
            _set(states, before)
            outs = _extended(outs, self.run(branch, [row[1:] for row in ins]))
            after = _extended(after, [[state.number for state in row] for row in states])
        _set(states, self._branched("held", meeting, after))
        return self._branched("branched", meeting, outs)

    def _branched(
        self, what: str, meeting: Meeting, rows: Sequence[Sequence[tuple[int, ...]]]
    ) -> list[list[int]]:
        """One number for what each branch gives: its own where all of them give the same."""
        interned = [[self.number("tuple", item) for item in row] for row in rows]
        return [
            [item[0] if len(set(item)) == 1 else label for item, label in zip(*pair, strict=True)]
            for pair in zip(rows, self._label(what, meeting, interned), strict=True)
        ]


def _states(rows: Sequence[Sequence[Any]]) -> list[list[RefState]]:
    """The Refs of each row: first, in one order, those that were made with the same value in all.

    Each variant lists the Refs of a loop or branch in the order in which its own code uses them.
    """
    keyed = [
        dict(zip(unrepeated([state.first for state in states]), states, strict=True))
        for states in map(ref_states, rows)
    ]
    shared = [key for key in keyed[0] if all(key in row for row in keyed)]
    return [
        [*(row[key] for key in shared), *(state for key, state in row.items() if key not in shared)]
        for row in keyed
    ]


def _set(states: Sequence[Sequence[RefState]], numbers: Sequence[Sequence[int]]) -> None:
    for row, new in zip(states, numbers, strict=True):
        for state, number in zip(row, new, strict=True):
            state.number = number


def _where_changed(
    first: Sequence[Sequence[int]],
    last: Sequence[Sequence[int]],
    kept: Sequence[Sequence[int]],
    changed: Sequence[Sequence[int]],
) -> list[list[int]]:
    """`changed` where a round makes something else of what it begins with, otherwise `kept`."""
    return [
        [k if one == two else c for one, two, k, c in zip(*rows, strict=True)]
        for rows in zip(first, last, kept, changed, strict=True)
    ]


def _paired(first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> Any:
    return [list(zip(a, b, strict=True)) for a, b in zip(first, second, strict=True)]


def _extended(
    rows: Sequence[Sequence[tuple[int, ...]]], more: Sequence[Sequence[int]]
) -> list[list[tuple[int, ...]]]:
    return [
        [(*old, new) for old, new in zip(a, b, strict=True)]
        for a, b in zip(rows, more, strict=True)
    ]


def _agreement(rows: Sequence[Sequence[Hashable]]) -> list[bool]:
    """For each position that all rows have, whether they are equal there."""
    return [len(set(column)) == 1 for column in zip(*rows, strict=False)]


def _check_predicate(meeting: Meeting, rows: Sequence[Sequence[int]]) -> None:
    if all(_agreement(rows)):
        return
    other = next(kind for kind, row in enumerate(rows) if row != rows[0])
    lines = [user_line(meeting.steps[kind].eqn) for kind in (0, other)]
    raise LockstepError(
        f"The predicate of the {meeting.name} at {lines[0]} on replica kind 0 is not the one at "
        f"{lines[1]} on replica kind {other}, and it contains a collective: replicas could differ "
        f"in whether they reach it. All replicas must call the same collectives in the same order: "
        f"compute the predicate from values that are equal on all replicas, such as the result of "
        f"an all_reduce."
    )
