"""Draws the replica functions of random programs, with Hypothesis.

What may stand where (`Place`) follows the rules of the library: no meeting where replicas go
different ways, no write inside ``jax.checkpoint``, nothing of the step in what is made outside of
it. What an eager run refuses is drawn; `execution` knows that it is refused.
"""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from tests.random_programs.syntax import (
    RULES,
    AllGather,
    AllReduce,
    Arg,
    Assign,
    BatchSum,
    Binary,
    Block,
    Branch,
    Call,
    Cond,
    Const,
    Grad,
    Knob,
    Let,
    Local,
    Loop,
    Merge,
    Read,
    ReplicaId,
    Spread,
    Total,
    Update,
)

SCALAR, VECTOR = False, True
METHODS = ("assign_add", "assign", "assign_sub")


@dataclasses.dataclass(frozen=True)
class Place:
    """What may be written at one point of the replica function.

    Attributes:
        names: The values that are known there: whether each is a vector.
        in_step: Whether the arguments of the step and its other values are in sight.
        can_meet: Whether all replicas come here together.
        can_write: Whether variables may be assigned.
        knobs: Whether captured objects may be used.
        in_grad: Whether a gradient is being taken.
        closed: Variables that may not be read here.
        depth: How deep blocks may still be nested.
    """

    names: dict
    in_step: bool = True
    can_meet: bool = True
    can_write: bool = True
    knobs: bool = True
    in_grad: bool = False
    closed: tuple = ()
    differentiated: tuple = ()
    depth: int = 2

    def inner(self, **changes):
        """One block further inside."""
        changes = {"depth": self.depth - 1} | changes
        return dataclasses.replace(self, names=dict(self.names), **changes)


