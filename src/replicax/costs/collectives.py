"""The collectives of a step, and how many bytes they make a device send.

A `Collective` is one operation in which devices meet. Which ones a traced program has, the walk in
`costs.traced` says, and of a compiled one `costs.compiled`. Nothing here knows a program.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence

from replicax.jax_internals.programs import UNKNOWN_LINE

REPLICAS = "replicas"
LOGICAL_DEVICES = "logical devices"
ALL_DEVICES = "all devices"


@dataclasses.dataclass(frozen=True, slots=True)
class Traffic:
    """What the busiest device sends for one collective, executed once.

    Attributes:
        num_bytes: How many bytes it sends.
        num_rounds: How many messages follow one another; each costs the latency of a link.
    """

    num_bytes: float
    num_rounds: int


@dataclasses.dataclass(frozen=True, slots=True)
class Collective:
    """One operation in which devices meet.

    Attributes:
        kind: What XLA calls it, such as ``all-reduce``.
        operand_bytes: The bytes of each array that it takes, on one device: of an all-gather the
            part, of a reduce-scatter the whole. XLA may put several collectives into one
            operation, or take one apart; the operands stay.
        dtypes: The types of the operands, each once.
        group_size: How many devices meet.
        over: Whether these are the replicas, the logical devices of one replica, or all.
        count: How often a step executes it; None if that is known at run time only, in a while
            loop.
        in_branch: Whether it is in a branch of a cond or switch, so that a step may leave it out.
        line: The user's ``file:line`` that asked for it.
        variables: The names of the variables that it serves: which are updated with its result,
            or whose parts it gathers.
        is_inserted: Whether XLA's partitioner put it in; no line of the trace asks for it.
        could_be: Where it could be executed once, ``before the loop`` or ``after the loop``, if
            that would give the same; None otherwise.
        num_bytes: The bytes of all operands.
        num_operands: How many there are.

    Example:
        >>> gradients = Collective("all-reduce", (3_000_000, 1_000_000), ("float32",), 4)
        >>> gradients.ring()
        Traffic(num_bytes=6000000.0, num_rounds=6)
        >>> gradients.tree()
        Traffic(num_bytes=8000000, num_rounds=4)
    """

    kind: str
    operand_bytes: tuple[int, ...]
    dtypes: tuple[str, ...]
    group_size: int
    over: str = REPLICAS
    count: int | None = 1
    in_branch: bool = False
    line: str = UNKNOWN_LINE
    variables: tuple[str, ...] = ()
    is_inserted: bool = False
    could_be: str | None = None

    @property
    def num_operands(self) -> int:
        """How many arrays it takes."""
        return len(self.operand_bytes)

    @property
    def num_bytes(self) -> int:
        """The bytes of all of them, on one device."""
        return sum(self.operand_bytes)

    @property
    def times(self) -> int:
        """How often a step executes it, at least: once where that is not known."""
        return 1 if self.count is None else self.count

    def ring(self) -> Traffic:
        r"""What each device sends when the devices form a ring.

        With n devices and B = `num_bytes`: every device passes one n-th on to its neighbour in
        every round. All devices send the same.

        - all-reduce: ``2 (n - 1) / n * B`` in ``2 (n - 1)`` rounds, a reduce-scatter and an
          all-gather.
        - reduce-scatter: ``(n - 1) / n * B`` in ``n - 1`` rounds.
        - all-gather: ``(n - 1) * B`` in ``n - 1`` rounds; B is the part of one device.
        - all-to-all: ``(n - 1) / n * B`` in ``n - 1`` rounds.
        - broadcast: ``B`` in ``n - 1`` rounds.
        - collective-permute: ``B`` in one round.

        Returns:
            What one device sends each time.
        """
        n, size = self.group_size, self.num_bytes
        if n <= 1:
            return Traffic(0, 0)
        match self.kind:
            case "all-reduce":
                return Traffic(2 * (n - 1) * size / n, 2 * (n - 1))
            case "all-gather":
                return Traffic((n - 1) * size, n - 1)
            case "reduce-scatter" | "all-to-all":
                return Traffic((n - 1) * size / n, n - 1)
            case "broadcast":
                return Traffic(size, n - 1)
        return Traffic(size, 1)

    def tree(self) -> Traffic:
        r"""What the busiest device sends when the devices form a binomial tree.

        With n devices, B = `num_bytes` and ``r = ceil(log2(n))``: values go up the tree to its
        root in r rounds, and from it down to all in r rounds. The root is the busiest: it sends in
        every round on the way down.

        - all-reduce: ``r * B`` in ``2 r`` rounds.
        - all-gather: ``r * n * B`` in ``2 r`` rounds: the root sends the whole.
        - reduce-scatter: ``B`` in ``2 r`` rounds: up with all, down with parts.
        - all-to-all: ``r * B / 2`` in ``r`` rounds (Bruck's algorithm, which has no root).
        - broadcast: ``r * B`` in ``r`` rounds.
        - collective-permute: ``B`` in one round.

        Returns:
            What the busiest device sends each time.
        """
        n, size = self.group_size, self.num_bytes
        if n <= 1:
            return Traffic(0, 0)
        rounds = math.ceil(math.log2(n))
        match self.kind:
            case "all-reduce":
                return Traffic(rounds * size, 2 * rounds)
            case "all-gather":
                return Traffic(rounds * n * size, 2 * rounds)
            case "reduce-scatter":
                return Traffic(size, 2 * rounds)
            case "all-to-all":
                return Traffic(rounds * size / 2, rounds)
            case "broadcast":
                return Traffic(rounds * size, rounds)
        return Traffic(size, 1)


def as_compiled(
    asked: Sequence[Collective], compiled: Sequence[Collective]
) -> tuple[Collective, ...]:
    """What a compiled program sends, with what the trace knows of each collective.

    The operands of the compiled collectives are looked for among those of the trace, by kind,
    bytes and group. What is found there keeps the form that it has in the trace. The rest is as
    XLA made it: in pieces, in another type, or put in by the partitioner.

    Args:
        asked: What the trace asks for.
        compiled: What the compiled program has.

    Returns:
        The collectives that the compiled program executes.

    Example:
        >>> asked = [Collective("all-reduce", (8,), ("float32",), 2, variables=("w",)),
        ...          Collective("all-reduce", (4,), ("float32",), 2, variables=("b",))]
        >>> merged = Collective("all-reduce", (4, 8), ("float32",), 2)
        >>> [c.variables for c in as_compiled(asked, [merged])]
        [('w',), ('b',)]
    """
    open_units: dict[tuple[str, int, int], collections.deque[list[int]]] = {}
    for number, one in enumerate(asked):
        for size in one.operand_bytes:
            key = one.kind, size, one.group_size
            open_units.setdefault(key, collections.deque()).append([number, one.times])
    found: dict[int, list[int]] = {}
    counts: dict[int, int | None] = {}
    others: list[Collective] = []
    for one in compiled:
        rest = []
        for size in one.operand_bytes:
            units = open_units.get((one.kind, size, one.group_size))
            if not units:
                rest.append(size)
                continue
            number, times = units[0]
            if times == asked[number].times:  # of a loop that XLA has unrolled only once
                found.setdefault(number, []).append(size)
                counts[number] = one.count if asked[number].count is None else asked[number].count
            units[0][1] -= one.times
            if units[0][1] <= 0:
                units.popleft()
        if rest:
            others.append(dataclasses.replace(one, operand_bytes=tuple(rest)))
    kept = [
        dataclasses.replace(one, operand_bytes=tuple(found[number]), count=counts[number])
        for number, one in enumerate(asked)
        if number in found
    ]
    unknown = [one for number, one in enumerate(asked) if number not in found]
    return (*kept, *(_named(one, unknown) for one in others))


def _named(one: Collective, asked: Sequence[Collective]) -> Collective:
    """A collective as XLA made it, with the variables of what its line asked for."""
    sources = [a for a in asked if (a.line, a.over) == (one.line, one.over)]
    names = dict.fromkeys(name for source in sources for name in source.variables)
    return dataclasses.replace(one, variables=tuple(names), is_inserted=not sources)
