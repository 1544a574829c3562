"""Lines up the collectives of several traced variants of one replica function.

Each variant is flattened into steps, calls that contain a collective inlined, and cut into
segments at the steps where replicas meet. The result is a plan: which segments lie between which
meetings, for loops and branches that contain meetings one plan for each body. Nothing is executed
here; ``lockstep`` runs a plan and ``numbering`` compares its variants.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from replicax.core.errors import TraceError
from replicax.engine.analysis import varying
from replicax.jax_internals.programs import (
    Literal,
    is_ref,
    open_jaxpr,
    scan_counts,
    sub_jaxprs,
    user_line,
)


class LockstepError(TraceError):
    """Replicas whose traces differ do not meet at the same collectives."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A value that one variant computes, or receives as an input."""

    aval: Any


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A literal or a captured constant of one variant."""

    value: Any

    @property
    def aval(self) -> Any:
        """The type of the value."""
        return jax.typeof(self.value)


Source = Slot | Constant


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One equation of a flattened variant.

    Attributes:
        eqn: The equation, for its primitive, parameters and source line.
        ins: Where its inputs come from.
        outs: What it computes.
        meets: Whether replicas meet in it, at any depth.
    """

    eqn: Any
    ins: tuple[Source, ...]
    outs: tuple[Slot, ...]
    meets: bool

    @property
    def name(self) -> str:
        """The name of the primitive."""
        return self.eqn.primitive.name


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Meeting:
    """The same collective, or the same control flow around collectives, in every variant.

    Attributes:
        steps: The step of each variant.
        bodies: Empty for a collective, one for a scan, predicate and body for a while loop, one
            for each branch of a cond.
    """

    steps: tuple[Step, ...]
    bodies: tuple[Plan, ...]

    @property
    def name(self) -> str:
        """The name of the primitive, the same in all variants."""
        return self.steps[0].name

    def operands(self) -> list[list[tuple[Source, ...]]]:
        """What enters through the meeting itself: groups, in each one tuple for each variant."""
        if self.name == "scan":
            carries, rows = [], []
            for step in self.steps:
                first, last = scan_carry(step)
                carries.append(step.ins[first:last])
                rows.append(step.ins[last:])
            return [carries, rows]
        if self.name == "while":
            return [[step.ins[sum(while_consts(step)) :] for step in self.steps]]
        if self.name == "cond":
            return [[step.ins[:1] for step in self.steps]]
        return [[step.ins for step in self.steps]]

    def captured(self, variant: int) -> tuple[Source, ...]:
        """What the bodies of one variant read from around the meeting."""
        step = self.steps[variant]
        if self.name == "scan":
            return step.ins[: scan_counts(step.eqn)[0]]
        if self.name == "while":
            return step.ins[: sum(while_consts(step))]
        return step.ins[1:] if self.name == "cond" else ()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Aligned variants: a segment of each, a meeting, a segment of each, ..., a last segment.

    Attributes:
        ins: The inputs of each variant.
        segments: One more than meetings; in each, the steps of each variant.
        meetings: Where the variants meet, in order.
        outs: The outputs of each variant.
    """

    ins: tuple[tuple[Slot, ...], ...]
    segments: tuple[tuple[tuple[Step, ...], ...], ...]
    meetings: tuple[Meeting, ...]
    outs: tuple[tuple[Source, ...], ...]

    def has_branches(self) -> bool:
        """Whether some meeting happens only under a predicate."""
        return any(
            meeting.name in ("cond", "while") or any(body.has_branches() for body in meeting.bodies)
            for meeting in self.meetings
        )

    def live_after(self) -> list[list[list[Slot]]]:
        """For each segment but the last, and each variant, what of it is read after its meeting."""
        live: list[list[list[Slot]]] = [[] for _ in self.meetings]
        for variant, outs in enumerate(self.outs):
            needed: set[Source] = set(outs)
            for step in self.segments[-1][variant]:
                needed.update(step.ins)
            for number in reversed(range(len(self.meetings))):
                meeting, steps = self.meetings[number], self.segments[number][variant]
                needed.update(meeting.captured(variant))
                made = [slot for step in steps for slot in step.outs]
                live[number].append([slot for slot in made if slot in needed and not is_ref(slot)])
                needed.update(meeting.steps[variant].ins)
                for step in steps:
                    needed.update(step.ins)
        return live


def scan_carry(step: Step) -> tuple[int, int]:
    """The first input of a scan that is carried, and the first after these."""
    num_consts, num_carry = scan_counts(step.eqn)
    return num_consts, num_consts + num_carry


def while_consts(step: Step) -> tuple[int, int]:
    """How many inputs of a while loop only its predicate reads, and how many only its body."""
    return step.eqn.params["cond_nconsts"], step.eqn.params["body_nconsts"]


def align(variants: Sequence[Any], *, axis: str) -> Plan:
    """The plan of several closed jaxprs.

    Raises:
        LockstepError: The variants do not meet in the same way.
    """
    return _Alignment(axis).align(variants)


class _Alignment:
    """Flattens and lines up; remembers which jaxprs contain a collective."""

    def __init__(self, axis: str) -> None:
        self._axis = axis
        self._contains: dict[int, bool] = {}

    def align(self, variants: Sequence[Any]) -> Plan:
        ins: list[tuple[Slot, ...]] = []
        outs: list[tuple[Source, ...]] = []
        segments: list[list[tuple[Step, ...]]] = []
        meeting_steps: list[list[Step]] = []
        for variant in variants:
            slots = tuple(Slot(var.aval) for var in variant.jaxpr.invars)
            steps: list[Step] = []
            outs.append(tuple(self._inline(variant.jaxpr, variant.consts, slots, steps)))
            ins.append(slots)
            meeting_steps.append([step for step in steps if step.meets])
            segments.append(list(_split(steps)))
        meetings = []
        for number in range(max(map(len, meeting_steps))):
            column = [steps[number] if number < len(steps) else None for steps in meeting_steps]
            meetings.append(self._meeting(column))
        return Plan(tuple(ins), tuple(zip(*segments, strict=True)), tuple(meetings), tuple(outs))

    def _inline(
        self, jaxpr: Any, consts: Sequence[Any], ins: Sequence[Source], steps: list[Step]
    ) -> list[Source]:
        """Appends the steps of ``jaxpr`` and gives its outputs."""
        env: dict[Any, Source] = dict(zip(jaxpr.constvars, map(Constant, consts), strict=True))
        env.update(zip(jaxpr.invars, ins, strict=True))

        def read(atom: Any) -> Source:
            return Constant(atom.val) if isinstance(atom, Literal) else env[atom]

        for eqn in jaxpr.eqns:
            sources = tuple(map(read, eqn.invars))
            meets = self._meets(eqn)
            name = eqn.primitive.name
            if meets and name in varying.CALLS and name != "shard_map":
                body = eqn.params[varying.CALLS[name]]
                body_consts = getattr(body, "consts", ())
                plain = open_jaxpr(body)
                env.update(
                    zip(eqn.outvars, self._inline(plain, body_consts, sources, steps), strict=True)
                )
                continue
            slots = tuple(Slot(var.aval) for var in eqn.outvars)
            env.update(zip(eqn.outvars, slots, strict=True))
            steps.append(Step(eqn, sources, slots, meets))
        return [read(atom) for atom in jaxpr.outvars]

    def _meets(self, eqn: Any) -> bool:
        """Whether replicas meet in this equation, at any depth."""
        return varying.is_collective(eqn, axis=self._axis) or any(
            self._contains_meeting(jaxpr) for jaxpr in sub_jaxprs(eqn.params)
        )

    def _contains_meeting(self, jaxpr: Any) -> bool:
        if id(jaxpr) not in self._contains:
            self._contains[id(jaxpr)] = any(map(self._meets, jaxpr.eqns))
        return self._contains[id(jaxpr)]

    def _meeting(self, column: Sequence[Step | None]) -> Meeting:
        steps = tuple(step for step in column if step is not None)
        if len(steps) < len(column):
            kind = next(kind for kind, step in enumerate(column) if step is not None)
            raise _mismatch(steps[0], kind, f"replica kind {column.index(None)} ends without it")
        first = steps[0]
        for kind, step in enumerate(steps):
            if _signature(step) != _signature(first):
                raise _mismatch(first, 0, f"replica kind {kind} calls {_describe(step)} there")
        params = [step.eqn.params for step in steps]
        if varying.is_collective(first.eqn, axis=self._axis):
            bodies: list[list[Any]] = []
        elif first.name == "scan":
            bodies = [[param["jaxpr"] for param in params]]
        elif first.name == "while":
            bodies = [[param[key] for param in params] for key in ("cond_jaxpr", "body_jaxpr")]
        elif first.name == "cond":
            bodies = [list(row) for row in zip(*(p["branches"] for p in params), strict=True)]
        else:
            raise LockstepError(
                f"{first.name} at {user_line(first.eqn)} contains a collective, "
                f"which cannot be merged when the shapes or the code of the replicas differ. Call "
                f"the collective outside of it."
            )
        return Meeting(steps, tuple(map(self.align, bodies)))


def _split(steps: Sequence[Step]) -> Iterator[tuple[Step, ...]]:
    """The runs of steps before, between and after the meetings."""
    segment: list[Step] = []
    for step in steps:
        if step.meets:
            yield tuple(segment)
            segment = []
        else:
            segment.append(step)
    yield tuple(segment)


def _signature(step: Step) -> Any:
    """What has to be equal in all variants where they meet."""
    params = step.eqn.params
    if step.name == "scan":
        return "scan", params["length"], params["reverse"]
    if step.name == "while":
        return "while"
    if step.name == "cond":
        return "cond", len(params["branches"])
    if sub_jaxprs(params):
        return step.name
    shapes = [(source.aval.shape, source.aval.dtype) for source in step.ins]
    plain = {key: value for key, value in params.items() if not callable(value)}
    return step.name, plain, shapes


def _describe(step: Step) -> str:
    """The step with what tells it from another of its kind, and its line."""
    if step.name == "scan":
        detail = f"scan of length {step.eqn.params['length']}"
    elif step.name in ("while", "cond"):
        detail = f"{step.name} with a collective inside"
    else:
        operands = ", ".join(source.aval.str_short() for source in step.ins)
        detail = f"{step.name} of {operands}"
    return f"{detail} at {user_line(step.eqn)}"


def _mismatch(step: Step, kind: int, other: str) -> LockstepError:
    return LockstepError(
        f"Replica kind {kind} calls {_describe(step)}, but {other}. All replicas must call the "
        f"same collectives with the same shapes in the same order: move the call out of the code "
        f"that only some replicas run."
    )
