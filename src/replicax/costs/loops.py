"""Which collectives in the body of a scan could be executed once, outside of it.

Two kinds: one whose operands are the same in every round can be executed before the loop; one
whose results are only added up can be executed after it, on the sum. Only the equations of the body
itself are looked at, not what is in calls inside it.
"""

from __future__ import annotations

from typing import Any

from replicax.costs.primitives import MOVES
from replicax.jax_internals.programs import Literal, is_ref

BEFORE = "before the loop"
AFTER = "after the loop"

_SUMS = frozenset({"psum", "psum_invariant", "unreduced_psum"})
_ADDS = frozenset({"add", "add_any"})


def place_outside(eqn: Any, body: Any, *, num_consts: int, num_carry: int) -> str | None:
    """Where a collective of a loop could be executed once instead.

    Args:
        eqn: The collective.
        body: The body of the scan, in which it is.
        num_consts: How many inputs of the body are the same in every round.
        num_carry: How many inputs after these are results of the round before.

    Returns:
        `BEFORE`, `AFTER`, or None.
    """
    same = set(body.invars[:num_consts])
    for other in body.eqns:
        if other is eqn:
            break
        if not other.effects and all(_is_in(atom, same) for atom in other.invars):
            same.update(other.outvars)
    if all(_is_in(atom, same) for atom in eqn.invars):
        return BEFORE
    if eqn.primitive.name in _SUMS and _is_added_up(eqn, body, same, num_consts, num_carry):
        return AFTER
    return None


def _is_in(atom: Any, found: set[Any]) -> bool:
    """Whether an atom is one of these, or a number that is written out."""
    return isinstance(atom, Literal) or atom in found


def _is_added_up(eqn: Any, body: Any, same: set[Any], num_consts: int, num_carry: int) -> bool:
    """Whether the results go nowhere but into sums that the loop carries."""
    carried = dict(zip(body.invars[num_consts:][:num_carry], body.outvars[:num_carry], strict=True))
    summed, sums = set(eqn.outvars), set()
    for other in body.eqns:
        if any(_is_among(atom, sums) for atom in other.invars):
            return False  # a round looks at the sum
        uses = [atom for atom in other.invars if _is_among(atom, summed)]
        if not uses:
            continue
        name, (out, *_) = other.primitive.name, other.outvars
        rest = [atom for atom in other.invars if not any(atom is one for one in uses)]
        if _is_linear(name, other, uses) and all(_is_in(atom, same) for atom in rest):
            summed.update(other.outvars)
        elif name in _ADDS and len(rest) == 1 and carried.get(rest[0]) is out:
            sums.add(out)
        else:
            return False
    used = [atom for other in body.eqns for atom in other.invars if not isinstance(atom, Literal)]
    before = [old for old, new in carried.items() if _is_among(new, sums)]
    if any(used.count(old) != 1 for old in before):
        return False  # it looks at the sum so far
    return bool(sums) and not any(_is_among(after, summed) for after in body.outvars)


def _is_linear(name: str, eqn: Any, uses: list[Any]) -> bool:
    """Whether the result of an equation is a multiple of what is used, or its elements moved."""
    if name == "div":
        return uses == [eqn.invars[0]]
    return len(uses) == 1 and (
        name == "mul" or (name in MOVES and not any(map(is_ref, eqn.invars)))
    )


def _is_among(atom: Any, found: set[Any]) -> bool:
    return not isinstance(atom, Literal) and atom in found
