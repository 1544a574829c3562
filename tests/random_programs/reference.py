"""What a random program means, in NumPy: all replicas in lockstep.

A value is a list with one `Number` per replica. Where replicas go different ways (a ``cond`` or a
``while`` that depends on the replica) each goes alone, and no meeting may be reached; everywhere
else all replicas go together.

A gradient is the one that the programming model defines: the derivative of the sum of all losses
by the replica's own copy of the variable, so that the gradient of an all_reduce is the all_reduce
of the gradient. Each element of each replica's copy is one seed.
"""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np

from tests.random_programs import bounded
from tests.random_programs.bounded import Number, Rejected
from tests.random_programs.syntax import (
    RULES,
    VECTOR_SIZE,
    AllGather,
    AllReduce,
    Arg,
    Assign,
    Batch,
    BatchSum,
    Binary,
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
    nodes,
)

MAX_ITERATIONS = 6


@dataclasses.dataclass
class Expected:
    """What one step must give.

    Attributes:
        outputs: For each output of the run, what each replica returned.
        around: The results of the reductions and reads after the run.
        copies: For each variable, its copies.
        values: For each variable its value across replicas, or None where there is none.
    """

    outputs: list
    around: list
    copies: list
    values: list


def weights(size):
    """By which gathered elements are multiplied, so that their order is seen."""
    return [i % 3 + 1 for i in range(size)]


