"""Merges several traced variants of one replica function into one program for all replicas.

Variants exist where components have different shapes or Python branches on the replica id. Every
replica executes exactly its own variant: between two collectives a switch on the kind of replica
picks the segment of one variant, and at a collective all of them meet. Where the variants meet is
worked out by ``alignment``.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from replicax.engine.analysis.alignment import (
    Constant,
    Meeting,
    Plan,
    Slot,
    Source,
    Step,
    align,
    scan_carry,
    while_consts,
)
from replicax.engine.analysis.numbering import number_constant, number_plan
from replicax.jax_internals.programs import origin_of

_Env = dict[Slot, Any]


def run_in_lockstep(
    variants: Sequence[Any],
    inputs: Sequence[Sequence[Any]],
    kind_of_replica: Sequence[int],
    *,
    axis: str,
    shared_outputs: Sequence[int] = (),
) -> list[list[jax.Array]]:
    """Runs on each replica its own variant, with the collectives of all of them in common.

    Called inside the body of a ``shard_map`` over ``axis``.

    Args:
        variants: A closed jaxpr for each kind of replica.
        inputs: The inputs of each variant. What is the same in several variants should be the same
            object, then it is not copied, and predicates that depend on it count as equal.
        kind_of_replica: The kind of each replica, in the order of ``axis``.
        axis: The mesh axis that counts the replicas.
        shared_outputs: Positions of outputs that have one shape and dtype in all variants and are
            wanted once: every variant's list holds the same array, the value of this replica.

    Returns:
        For each variant its outputs. On a replica of kind k those of variant k have their values,
        the others are zeros, apart from the shared ones.

    Raises:
        LockstepError: The variants do not meet at the same collectives.
    """
    plan = align(variants, axis=axis)
    if plan.has_branches():
        number_plan(plan, [[_identity(value) for value in row] for row in inputs])
    kinds = np.asarray(kind_of_replica, np.int32)
    kind = jnp.asarray(kinds)[lax.axis_index(axis)] if len(variants) > 1 else jnp.int32(0)
    shared = [tuple(row[position] for position in shared_outputs) for row in plan.outs]
    own = [
        tuple(source for position, source in enumerate(row) if position not in shared_outputs)
        for row in plan.outs
    ]
    groups = [_Group.pooled(shared), _Group.separate(own)]
    shared_values, own_values = _Lockstep(kind, len(variants)).run(plan, inputs, groups)
    outputs = []
    for variant, row in enumerate(plan.outs):
        once, rest = iter(shared_values[variant]), iter(own_values[variant])
        outputs.append([next(once) if p in shared_outputs else next(rest) for p in range(len(row))])
    return outputs


def _identity(value: Any) -> Any:
    return number_constant(value) if isinstance(value, np.ndarray) else ("object", id(value))


@dataclasses.dataclass(frozen=True, slots=True)
class _Group:
    """Values that leave a segment, laid out so that all variants use the same places.

    Attributes:
        sources: For each variant the values it wants.
        places: For each variant the place of each of them.
        types: The shape and dtype of each place.
        exact: Whether a place that a variant does not use has to be zero there.
    """

    sources: Sequence[Sequence[Source]]
    places: Sequence[Sequence[int]]
    types: Sequence[tuple[tuple[int, ...], Any]]
    exact: bool

    @classmethod
    def pooled(cls, sources: Sequence[Sequence[Source]]) -> _Group:
        """Values of equal type share a place: a replica has use for one variant's only."""
        places_of: dict[Any, int] = {}
        places = []
        for row in sources:
            seen: Counter[Any] = Counter()
            keys = []
            for source in row:
                kind = (tuple(source.aval.shape), source.aval.dtype)
                keys.append((*kind, seen[kind]))
                seen[kind] += 1
            places.append([places_of.setdefault(key, len(places_of)) for key in keys])
        return cls(sources, places, [key[:2] for key in places_of], exact=False)

    @classmethod
    def separate(cls, sources: Sequence[Sequence[Source]]) -> _Group:
        """Every variant has its own places."""
        places, types = [], []
        for row in sources:
            places.append(range(len(types), len(types) + len(row)))
            types += [(tuple(source.aval.shape), source.aval.dtype) for source in row]
        return cls(sources, places, types, exact=True)

    def resourced(self, sources: Sequence[Sequence[Source]]) -> _Group:
        """The same places for other values of the same types."""
        return dataclasses.replace(self, sources=sources)

    def pick(self, values: Sequence[Any]) -> list[list[Any]]:
        """For each variant the values at its places."""
        return [[values[place] for place in row] for row in self.places]

    def columns(self) -> list[list[Source | None]]:
        """For each place the value of each variant, None where it has none."""
        columns: list[list[Source | None]] = [[None] * len(self.sources) for _ in self.types]
        for variant, (row, places) in enumerate(zip(self.sources, self.places, strict=True)):
            for source, place in zip(row, places, strict=True):
                columns[place][variant] = source
        return columns