class Drawer:
    """Draws the parts of one program."""

    def __init__(self, draw, num_replicas, dtype, variables, num_knobs):
        self.draw = draw
        self.num_replicas = num_replicas
        self.dtype = dtype
        self.is_float = dtype != "int32"
        self.variables = variables
        self.num_knobs = num_knobs
        self.count = 0

    def one_of(self, choices):
        return self.draw(st.sampled_from(choices))

    def chance(self, percent):
        return self.draw(st.integers(0, 99)) >= 100 - percent

    def name(self):
        self.count += 1
        return f"y{self.count}"

    # -- expressions -----------------------------------------------------------------------------

    def expression(self, place, is_vector, size=2):
        """An expression of the kind that is asked for."""
        if size > 0 and self.chance(55):
            return self._composite(place, is_vector, size - 1)
        return self._leaf(place, is_vector)

    def _leaf(self, place, is_vector):
        leaves = [Local(name) for name, kind in place.names.items() if kind == is_vector]
        readable = [i for i in range(len(self.variables)) if i not in place.closed]
        for index in readable:
            if self.variables[index].is_vector == is_vector:
                leaves += [Read(index), Read(index), Read(index)]
        if not is_vector:
            leaves += [Const(self.draw(st.integers(-2, 3))), ReplicaId()]
            if place.in_step:
                leaves += [Arg(), BatchSum(Const(1)), BatchSum(Const(1))]
        if not leaves:
            return Spread(self._leaf(place, SCALAR))
        leaf = self.one_of(leaves)
        if isinstance(leaf, Read):
            return Read(leaf.variable, self.one_of(("value", "value", "call", "bare")))
        return leaf

    def _composite(self, place, is_vector, size):
        kinds = ["binary"] * 5
        kinds += ["knob"] * 3 if place.knobs and self.num_knobs else []
        kinds += ["convert", "branch"]
        if place.can_meet:
            kinds += ["all_reduce"] * 2
            kinds += ["all_gather"] if not is_vector else []
        kinds += ["batch"] if place.in_step and not is_vector else []
        kind = self.one_of(kinds)
        if kind == "binary":
            left = self.expression(place, is_vector, size)
            right = self.expression(place, is_vector and self.chance(50), size)
            operator = self.one_of(("+", "*", "-", "*"))
            return Binary(operator, *((left, right) if self.chance(70) else (right, left)))
        if kind == "knob":
            operand = self.expression(place, is_vector, size)
            return Knob(self.draw(st.integers(0, self.num_knobs - 1)), operand)
        if kind == "convert":
            operand = self.expression(place, not is_vector, size)
            return Spread(operand) if is_vector else Total(operand)
        alone = dataclasses.replace(place, can_meet=False)
        if kind == "branch":
            if (
                place.in_grad
            ):  # a side with a gradient could have a meeting of its own on the way back
                closed = (*place.closed, *place.differentiated)
                alone = dataclasses.replace(alone, names={}, closed=closed)
            return Branch(*(self.expression(alone, is_vector, min(size, 1)) for _ in range(2)))
        if kind == "batch":
            return BatchSum(self.expression(place, SCALAR, size))
        if kind == "all_reduce":
            return AllReduce(self.operation(), self.expression(alone, is_vector, size))
        is_batch = place.in_step and self.chance(50)
        kind = SCALAR if is_batch else self.chance(30)
        return AllGather(self.expression(alone, kind, size), is_batch)

    def operation(self):
        return self.one_of(("SUM", "MEAN") if self.is_float else ("SUM",))

    # -- statements ------------------------------------------------------------------------------

    def block(self, place, is_vector, params=(), most=2):
        """A block whose parameters are `params`, pairs of a name and its kind.

        All that it computes takes part in its result, so that a wrong value is seen.
        """
        place.names.update(params)
        known = set(place.names)
        statements = self.statements(place, most)
        result = self.expression(place, is_vector, 2)
        for name, kind in place.names.items():
            if name not in known:
                result = Binary("+", result, _converted(Local(name), kind, is_vector))
        return Block(tuple(name for name, _ in params), statements, result)

    def statements(self, place, most):
        return tuple(self.statement(place) for _ in range(self.draw(st.integers(0, most))))

    def statement(self, place):
        """One statement; what it binds is added to the names of `place`."""
        kinds = ["let"]
        if self._writable(place):
            kinds += ["assign"] * 5
        if place.depth > 0:
            kinds += ["jit", "checkpoint", "function", "cond", "loop"] * 2
            kinds += ["checkpoint"] * 4 if place.in_grad else []
            if self.is_float:
                kinds += ["custom"]
                if not place.in_grad:
                    kinds += ["grad"] * 6
        if place.can_meet and place.can_write:
            kinds += ["merge", "update"]
        kind = self.one_of(kinds)
        if kind in ("jit", "checkpoint", "function", "custom"):
            return self._call(place, kind)
        return getattr(self, f"_{kind}")(place)

    def _bound(self, place, statement, is_vector):
        place.names[statement.name] = is_vector
        return statement

    def _let(self, place):
        is_vector = self.chance(30)
        return self._bound(place, Let(self.name(), self.expression(place, is_vector)), is_vector)

    def _writable(self, place):
        """Which variables a replica may assign here."""
        if not place.can_write:
            return []
        return [
            index
            for index, variable in enumerate(self.variables)
            if variable.on_read
            or (place.can_meet and (variable.aggregation != "NONE" or self.num_replicas == 1))
        ]

    def _assign(self, place):
        index = self.one_of(self._writable(place))
        value = self.expression(place, self.variables[index].is_vector)
        return Assign(index, self.one_of(METHODS), value)

    def _call(self, place, kind):
        name, is_vector = self.name(), self.chance(30)
        is_hoisted = self.chance(50)
        params = [(f"p{name}", is_vector)]
        changes = {"in_step": place.in_step and not is_hoisted}
        if kind == "custom":
            kind = self.one_of(tuple(RULES))
            closed = {*place.closed, *place.differentiated}
            changes |= {"can_meet": False, "can_write": False, "closed": tuple(closed), "depth": 0}
            changes |= {"in_step": False}
        if kind == "checkpoint":
            changes |= {"can_write": False}
        if is_hoisted and kind != "function":
            changes |= {"knobs": False}
        inner = place.inner(**changes)
        if is_hoisted or kind in RULES:
            inner.names.clear()
        inputs = (self.expression(place, is_vector, 1),)
        block = self.block(inner, is_vector, params, most=1 if kind in RULES else 2)
        return self._bound(place, Call(name, kind, block, inputs, is_hoisted), is_vector)

    def _same(self, place):
        """A scalar that is the same on all replicas, and that the library knows to be."""
        mirrored = [
            Read(i) for i, v in enumerate(self.variables) if not v.on_read and i not in place.closed
        ]
        leaves = [Total(r) if self.variables[r.variable].is_vector else r for r in mirrored] * 2
        leaves += [Arg()] if place.in_step else []
        return self.one_of(leaves) if leaves else Const(1)

    def _different(self, place):
        """A scalar that may differ between replicas."""
        own = [Read(i) for i, v in enumerate(self.variables) if v.on_read and i not in place.closed]
        leaves = [Total(r) if self.variables[r.variable].is_vector else r for r in own]
        leaves += [ReplicaId(), ReplicaId()]
        leaves += [BatchSum(Const(1))] if place.in_step else []
        return self.one_of(leaves)

    def _cond(self, place):
        name, is_vector = self.name(), self.chance(30)
        is_same = self.chance(60)
        left = self._same(place) if is_same else self._different(place)
        inputs = (self.expression(place, is_vector, 1),)
        blocks = []
        for side in "ab":
            inner = place.inner(can_meet=place.can_meet and is_same)
            blocks.append(self.block(inner, is_vector, [(f"p{name}{side}", is_vector)]))
        statement = Cond(name, left, self.draw(st.integers(-1, 2)), *blocks, inputs)
        return self._bound(place, statement, is_vector)

    def _loop(self, place):
        name, is_vector = self.name(), self.chance(30)
        kind = self.one_of(("scan", "fori") if place.in_grad else ("scan", "fori", "while"))
        count, is_same = Const(self.draw(st.integers(0, 3))), True
        if kind == "while":
            is_same = self.chance(60)
            count = self._same(place) if is_same else self._different(place)
        inner = place.inner(can_meet=place.can_meet and is_same)
        params = [(f"i{name}", SCALAR), (f"c{name}", is_vector)]
        initial = self.expression(place, is_vector, 1)
        block = self.block(inner, is_vector, params)
        return self._bound(place, Loop(name, kind, count, block, initial), is_vector)

    def _grad(self, place):
        name, kind = self.name(), self.one_of(("variables", "variables", "inputs", "vjp"))
        floats = [i for i, v in enumerate(self.variables) if v.is_float and i not in place.closed]
        if kind == "variables" and not floats:
            kind = "inputs"
        inner = place.inner(in_grad=True)
        between = None
        if kind == "variables":
            by = tuple(sorted(self.draw(st.sets(st.sampled_from(floats), min_size=1, max_size=2))))
            kinds = [self.variables[i].is_vector for i in by]
            inner = dataclasses.replace(inner, differentiated=by)
            statement = {"variables": by, "block": self.block(inner, SCALAR, most=3)}
        else:
            kinds = [self.chance(30)]
            inputs = (self.expression(place, kinds[0], 1),)
            block = self.block(inner, SCALAR, [(f"p{name}", kinds[0])], most=3)
            if kind == "vjp" and self._writable(place) and self.chance(70):
                between = self._assign(place)
            statement = {"inputs": inputs, "block": block, "between": between}
        gradients = tuple(f"d{name}{i}" for i in range(len(kinds)))
        place.names.update(zip(gradients, kinds, strict=True))
        return self._bound(place, Grad(name, gradients, kind, **statement), SCALAR)

    def _merge(self, place):
        same_type = [
            i
            for i, v in enumerate(self.variables)
            if v.dtype == self.dtype and i not in place.differentiated
        ]
        readable = [
            i for i, v in enumerate(self.variables) if not (v.on_read and v.aggregation == "NONE")
        ]
        index = self.one_of([*same_type, None])
        how, method, read = "reduce", "assign", None
        is_vector = self.chance(30)
        if index is not None:
            variable = self.variables[index]
            is_vector = variable.is_vector
            methods = ("assign",) if variable.on_read else METHODS
            method = self.one_of((*methods, *(f"update:{m}" for m in METHODS)))
            how = self.one_of(("reduce", "reduce_to"))
        if readable and not place.in_grad and self.chance(40):
            read = self.one_of(readable)
            is_vector = is_vector or self.variables[read].is_vector
        if index is not None and is_vector != self.variables[index].is_vector:
            read, is_vector = None, self.variables[index].is_vector
        value = self.expression(dataclasses.replace(place, can_meet=False), is_vector)
        statement = Merge(self.name(), value, self.operation(), how, index, method, read)
        return self._bound(place, statement, is_vector)

    def _update(self, place):
        index = self.draw(st.integers(0, len(self.variables) - 1))
        variable = self.variables[index]
        value = Const(self.draw(st.integers(-2, 3)))
        if variable.dtype == self.dtype and self.chance(60):
            alone = dataclasses.replace(place, can_meet=False)
            value = AllReduce(self.operation(), self.expression(alone, SCALAR, 1))
        return Update(index, self.one_of(METHODS), value)


def _converted(value, kind, is_vector):
    if kind == is_vector:
        return value
    return Spread(value) if is_vector else Total(value)
