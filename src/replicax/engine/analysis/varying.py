"""Decides which values of a traced replica function may differ between replicas.

A pass over the jaxpr inside one ``shard_map``: a value varies when it is computed from something
that varies and has not been reduced over the replica axis since. The same pass refuses three
programs that would go wrong without a word: a collective that only some replicas reach (it would
hang), a write inside ``jax.checkpoint`` (it would happen twice), and a while loop whose predicate
waits for a write of its body (JAX does not show it). It knows nothing of variables, strategies or
devices; it is called after each trace.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from replicax.core.errors import TraceError
from replicax.engine.analysis.uniform import not_uniform, uniform_p
from replicax.jax_internals.primitives import named_axes, names_unknown
from replicax.jax_internals.programs import (
    Literal,
    is_ref,
    open_jaxpr,
    scan_counts,
    sub_jaxprs,
    user_line,
)

# Looked through: the equation's inputs and outputs are those of the jaxpr in this parameter.
CALLS = {
    "jit": "jaxpr",
    "call": "call_jaxpr",
    "closed_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",  # since JAX 0.11 both of these; JAX 0.10 put the body in its place
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
    "linear_call": "callee",
    "remat2": "jaxpr",
    "shard_map": "jaxpr",
}

# Over the axis these give every replica the same value; "_start" forms of them too.
_REDUCTIONS = frozenset(
    {
        "psum",
        "psum_invariant",
        "unreduced_psum",
        "pmax",
        "pmin",
        "pbroadcast",
        "all_gather",
        "all_gather_invariant",
        "all_gather_reduced",
    }
)
# These compute with the values of the replicas while they travel.
_ARITHMETIC = frozenset(
    {"psum", "psum_invariant", "unreduced_psum", "pmax", "pmin", "reduce_scatter"}
)
# These name an axis and yet exchange nothing.
_LOCAL = frozenset(
    {"axis_index", "pvary", "preduced", "reduced_vary_cast_p", "vary_unreduced_cast_p"}
)
# Each device answers for itself, whatever the inputs.
_OWN_ANSWER = frozenset(
    {"pure_callback", "io_callback", "buffer_callback", "rng_uniform", "infeed", "recv"}
)
_TELLING = _OWN_ANSWER | {"axis_index"}


class DivergentCollectiveError(TraceError):
    """A collective that only some of the replicas would reach."""


class RematWriteError(TraceError):
    """A write inside ``jax.checkpoint``, which its gradient would execute again."""


class UnknownCollectiveError(TraceError):
    """An operation on the axis of the replicas of which nothing is known."""


class StalePredicateError(TraceError):
    """A while loop whose predicate and body share a variable that one of them assigns."""


def refuse_repeated_writes(jaxpr: Any) -> None:
    """Looks at code of one replica, or outside of replicas, where nothing varies.

    Code of replicas inside is left out: it was looked at when it was traced, and JAX lets no Ref
    into it.

    Raises:
        RematWriteError: ``jax.checkpoint`` contains a write to a Ref made outside of it.
        StalePredicateError: The predicate of a while loop would not see what its body writes.
    """
    _analysed(jaxpr, [False] * len(jaxpr.invars), _Pass(None))


def analyse(jaxpr: Any, varying_in: Sequence[bool], *, axis: str) -> list[bool]:
    """For each output of ``jaxpr``, whether its value may differ between replicas.

    Args:
        jaxpr: The jaxpr inside a ``shard_map`` equation, open or closed.
        varying_in: For each input, whether it differs between replicas.
        axis: The mesh axis that counts the replicas.

    Raises:
        DivergentCollectiveError: A collective over ``axis`` is under a varying predicate.
        UnknownCollectiveError: It is not known what an operation on ``axis`` does.
        RematWriteError: ``jax.checkpoint`` contains a write to a Ref made outside of it.
        StalePredicateError: The predicate of a while loop would not see what its body writes.
    """
    return _analysed(jaxpr, varying_in, _Pass(axis))


def divergent_branch(jaxpr: Any, varying_in: Sequence[bool], *, axis: str) -> Any:
    """The first cond, switch or while that replicas may run differently, or None.

    Takes and raises what `analyse` does.
    """
    found = _Pass(axis)
    _analysed(jaxpr, varying_in, found)
    return found.divergent


def _analysed(jaxpr: Any, varying_in: Sequence[bool], analysis: _Pass) -> list[bool]:
    jaxpr = open_jaxpr(jaxpr)
    if len(varying_in) != len(jaxpr.invars):
        raise ValueError(
            f"varying_in has {len(varying_in)} entries for the {len(jaxpr.invars)} inputs of the "
            f"jaxpr. Give one for each input."
        )
    values = [
        _Cell(bool(varies)) if is_ref(var) else bool(varies)
        for var, varies in zip(jaxpr.invars, varying_in, strict=True)
    ]
    return [_varies(value) for value in analysis.run(jaxpr, values, branch=None)]


def is_collective(eqn: Any, *, axis: str) -> bool:
    """Whether an equation itself makes the replicas of ``axis`` meet.

    Raises:
        UnknownCollectiveError: It names the axis, and it is not known what it does.
    """
    if names_unknown(eqn, axis):
        raise UnknownCollectiveError(
            f"{eqn.primitive.name} at {user_line(eqn)} names the axis {axis!r} of the replicas, "
            f"and this version of Replicax does not know what it does with it: replicas could wait "
            f"for each other for ever, or drift apart. Use a collective of jax.lax that it knows, "
            f"or the methods of ReplicaContext."
        )
    return eqn.primitive.name not in _LOCAL and axis in named_axes(eqn)


def refuse_half_sums(jaxpr: Any, *, axis: str) -> None:
    """Refuses what XLA cannot compile for CPU replicas of several logical devices: it would abort.

    Replicax itself reduces bfloat16 in float32. A collective of the user's own may not.

    Raises:
        TraceError: If `jaxpr` combines bfloat16 values over ``axis`` with arithmetic.
    """
    for eqn in open_jaxpr(jaxpr).eqns:
        adds = eqn.primitive.name.removesuffix("_start") in _ARITHMETIC
        if adds and axis in named_axes(eqn) and any(map(_is_bfloat16, eqn.invars)):
            raise TraceError(
                f"the {eqn.primitive.name} at {user_line(eqn)} combines bfloat16 values of "
                "replicas that span several logical devices; XLA cannot compile that for CPU "
                "devices. Use ReplicaContext.all_reduce, or convert the values to float32 first."
            )
        for body in sub_jaxprs(eqn.params):
            refuse_half_sums(body, axis=axis)


def _is_bfloat16(atom: Any) -> bool:
    return getattr(atom.aval, "dtype", None) == jnp.bfloat16


@dataclasses.dataclass(slots=True, eq=False)
class _Cell:
    """What is known of one Ref at one point of the program.

    Attributes:
        varies: Whether its content may differ between replicas now.
        num_writes: Grows with every write, so that a branch can tell what it wrote.
        remat: The checkpoint equation that is being looked into and that this Ref came into.
    """

    varies: bool
    num_writes: int = 0
    remat: Any = None


_Value = bool | _Cell


def _varies(value: _Value) -> bool:
    return value.varies if isinstance(value, _Cell) else value


def _cells(values: Sequence[_Value]) -> list[_Cell]:
    return list(dict.fromkeys(value for value in values if isinstance(value, _Cell)))


@dataclasses.dataclass(frozen=True, slots=True)
class _Outcome:
    """What running a jaxpr did: its outputs, and for each Ref its state and whether it wrote."""

    outs: list[bool]
    states: list[tuple[bool, bool]]


class _Pass:
    """One analysis. Bodies met again with the same inputs are answered from memory.

    Attributes:
        divergent: The first equation found whose predicate varies, or None.
    """

    def __init__(self, axis: str | None) -> None:
        self.divergent: Any = None
        self._goes_into_replicas = axis is not None
        self._axis = axis or "no axis"
        self._outcomes: dict[tuple[Any, ...], _Outcome] = {}
        self._specials: dict[int, Any] = {}

    def run(self, jaxpr: Any, values: Sequence[_Value], *, branch: Any) -> list[bool]:
        """The outputs of ``jaxpr``; the cells among ``values`` are left in their final state.

        ``branch`` is the innermost equation whose predicate varies around this jaxpr, or None.
        """
        cells = _cells(values)
        numbers = {cell: number for number, cell in enumerate(cells)}
        key = (
            id(jaxpr),
            branch is not None,
            *(numbers[value] if isinstance(value, _Cell) else bool(value) for value in values),
            *((cell.varies, cell.remat is not None) for cell in cells),
        )
        outcome = self._outcomes.get(key)
        if outcome is not None:
            for cell, (varies, wrote) in zip(cells, outcome.states, strict=True):
                cell.varies = varies
                cell.num_writes += wrote
            return list(outcome.outs)
        num_writes = [cell.num_writes for cell in cells]
        outs = self._run_equations(jaxpr, values, branch)
        states = [
            (cell.varies, cell.num_writes != before)
            for cell, before in zip(cells, num_writes, strict=True)
        ]
        self._outcomes[key] = _Outcome(outs, states)
        return list(outs)

    def _run_equations(self, jaxpr: Any, values: Sequence[_Value], branch: Any) -> list[bool]:
        env: dict[Any, _Value] = {}
        for var in jaxpr.constvars:
            env[var] = _Cell(True) if is_ref(var) else False
        env.update(zip(jaxpr.invars, values, strict=True))

        def read(atom: Any) -> _Value:
            return False if isinstance(atom, Literal) else env[atom]

        for eqn in jaxpr.eqns:
            outs = self._run_equation(eqn, [read(atom) for atom in eqn.invars], branch)
            env.update(zip(eqn.outvars, outs, strict=True))
        return [_varies(read(atom)) for atom in jaxpr.outvars]

    def _run_equation(self, eqn: Any, values: list[_Value], branch: Any) -> Sequence[_Value]:
        name = eqn.primitive.name
        if name in _REF_RULES:
            return _REF_RULES[name](eqn, values)
        if name == "cond":
            return self._run_cond(eqn, values, branch)
        if name == "scan":
            return self._run_scan(eqn, values, branch)
        if name == "while":
            return self._run_while(eqn, values, branch)
        if name in CALLS:
            if name == "shard_map" and not self._goes_into_replicas:
                return [False] * len(eqn.outvars)
            return self._run_call(eqn, values, branch)
        if name == "optimization_barrier":
            return values
        if is_collective(eqn, axis=self._axis):
            if branch is not None:
                raise _divergence(eqn, branch)
            if eqn.primitive is uniform_p:
                if _varies(values[0]):
                    raise not_uniform(eqn)
                return [False]
            reduces = name.removesuffix("_start") in _REDUCTIONS
            everyone = eqn.params.get("axis_index_groups") is None
            return [not (reduces and everyone)] * len(eqn.outvars)
        if name == "axis_index":
            return [self._axis in named_axes(eqn)]
        return self._run_other(eqn, values, branch)

    def _run_other(self, eqn: Any, values: list[_Value], branch: Any) -> Sequence[_Value]:
        """A primitive without a rule: a function of its inputs, unless something in it is not."""
        cells = _cells(values)
        varies = (
            any(_varies(value) for value in values)
            or eqn.primitive.name in _OWN_ANSWER
            or bool(eqn.params.get("has_side_effect"))
            or bool(cells)
        )
        for jaxpr in sub_jaxprs(eqn.params):
            special = self._special_equation(jaxpr)
            if special is not None:
                varies = True
                if branch is not None and is_collective(special, axis=self._axis):
                    raise _divergence(special, branch)
        for cell in cells:  # it may write to them, and what it writes is unknown
            _write(eqn, cell, True)
        return [varies] * len(eqn.outvars)

    def _special_equation(self, jaxpr: Any) -> Any:
        """What tells replicas apart in ``jaxpr`` at any depth, a collective first, or None."""
        if id(jaxpr) not in self._specials:
            found = []
            for eqn in jaxpr.eqns:
                if is_collective(eqn, axis=self._axis) or eqn.primitive.name in _TELLING:
                    found.append(eqn)
                found += map(self._special_equation, sub_jaxprs(eqn.params))
            found = [eqn for eqn in found if eqn is not None]
            found.sort(key=lambda eqn: not is_collective(eqn, axis=self._axis))
            self._specials[id(jaxpr)] = found[0] if found else None
        return self._specials[id(jaxpr)]

    def _run_call(self, eqn: Any, values: list[_Value], branch: Any) -> Sequence[_Value]:
        body = open_jaxpr(eqn.params[CALLS[eqn.primitive.name]])
        is_remat = eqn.primitive.name == "remat2"
        entered = [cell for cell in _cells(values) if cell.remat is None] if is_remat else []
        for cell in entered:
            cell.remat = eqn
        outs = self.run(body, values, branch=branch)
        for cell in entered:
            cell.remat = None
        return outs

    def _run_cond(self, eqn: Any, values: list[_Value], branch: Any) -> Sequence[_Value]:
        predicate, operands = _varies(values[0]), values[1:]
        self._note(eqn, predicate)
        cells = _cells(operands)
        before = [(cell.varies, cell.num_writes) for cell in cells]
        after = [False] * len(cells)
        outs = [predicate] * len(eqn.outvars)
        for body in eqn.params["branches"]:
            for cell, (varies, _) in zip(cells, before, strict=True):
                cell.varies = varies
            inner = eqn if predicate else branch
            branch_outs = self.run(open_jaxpr(body), operands, branch=inner)
            outs = _join(outs, branch_outs)
            after = _join(after, [cell.varies for cell in cells])
        for cell, varies, (_, num_writes) in zip(cells, after, before, strict=True):
            cell.varies = varies or (predicate and cell.num_writes != num_writes)
        return outs

    def _note(self, eqn: Any, varies: bool) -> None:
        if varies and self.divergent is None:
            self.divergent = eqn

    def _run_scan(self, eqn: Any, values: list[_Value], branch: Any) -> Sequence[_Value]:
        num_consts, num_carry = scan_counts(eqn)
        body = open_jaxpr(eqn.params["jaxpr"])
        consts, xs = values[:num_consts], values[num_consts + num_carry :]
        carry = [_varies(value) for value in values[num_consts : num_consts + num_carry]]
        cells = _cells(values)
        while True:
            states = [cell.varies for cell in cells]
            outs = self.run(body, [*consts, *carry, *xs], branch=branch)
            after = [cell.varies for cell in cells]
            entry, entry_states = _join(carry, outs[:num_carry]), _join(states, after)
            settled = entry == carry and entry_states == states
            ran = settled and eqn.params["length"] != 0
            for cell, varies in zip(cells, after if ran else entry_states, strict=True):
                cell.varies = varies
            if settled:
                return outs if ran else [*carry, *outs[num_carry:]]
            carry = entry

    def _run_while(self, eqn: Any, values: list[_Value], branch: Any) -> Sequence[_Value]:
        num_cond, num_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        condition = open_jaxpr(eqn.params["cond_jaxpr"])
        body = open_jaxpr(eqn.params["body_jaxpr"])
        cond_consts, body_consts = values[:num_cond], values[num_cond : num_cond + num_body]
        carry = [_varies(value) for value in values[num_cond + num_body :]]
        cells = _cells(values)
        while True:
            before = [(cell.varies, cell.num_writes) for cell in cells]
            (predicate,) = self.run(condition, [*cond_consts, *carry], branch=branch)
            inner = eqn if predicate else branch
            self._note(eqn, predicate)
            if predicate:  # now that it is known to vary: a collective in it would hang too
                self.run(condition, [*cond_consts, *carry], branch=inner)
            middle = [cell.varies for cell in cells]
            outs = self.run(body, [*body_consts, *carry], branch=inner)
            _check_predicate(eqn, cells, before, _cells(cond_consts), _cells(body_consts))
            entry = _join(carry, [new or predicate for new in outs])
            for cell, (varies, num_writes), mid in zip(cells, before, middle, strict=True):
                written = cell.num_writes != num_writes
                cell.varies = cell.varies or mid or varies or (predicate and written)
            if entry == carry and [cell.varies for cell in cells] == [b[0] for b in before]:
                return carry
            carry = entry


def _join(first: Sequence[bool], second: Sequence[bool]) -> list[bool]:
    return [a or b for a, b in zip(first, second, strict=True)]


def _check_predicate(
    eqn: Any,
    cells: Sequence[_Cell],
    before: Sequence[tuple[bool, int]],
    in_predicate: Sequence[_Cell],
    in_body: Sequence[_Cell],
) -> None:
    """Refuses a Ref that JAX would hand to predicate and body as two."""
    for cell, (_, num_writes) in zip(cells, before, strict=True):
        if cell in in_predicate and cell in in_body and cell.num_writes != num_writes:
            raise StalePredicateError(
                f"the predicate and the body of the while loop at {user_line(eqn)} use the "
                f"same variable, and one of them assigns it. JAX would not show the new value to "
                f"the other, and the loop might never end. Carry the value through the loop, and "
                f"assign the variable after it."
            )


def _write(eqn: Any, cell: _Cell, varies: bool) -> None:
    if cell.remat is not None:
        raise RematWriteError(
            f"{user_line(eqn)} assigns a variable inside jax.checkpoint "
            f"({user_line(cell.remat)}): the backward pass runs that code again, so "
            f"the write would happen twice. Move the assign out of jax.checkpoint, or return the "
            f"value from it and assign it there."
        )
    cell.varies = varies
    cell.num_writes += 1


def _divergence(collective: Any, branch: Any) -> DivergentCollectiveError:
    kind = "while loop" if branch.primitive.name == "while" else "cond or switch"
    return DivergentCollectiveError(
        f"{collective.primitive.name} at {user_line(collective)} communicates between "
        f"replicas inside a {kind} at {user_line(branch)} whose predicate may differ "
        f"between replicas: some would reach it, others not, and the program would hang. Compute "
        f"on both branches and choose with jnp.where, or make the predicate equal on all replicas "
        f"with all_reduce."
    )


def _new_ref(eqn: Any, values: list[_Value]) -> Sequence[_Value]:
    return [_Cell(any(_varies(value) for value in values))]


def _get(eqn: Any, values: list[_Value]) -> Sequence[_Value]:
    return [any(_varies(value) for value in values)]


def _swap(eqn: Any, values: list[_Value]) -> Sequence[_Value]:
    cell, new, *index = values
    assert isinstance(cell, _Cell)
    indexed = any(_varies(value) for value in index)
    old = cell.varies or indexed
    # No index that is a value and the size of the whole: nothing of the old content is left.
    full = not index and eqn.invars[0].aval.size == eqn.invars[1].aval.size
    _write(eqn, cell, _varies(new) if full else _varies(new) or old)
    return [old] * len(eqn.outvars)


def _add(eqn: Any, values: list[_Value]) -> Sequence[_Value]:
    cell = values[0]
    assert isinstance(cell, _Cell)
    _write(eqn, cell, any(_varies(value) for value in values))
    return []


def _free(eqn: Any, values: list[_Value]) -> Sequence[_Value]:
    return []


_REF_RULES = {
    "new_ref": _new_ref,
    "empty_ref": _new_ref,
    "get": _get,
    "freeze": _get,
    "swap": _swap,
    "addupdate": _add,
    "free_ref": _free,
}