class _Lockstep:
    """Executes plans for one kind of replica known only at run time."""

    def __init__(self, kind: jax.Array, num_variants: int) -> None:
        self._kind = kind
        self._num_variants = num_variants

    def run(
        self, plan: Plan, inputs: Sequence[Sequence[Any]], groups: Sequence[_Group]
    ) -> list[list[list[Any]]]:
        """For each group of outputs, for each variant, the values."""
        places = self.run_to_places(plan, inputs, groups)
        return [group.pick(values) for group, values in zip(groups, places, strict=True)]

    def run_to_places(
        self, plan: Plan, inputs: Sequence[Sequence[Any]], groups: Sequence[_Group]
    ) -> list[list[Any]]:
        """For each group of outputs the values of its places."""
        envs: list[_Env] = [
            dict(zip(slots, row, strict=True)) for slots, row in zip(plan.ins, inputs, strict=True)
        ]
        filled = _make_refs(plan, envs)
        for steps, meeting, live in zip(
            plan.segments, plan.meetings, plan.live_after(), strict=False
        ):
            operands = [_Group.pooled(sources) for sources in meeting.operands()]
            wanted = [*operands, _Group.pooled(live)]
            *values, kept = self._run_segment(steps, envs, wanted, filled)
            for env, slots, row in zip(envs, live, wanted[-1].pick(kept), strict=True):
                env.update(zip(slots, row, strict=True))
            with origin_of(meeting.steps[0].eqn):
                outs = self._meet(meeting, envs, operands, values)
            for env, step, row in zip(envs, meeting.steps, outs, strict=True):
                env.update(zip(step.outs, row, strict=True))
        return self._run_segment(plan.segments[-1], envs, groups, filled)

    def _run_segment(
        self,
        steps: Sequence[Sequence[Step]],
        envs: Sequence[_Env],
        groups: Sequence[_Group],
        filled: set[Step],
    ) -> list[list[Any]]:
        """Runs each replica's own steps; for each group the values of its places."""
        columns = [column for group in groups for column in group.columns()]
        types = [kind for group in groups for kind in group.types]
        values: list[Any] = []
        for group in groups:
            if group.exact and self._num_variants > 1:
                values += [None] * len(group.types)
            else:
                values += [_common(column, envs) for column in group.columns()]
        open_places = [place for place, value in enumerate(values) if value is None]

        def branch(variant: int) -> Callable[[], list[Any]]:
            def run() -> list[Any]:
                env = _run_steps(steps[variant], envs[variant], filled)
                return [
                    _zeros(*types[place])
                    if (source := columns[place][variant]) is None
                    else _strong(_read(source, env, envs[variant]))
                    for place in open_places
                ]

            return run

        if open_places or any(steps):
            branches = [branch(variant) for variant in range(self._num_variants)]
            made = branches[0]() if len(branches) == 1 else lax.switch(self._kind, branches)
            for place, value in zip(open_places, made, strict=True):
                values[place] = value
        rest = iter(values)
        return [[next(rest) for _ in group.types] for group in groups]

    def _meet(
        self,
        meeting: Meeting,
        envs: Sequence[_Env],
        operands: Sequence[_Group],
        values: Sequence[Sequence[Any]],
    ) -> list[list[Any]]:
        """The outputs of a meeting for each variant."""
        if meeting.name == "scan":
            return self._scan(meeting, envs, operands, values)
        if meeting.name == "while":
            return self._while(meeting, envs, operands[0], values[0])
        if meeting.name == "cond":
            return self._cond(meeting, envs, values[0][0])
        eqn = meeting.steps[0].eqn
        ordered = operands[0].pick(values[0])[0]
        outs = eqn.primitive.bind(*ordered, **eqn.primitive.get_bind_params(eqn.params))
        outs = list(outs) if eqn.primitive.multiple_results else [outs]
        return [outs for _ in meeting.steps]

    def _captured(self, meeting: Meeting, envs: Sequence[_Env]) -> list[list[Any]]:
        return [
            [_read(source, env) for source in meeting.captured(variant)]
            for variant, env in enumerate(envs)
        ]

    def _scan(
        self,
        meeting: Meeting,
        envs: Sequence[_Env],
        operands: Sequence[_Group],
        values: Sequence[Sequence[Any]],
    ) -> list[list[Any]]:
        (body,), params = meeting.bodies, meeting.steps[0].eqn.params
        captured = self._captured(meeting, envs)
        carries, rows = operands
        spans = [scan_carry(step) for step in meeting.steps]
        counts = [last - first for first, last in spans]
        carried = carries.resourced(
            [outs[:count] for outs, count in zip(body.outs, counts, strict=True)]
        )
        stacked = _Group.pooled(
            [outs[count:] for outs, count in zip(body.outs, counts, strict=True)]
        )

        def run(carry: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
            parts = zip(captured, carries.pick(carry), rows.pick(row), strict=True)
            inputs = [[*consts, *middle, *last] for consts, middle, last in parts]
            carry, out = self.run_to_places(body, inputs, [carried, stacked])
            return carry, out

        carry, out = lax.scan(
            run,
            list(values[0]),
            list(values[1]),
            length=params["length"],
            reverse=params["reverse"],
            unroll=params["unroll"],
        )
        parts = zip(carries.pick(carry), stacked.pick(out), strict=True)
        return [[*first, *second] for first, second in parts]

    def _while(
        self, meeting: Meeting, envs: Sequence[_Env], carries: _Group, values: Sequence[Any]
    ) -> list[list[Any]]:
        predicate, body = meeting.bodies
        captured = self._captured(meeting, envs)
        num_cond = [while_consts(step)[0] for step in meeting.steps]
        answer = _Group.pooled(predicate.outs)
        carried = carries.resourced(body.outs)

        def test(carry: list[Any]) -> Any:
            parts = zip(captured, num_cond, carries.pick(carry), strict=True)
            inputs = [[*consts[:count], *middle] for consts, count, middle in parts]
            return self.run_to_places(predicate, inputs, [answer])[0][0]

        def run(carry: list[Any]) -> list[Any]:
            parts = zip(captured, num_cond, carries.pick(carry), strict=True)
            inputs = [[*consts[count:], *middle] for consts, count, middle in parts]
            return self.run_to_places(body, inputs, [carried])[0]

        return carries.pick(lax.while_loop(test, run, list(values)))

    def _cond(self, meeting: Meeting, envs: Sequence[_Env], index: Any) -> list[list[Any]]:
        captured = self._captured(meeting, envs)
        outs = _Group.pooled([step.outs for step in meeting.steps])

        def branch(body: Plan) -> Callable[[], list[Any]]:
            return lambda: self.run_to_places(body, captured, [outs.resourced(body.outs)])[0]

        return outs.pick(lax.switch(index, [branch(body) for body in meeting.bodies]))


def _make_refs(plan: Plan, envs: Sequence[_Env]) -> set[Step]:
    """Makes the Refs of all variants, because none can leave a branch.

    Variants share them, for a replica uses those of its own variant only: of one shape and dtype
    there are as many as the variant needs that has most. One that starts from a value at hand is
    made with it, and its step is among those returned; the others are filled by their step.
    """
    refs: dict[Any, Any] = {}
    filled: set[Step] = set()
    for variant, env in enumerate(envs):
        seen: Counter[Any] = Counter()
        for segment in plan.segments:
            for step in segment[variant]:
                if step.name not in ("new_ref", "empty_ref"):
                    continue
                slot = step.outs[0]
                kind = (tuple(slot.aval.shape), slot.aval.dtype)
                start = _find(step.ins[0], env) if step.ins else None
                key = (*kind, None if start is None else id(start))
                key = (*key, seen[key])
                seen[key[:-1]] += 1
                if key not in refs:
                    refs[key] = jax.new_ref(_zeros(*kind) if start is None else start)
                env[slot] = refs[key]
                if start is not None:
                    filled.add(step)
    return filled


def _run_steps(steps: Sequence[Step], env: _Env, filled: set[Step]) -> _Env:
    """The values that ``steps`` make."""
    made: _Env = {}
    for step in steps:
        if step in filled or step.name in ("empty_ref", "free_ref"):
            continue
        values = [_read(source, made, env) for source in step.ins]
        with origin_of(step.eqn):
            if step.name == "new_ref":
                env[step.outs[0]][...] = values[0]
                continue
            if step.name == "freeze":  # the others may still use the Ref that it shares
                made[step.outs[0]] = values[0][...]
                continue
            primitive = step.eqn.primitive
            outs = primitive.bind(*values, **primitive.get_bind_params(step.eqn.params))
        made.update(zip(step.outs, outs if primitive.multiple_results else [outs], strict=True))
    return made


def _read(source: Source, *envs: _Env) -> Any:
    if isinstance(source, Constant):
        return source.value
    return next(env[source] for env in envs if source in env)


def _find(source: Source, env: _Env) -> Any:
    return source.value if isinstance(source, Constant) else env.get(source)


def _common(column: Sequence[Source | None], envs: Sequence[_Env]) -> Any:
    """The value of a place, if all variants that use it have the same object for it already."""
    found = [
        _find(source, env) for source, env in zip(column, envs, strict=True) if source is not None
    ]
    first = found[0]
    return _strong(first) if first is not None and all(v is first for v in found) else None


def _strong(value: Any) -> Any:
    """The value without a weak type, which branches and loops would have to agree on."""
    dtype = jax.typeof(value).dtype
    return value if jnp.issubdtype(dtype, jax.dtypes.extended) else jnp.asarray(value, dtype)


def _zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    return lax.full(shape, 0, dtype)  # also of random keys