class Machine:
    """The variables of a program, and its steps."""

    def __init__(self, program):
        self.program = program
        self.num_replicas = program.num_replicas
        self.everyone = tuple(range(self.num_replicas))
        self.copies = [
            [Number(self._filled(variable, variable.initial), variable.dtype)] * self.num_replicas
            for variable in program.variables
        ]
        self.overrides = {}
        self.step = None

    @staticmethod
    def _filled(variable, value):
        return [value + i for i in range(VECTOR_SIZE)] if variable.is_vector else value

    def run(self, step):
        """Does one step and says what it gives."""
        self.step = step
        program = self.program
        for assign in program.before:
            variable = program.variables[assign.variable]
            value = Number(self._filled(variable, assign.value), variable.dtype)
            self._assign_across(assign.variable, assign.method, value)
        scope = {}
        self.statements(program.body.statements, scope, self.everyone)
        outputs = [self.expression(output, scope, self.everyone) for output in program.outputs]
        around = [self._reduction(r, outputs[r.output]) for r in program.after]
        around += [self.across(index) for index in program.reads]
        indices = range(len(program.variables))
        values = [self.across(i) if self.is_readable(i) else None for i in indices]
        return Expected(outputs, around, [list(copies) for copies in self.copies], values)

    # -- variables -------------------------------------------------------------------------------

    def is_readable(self, index):
        variable = self.program.variables[index]
        return not (variable.on_read and variable.aggregation == "NONE")

    def across(self, index):
        """The value of a variable in cross-replica context."""
        variable, copies = self.program.variables[index], self.copies[index]
        if not variable.on_read or variable.aggregation == "ONLY_FIRST_REPLICA":
            return copies[0]
        return self._reduced(variable.aggregation, copies)

    def _reduced(self, op, values):
        divisor = self.num_replicas if op == "MEAN" else 1
        return bounded.total(values, values[0].dtype, divisor)

    def _assign_across(self, index, method, value):
        variable = self.program.variables[index]
        value = value.without_tangents()
        if variable.on_read and variable.aggregation == "SUM":
            parts = value.value / self.num_replicas
            if not np.all(parts == np.round(parts)):
                raise Rejected("how a sum is divided among the copies is not defined")
            value = Number(parts, variable.dtype, value.error)
        self._write(index, method, [value] * self.num_replicas, self.everyone)

    def _write(self, index, method, values, active):
        """Each replica's copy combined with its value."""
        for replica in active:
            new, old = values[replica].without_tangents(), self.copies[index][replica]
            if method != "assign":
                new = old.plus(new, 1 if method == "assign_add" else -1)
            self.copies[index][replica] = new
            if index in self.overrides:
                self.overrides[index][replica] = None

    def _read(self, index, replica):
        override = self.overrides.get(index)
        if override is not None and override[replica] is not None:
            return override[replica]
        return self.copies[index][replica]

    def assign(self, statement, scope, active):
        variable = self.program.variables[statement.variable]
        values = self.expression(statement.value, scope, active)
        values = [v and v.without_tangents().cast(variable.dtype) for v in values]
        if not variable.on_read:
            assert active == self.everyone, "a meeting that only some replicas reach"
            if variable.aggregation in ("ONLY_FIRST_REPLICA", "NONE"):
                values = [values[0]] * self.num_replicas
            else:
                values = [self._reduced(variable.aggregation, values)] * self.num_replicas
        self._write(statement.variable, statement.method, values, active)

    # -- statements ------------------------------------------------------------------------------

    def statements(self, statements, scope, active):
        """Executes; new names go into `scope`."""
        for statement in statements:
            getattr(self, f"_{type(statement).__name__.lower()}")(statement, scope, active)

    def block(self, block, scope, arguments, active):
        """What the block gives for these arguments."""
        inner = {**scope, **dict(zip(block.params, arguments, strict=True))}
        self.statements(block.statements, inner, active)
        return self.expression(block.result, inner, active)

    def _let(self, statement: Let, scope, active):
        scope[statement.name] = self.expression(statement.value, scope, active)

    def _assign(self, statement: Assign, scope, active):
        self.assign(statement, scope, active)

    def _call(self, statement: Call, scope, active):
        inputs = [self.expression(e, scope, active) for e in statement.inputs]
        values = self.block(statement.block, scope, inputs, active)
        if statement.kind in RULES:
            factor = RULES[statement.kind]
            for replica in active:
                source = inputs[0][replica]
                values[replica] = values[replica].scaled_tangents(source, factor)
        scope[statement.name] = values

    def _cond(self, statement: Cond, scope, active):
        inputs = [self.expression(e, scope, active) for e in statement.inputs]
        left = self.expression(statement.left, scope, active)
        chosen = [value and self._decided(value) > statement.right for value in left]
        scope[statement.name] = self._split(
            [chosen[r] for r in active],
            active,
            lambda yes, some: self.block(
                statement.yes if yes else statement.no, scope, inputs, some
            ),
        )

    def _loop(self, statement: Loop, scope, active):
        carry = self.expression(statement.initial, scope, active)
        if self._is_same_everywhere(statement.count):
            scope[statement.name] = self._repeated(statement, scope, carry, active)
            return
        alone = [self._repeated(statement, scope, carry, (r,))[r] for r in active]
        values = dict(zip(active, alone, strict=True))
        scope[statement.name] = [values.get(replica) for replica in self.everyone]

    def _is_same_everywhere(self, count):
        """Whether it is by its nature: an argument, a constant, a mirrored variable."""
        reads = [node for node in nodes(count) if isinstance(node, Read)]
        own = any(self.program.variables[read.variable].on_read for read in reads)
        return not own and not any(isinstance(n, ReplicaId | BatchSum) for n in nodes(count))

    def _repeated(self, statement, scope, values, active):
        """The carry in the end; a ``while`` looks at its count again before each iteration."""
        for i in range(MAX_ITERATIONS + 1):
            counts = self.expression(statement.count, scope, active)
            if not i < self._decided(counts[active[0]]):
                return values
            iteration = [Number(i, self.program.dtype)] * self.num_replicas
            values = self.block(statement.block, scope, [iteration, values], active)
        raise Rejected("too many iterations")

    def _split(self, choices, active, go):
        """``go(choice, replicas)``: together if all chose the same, else one by one."""
        if len(set(choices)) == 1:
            return go(choices[0], active)
        values = [None] * self.num_replicas
        for replica, choice in zip(active, choices, strict=True):
            values[replica] = go(choice, (replica,))[replica]
        return values

    @staticmethod
    def _decided(value):
        if not value.is_exact():
            raise Rejected("a decision by a value that is not exact")
        return float(value.value)

    def _grad(self, statement: Grad, scope, active):
        inputs = [self.expression(e, scope, active) for e in statement.inputs]
        by = [[self._read(i, r) for r in self.everyone] for i in statement.variables] or inputs
        sizes = [next(value for value in each if value).value.size for each in by]
        num_seeds = sum(sizes) * self.num_replicas
        seeded, first = [], 0
        for values, size in zip(by, sizes, strict=True):
            seeded.append(
                [v and v.seeded(first + r * size, num_seeds) for r, v in enumerate(values)]
            )
            first += size * self.num_replicas
        with self._overriding(statement.variables, seeded):
            loss = self.block(statement.block, scope, [] if statement.variables else seeded, active)
        scope[statement.name] = [value and value.without_tangents() for value in loss]
        if statement.between is not None:
            self.assign(statement.between, scope, active)
        rows = [value for value in loss if value is not None and value.tangents is not None]
        first = 0
        for name, values, size in zip(statement.gradients, by, sizes, strict=True):
            scope[name] = [
                self._gradient(rows, first + replica * size, values[replica])
                if replica in active
                else None
                for replica in self.everyone
            ]
            first += size * self.num_replicas

    def _gradient(self, losses, first, by):
        """The derivative of the sum of `losses` by the seeds from `first` on."""
        seeds = slice(first, first + by.value.size)
        zero = np.zeros(by.value.size)
        value = sum((loss.tangents[seeds] for loss in losses), zero)
        error = sum((loss.tangent_error[seeds] for loss in losses), zero)
        value, error = value.reshape(by.shape), error.reshape(by.shape)
        return Number(value, by.dtype, 4 * error).cast(self.program.dtype)

    @contextlib.contextmanager
    def _overriding(self, variables, values):
        outer = self.overrides
        self.overrides = {**outer, **dict(zip(variables, values, strict=False))}
        try:
            yield
        finally:
            self.overrides = outer

    def _merge(self, statement: Merge, scope, active):
        assert active == self.everyone, "a meeting that only some replicas reach"
        total = self._reduced(statement.op, self.expression(statement.value, scope, active))
        if statement.variable is not None:
            method = statement.method.removeprefix("update:")
            if method == statement.method:
                self._assign_across(statement.variable, method, total)
            else:
                self._write(statement.variable, method, [total] * self.num_replicas, self.everyone)
        if statement.read is not None:
            total = total.plus(self.across(statement.read).cast(self.program.dtype))
        scope[statement.name] = [total] * self.num_replicas

    def _update(self, statement: Update, scope, active):
        assert active == self.everyone, "a meeting that only some replicas reach"
        variable = self.program.variables[statement.variable]
        value = self.expression(statement.value, scope, active)[0].cast(variable.dtype)
        if variable.is_vector and not value.shape:
            value = value.spread(VECTOR_SIZE)
        self._write(statement.variable, statement.method, [value] * self.num_replicas, active)

    # -- expressions -----------------------------------------------------------------------------

    def expression(self, node, scope, active):
        """One number per replica, None for replicas that are not active."""
        if isinstance(node, AllReduce):
            assert active == self.everyone, "a meeting that only some replicas reach"
            value = self._reduced(node.op, self.expression(node.operand, scope, active))
            return [value] * self.num_replicas
        if isinstance(node, AllGather):
            assert active == self.everyone, "a meeting that only some replicas reach"
            return [self._gathered(node, scope, active)] * self.num_replicas
        if isinstance(node, Branch):
            sides = [
                self.expression(node.first, scope, tuple(r for r in active if r == 0)),
                self.expression(node.other, scope, tuple(r for r in active if r != 0)),
            ]
            return [sides[min(replica, 1)][replica] for replica in self.everyone]
        if isinstance(node, Local):
            return [scope[node.name][r] if r in active else None for r in self.everyone]
        operands = [
            self.expression(getattr(node, name), scope, active)
            for name in ("operand", "factor", "left", "right")
            if hasattr(node, name)
        ]
        return [
            self._elementary(node, r, *(values[r] for values in operands)) if r in active else None
            for r in self.everyone
        ]

    def _number(self, value):
        return Number(value, self.program.dtype)

    def _elementary(self, node, replica, *operands):
        match node:
            case Const():
                return self._number(node.value)
            case Arg():
                return self._number(self.step.argument)
            case ReplicaId():
                return self._number(replica)
            case Read():
                return self._read(node.variable, replica).cast(self.program.dtype)
            case Knob():
                return operands[0].times(self._number(self.step.knobs[node.index]))
            case Binary(operator="*"):
                return operands[0].times(operands[1])
            case Binary():
                return operands[0].plus(operands[1], 1 if node.operator == "+" else -1)
            case Total():
                return operands[0].total()
            case Spread():
                return operands[0].spread(VECTOR_SIZE)
            case BatchSum():
                return self._batch(replica).times(operands[0]).total()
            case Batch():
                return self._batch(replica).times(operands[0])
        raise TypeError(node)

    def _batch(self, replica):
        return self._number(self.step.examples()[replica])

    def _gathered(self, node, scope, active):
        values = self.expression(node.operand, scope, active)
        if node.is_batch:
            values = [self._batch(r).times(value) for r, value in enumerate(values)]
        elements = [
            value._element(i) if value.shape else value
            for value in values
            for i in range(value.value.size)
        ]
        scales = [self._number(w) for w in weights(len(elements))]
        terms = [element.times(w) for element, w in zip(elements, scales, strict=True)]
        return bounded.total(terms, self.program.dtype)

    # -- around the run --------------------------------------------------------------------------

    def _reduction(self, reduction, values):
        dtype = self.program.dtype
        if reduction.op == "gather":
            value = np.concatenate([v.value for v in values])
            return Number(value, dtype, np.concatenate([v.error for v in values]))
        if reduction.axis is None:
            return self._reduced(reduction.op, values)
        elements = [value._element(i) for value in values for i in range(value.value.size)]
        divisor = max(len(elements), 1) if reduction.op == "MEAN" else 1
        return bounded.total(elements, dtype, divisor)
