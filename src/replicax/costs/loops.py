"""Which collectives in the body of a scan could be executed once, outside of it.

Two kinds: one whose operands are the same in every round can be executed before the loop; one whose
results are only added up, or only collected, can be executed after it, on the sum or on all rounds
together. Only the equations of the body itself are looked at, not what is in calls inside it.
"""

from __future__ import annotations

from typing import Any

from replicax.costs.primitives import MOVES
from replicax.jax_internals.programs import Literal

BEFORE = "before the loop"
AFTER = "after the loop"

_SUMS = frozenset({"psum", "psum_invariant", "unreduced_psum"})
_ADDS = frozenset({"add", "add_any"})
_SCALES = frozenset({"mul", "div"})


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
    return isinstance(atom, Literal) or atom in found


def _is_added_up(eqn: Any, body: Any, same: set[Any], num_consts: int, num_carry: int) -> bool:
    """Whether the results go nowhere but into sums that the loop carries, and its outputs."""
    carried = dict(zip(body.invars[num_consts:][:num_carry], body.outvars[:num_carry], strict=True))
    summed, sums = set(eqn.outvars), set()
    for other in body.eqns:
        uses = [atom for atom in other.invars if not isinstance(atom, Literal) and atom in summed]
        if not uses or other is eqn:
            if any(not isinstance(atom, Literal) and atom in sums for atom in other.invars):
                return False
            continue
        name, (out, *_) = other.primitive.name, other.outvars
        rest = [atom for atom in other.invars if not any(atom is one for one in uses)]
        if name in MOVES or (name in _SCALES and all(_is_in(atom, same) for atom in rest)):
            summed.update(other.outvars)
        elif name in _ADDS and len(rest) == 1 and carried.get(rest[0]) is out:
            sums.add(out)
        else:
            return False
    used = [atom for other in body.eqns for atom in other.invars if not isinstance(atom, Literal)]
    old = {before for before, after in carried.items() if after in sums}
    if any(used.count(before) != 1 for before in old):
        return False  # a round looks at the sum so far
    return not any(after in summed for after in body.outvars[:num_carry] if _is_var(after))


def _is_var(atom: Any) -> bool:
    return not isinstance(atom, Literal)
