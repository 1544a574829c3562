"""Numbers the values of code in which replicas do not meet.

Two values get the same number when they are the same operation on values with the same numbers.
Calls, branches and loops are looked into: a value has the number of what it is computed from, and
of nothing that happens to be computed beside it. So a variable that a loop counts up has the same
number in variants whose loops do other things to batches of other sizes.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from replicax.engine.analysis import varying
from replicax.jax_internals.programs import (
    ClosedJaxpr,
    Jaxpr,
    Literal,
    is_ref,
    open_jaxpr,
    scan_counts,
    sub_jaxprs,
)


@dataclasses.dataclass(slots=True, eq=False)
class RefState:
    """A Ref of one variant.

    Attributes:
        number: Of what it holds at this point.
        first: Of what it was made with. It tells the Refs of one variable in all variants, also
            where several Refs hold the same value.
    """

    number: int
    first: int


Value = int | RefState

_Name = TypeVar("_Name", bound=Hashable)


def content(value: Value) -> int:
    """The number of a value, or of what a Ref holds now."""
    return value.number if isinstance(value, RefState) else value


def number_constant(value: Any) -> Hashable:
    """A hashable that is equal for constants of equal type and content."""
    if isinstance(value, Tracer) or not isinstance(
        value, jax.Array | np.ndarray | np.generic | int | float | complex | bool
    ):
        return "object", id(value)
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return "key", str(value.dtype), number_constant(jax.random.key_data(value))
    array = np.asarray(value)
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()
    return "array", array.shape, str(array.dtype), digest


@dataclasses.dataclass(slots=True)
class _Place:
    """What a loop hands from round to round at one place: a carried value, or a Ref.

    Attributes:
        symbol: The number that stands for it at the start of a round.
        start: Its number before the loop.
        after: Its number after a round, in terms of the symbols.
    """

    symbol: int
    start: int
    after: int


class LocalNumbering:
    """Numbers are small integers for equal keys.

    A number may depend on symbols, which stand for what a loop being looked into carries. A symbol
    is named after what it stands for before the loop and, of a Ref, what that was made with. It is
    not named by its place: variants carry the same variables in different orders.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._jaxprs: dict[int, int] = {}
        self._symbols_in: dict[int, int] = {}  # of numbers with symbols: one bit for each of them
        self._bits: dict[int, int] = {}  # of symbols
        self._depth = 0

    def number(self, *key: Hashable) -> int:
        """The number of a value that depends on no symbols."""
        return self._numbers.setdefault(key, len(self._numbers))

    def run_equation(self, eqn: Any, values: Sequence[Value]) -> list[Value]:
        """The outputs of one equation; the Refs among ``values`` are left as it leaves them."""
        name = eqn.primitive.name
        if name in varying.CALLS and name != "shard_map":
            return self._run_body(eqn.params[varying.CALLS[name]], values)
        if name == "cond":
            return self._run_cond(eqn, values)
        if name == "while":
            return self._run_while(eqn, values)
        if name == "scan" and not _scans_refs(eqn, values):
            return self._run_scan(eqn, values)
        return self._run_other(eqn, values)

    def _derived(self, parts: Iterable[int], *key: Hashable) -> int:
        """The number of a value that is computed from ``parts``."""
        number = self.number(*key)
        symbols = 0
        for part in parts:
            symbols |= self._symbols_in.get(part, 0)
        if symbols:
            self._symbols_in[number] = symbols
        return number

    def _run_other(self, eqn: Any, values: Sequence[Value]) -> list[Value]:
        name, params = eqn.primitive.name, eqn.params
        ref = values[0] if values and isinstance(values[0], RefState) else None
        whole = "tree" in params and params["tree"] == jax.tree.structure(())  # ref[...]
        if name == "new_ref":
            return [_new_state(content(values[0]))]
        if ref and (name == "freeze" or (name == "get" and whole)):
            return [ref.number]
        if ref and name == "swap" and whole:
            old, ref.number = ref.number, content(values[1])
            return [old]
        numbers = tuple(map(content, values))
        key = self._derived(numbers, name, self._params(eqn), numbers)
        outs: list[Value] = []
        for position, var in enumerate(eqn.outvars):
            made = self._derived([key], "out", key, position)
            outs.append(_new_state(made) if is_ref(var) else made)
        if name != "get":
            for position, value in enumerate(values):
                if isinstance(value, RefState):
                    value.number = self._derived([key], "written", key, position)
        return outs

    def _run_body(self, body: Any, values: Sequence[Value]) -> list[Value]:
        jaxpr = open_jaxpr(body)
        constants = getattr(body, "consts", ())
        env: dict[Any, Value] = dict(zip(jaxpr.invars, values, strict=True))
        for var, value in zip(jaxpr.constvars, constants, strict=True):
            env[var] = self.number("constant", number_constant(value))

        def read(atom: Any) -> Value:
            if isinstance(atom, Literal):
                return self.number("constant", number_constant(atom.val))
            return env[atom]

        for eqn in jaxpr.eqns:
            outs = self.run_equation(eqn, [read(atom) for atom in eqn.invars])
            env.update(zip(eqn.outvars, outs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _run_cond(self, eqn: Any, values: Sequence[Value]) -> list[Value]:
        predicate, operands = content(values[0]), values[1:]
        states = ref_states(operands)
        before = [state.number for state in states]
        rows = []
        for branch in eqn.params["branches"]:
            for state, number in zip(states, before, strict=True):
                state.number = number
            outs = [content(value) for value in self._run_body(branch, operands)]
            rows.append([*outs, *(state.number for state in states)])
        made = [
            column[0]
            if len(set(column)) == 1
            else self._derived([predicate, *column], "cond", predicate, column)
            for column in zip(*rows, strict=True)
        ]
        count = len(eqn.outvars)
        for state, number in zip(states, made[count:], strict=True):
            state.number = number
        return list(made[:count])

    def _run_scan(self, eqn: Any, values: Sequence[Value]) -> list[Value]:
        params = eqn.params
        first, num_carry = scan_counts(eqn)
        last = first + num_carry
        rows = [self._derived([x], "row", x) for x in map(content, values[last:])]

        def body(carry: list[Value]) -> list[Value]:
            return self._run_body(params["jaxpr"], [*values[:first], *carry, *rows])

        how = "scan", params["length"], params["reverse"]
        return self._run_loop(how, values[first:last], ref_states(values), body)

    def _run_while(self, eqn: Any, values: Sequence[Value]) -> list[Value]:
        params = eqn.params
        first = params["cond_nconsts"]
        last = first + params["body_nconsts"]
        predicate: list[int] = []

        def body(carry: list[Value]) -> list[Value]:
            (answer,) = self._run_body(params["cond_jaxpr"], [*values[:first], *carry])
            predicate.append(content(answer))
            return self._run_body(params["body_jaxpr"], [*values[first:last], *carry])

        return self._run_loop(("while",), values[last:], ref_states(values), body, predicate)

    def _run_loop(
        self,
        how: tuple[Hashable, ...],
        carry: Sequence[Value],
        states: Sequence[RefState],
        body: Callable[[list[Value]], list[Value]],
        predicate: Sequence[int] = (),
    ) -> list[Value]:
        """What comes out of a loop, and what it leaves in ``states``.

        Args:
            how: What says how often the body runs, beside ``predicate``.
            carry: What is carried, before the loop.
            states: The Refs that it uses.
            body: Runs one round on what is carried; gives that and what is stacked.
            predicate: Holds the number of the predicate once the body ran.
        """
        starts = [*map(content, carry), *(state.number for state in states)]
        named = [*((start, "carry") for start in starts[: len(carry)])]
        named += [(state.number, state.first) for state in states]
        symbols = [self.number("symbol", self._depth, key) for key in unrepeated(named)]
        for symbol in symbols:
            bit = self._bits.setdefault(symbol, 1 << len(self._bits))
            self._symbols_in[symbol] = bit
        for state, symbol in zip(states, symbols[len(carry) :], strict=True):
            state.number = symbol
        self._depth += 1
        outs = [content(value) for value in body(list(symbols[: len(carry)]))]
        self._depth -= 1
        stacked = outs[len(carry) :]
        afters = [*outs[: len(carry)], *(state.number for state in states)]
        places = list(map(_Place, symbols, starts, afters))
        made = [
            place.start
            if place.after == place.symbol
            else self._closed(places, [position], predicate, *how, "carried")
            for position, place in enumerate(places)
        ]
        for state, number in zip(states, made[len(carry) :], strict=True):
            state.number = number
        last = [self._closed(places, [], [out, *predicate], *how, "stacked") for out in stacked]
        return [*made[: len(carry)], *last]

    def _closed(
        self,
        places: Sequence[_Place],
        positions: Sequence[int],
        wanted: Sequence[int],
        *key: Hashable,
    ) -> int:
        """The number of what rounds make that compute ``wanted`` and what is at ``positions``.

        It is that of all places which these depend on, in this round or an earlier one.
        """
        needed = set(positions)
        symbols = self._symbols_of([*wanted, *(places[p].after for p in positions)])
        grows = True
        while grows:
            grows = False
            for position, place in enumerate(places):
                if position not in needed and symbols & self._bits[place.symbol]:
                    needed.add(position)
                    symbols |= self._symbols_of([place.after])
                    grows = True
        loop = frozenset((places[p].symbol, places[p].start, places[p].after) for p in needed)
        results = tuple(places[p].symbol for p in positions)
        number = self.number(*key, results, tuple(wanted), loop)
        symbols &= ~self._symbols_of(place.symbol for place in places)
        symbols |= self._symbols_of(places[p].start for p in needed)
        if symbols:
            self._symbols_in[number] = symbols
        return number

    def _symbols_of(self, numbers: Iterable[int]) -> int:
        symbols = 0
        for number in numbers:
            symbols |= self._symbols_in.get(number, 0)
        return symbols

    def _params(self, eqn: Any) -> Hashable:
        name = eqn.primitive.name
        if name in varying.CALLS and name != "shard_map":  # the rest says how, not what
            return self._param(eqn.params[varying.CALLS[name]])
        # Beside a body, a function among the parameters is where the body was traced from.
        has_body = bool(sub_jaxprs(eqn.params))
        return tuple(
            (key, self._param(value))
            for key, value in sorted(eqn.params.items())
            if not (has_body and callable(value))
        )

    def _param(self, value: Any) -> Hashable:
        if isinstance(value, ClosedJaxpr):
            return self._jaxpr(value.jaxpr), tuple(map(number_constant, value.consts))
        if isinstance(value, Jaxpr):
            return self._jaxpr(value)
        if isinstance(value, tuple | list):
            return tuple(map(self._param, value))
        if isinstance(value, np.ndarray):
            return number_constant(value)
        try:
            hash(value)
        except TypeError:
            return "object", id(value)
        return type(value), value

    def _jaxpr(self, jaxpr: Any) -> int:
        """The number of a body: equal for bodies that differ only in the names of variables."""
        if id(jaxpr) not in self._jaxprs:
            names: dict[Any, int] = {}

            def name(atom: Any) -> Hashable:
                if isinstance(atom, Literal):
                    return number_constant(atom.val)
                return names.setdefault(atom, len(names))

            lines: list[Hashable] = [
                (name(var), str(var.aval)) for var in (*jaxpr.constvars, *jaxpr.invars)
            ]
            for eqn in jaxpr.eqns:
                atoms = tuple(map(name, eqn.invars)), tuple(map(name, eqn.outvars))
                lines.append((eqn.primitive.name, self._params(eqn), *atoms))
            lines.append(tuple(map(name, jaxpr.outvars)))
            self._jaxprs[id(jaxpr)] = self.number("jaxpr", *lines)
        return self._jaxprs[id(jaxpr)]


def _new_state(number: int) -> RefState:
    return RefState(number, number)


def ref_states(values: Sequence[Any]) -> list[RefState]:
    """The Refs among ``values``, each once."""
    return list(dict.fromkeys(value for value in values if isinstance(value, RefState)))


def unrepeated(names: Iterable[_Name]) -> list[tuple[_Name, int]]:
    """Each name with how often it came before, so that no two are the same."""
    seen: dict[_Name, int] = {}
    pairs = []
    for name in names:
        seen[name] = seen.get(name, -1) + 1
        pairs.append((name, seen[name]))
    return pairs


def _scans_refs(eqn: Any, values: Sequence[Value]) -> bool:
    """Whether a scan takes a part of a Ref in each round."""
    return any(isinstance(value, RefState) for value in values[scan_counts(eqn)[0] :])
