"""A random program as Python: the text that is run, and that a failure prints.

The text defines ``program(S)``, which gives what `execution` needs: the variables, the replica
function, the code around its run, and a way to change what the functions have captured.
"""

from __future__ import annotations

from tests.random_programs.syntax import (
    RULES,
    VECTOR_SIZE,
    AllGather,
    AllReduce,
    Arg,
    Batch,
    BatchSum,
    Binary,
    Branch,
    Call,
    Const,
    Knob,
    Local,
    Read,
    ReplicaId,
    Spread,
    Total,
    nodes,
)

HEADER = """\
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import replicax as rx


def ctx():
    return rx.get_replica_context()


def scale(factor, value):
    return value * factor


def scaling(factor):
    return lambda value: value * factor


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def apply(self, value):
        return value * self.factor


def weighted(values):
    weights = np.arange(values.size) % 3 + 1
    return (values * jnp.asarray(weights, values.dtype)).sum()
"""

# How a captured object is made of a number, and how it is used.
KNOBS = {
    "float": ("{number}", "{operand} * {name}"),
    "array": ("jnp.asarray({number}, D)", "{operand} * {name}"),
    "numpy": ("np.asarray({number}, D)", "{operand} * {name}"),
    "partial": ("functools.partial(scale, {number})", "{name}({operand})"),
    "keyword": ("functools.partial(scale, factor={number})", "{name}(value={operand})"),
    "tuple": ("(scaling({number}), scaling({one}))", "{name}[1]({name}[0]({operand}))"),
    "method": ("Scale({number}).apply", "{name}({operand})"),
    "closure": ("scaling({number})", "{name}({operand})"),
    "function": ("rx.function(scaling({number}))", "{name}({operand})"),
    "defaults": ("{number}", "{name}_with({operand})"),
    "helper": ("{number}", "{name}_of({operand})"),
}


class Source:
    """Writes one program."""

    def __init__(self, program):
        self.program = program
        self.is_float = program.dtype != "int32"
        self.hoisted = []

    def text(self):
        """The whole module."""
        program = self.program
        body = self._replica_function()
        lines = [f'D = jnp.dtype("{program.dtype}")', "", "", "def program(S):"]
        lines += _indented(self._variables() + self._knobs() + self.hoisted + body)
        lines += _indented(self._around())
        names = ", ".join(variable.name for variable in program.variables)
        lines += _indented([f"return ({names},), replica_fn, around, set_knobs"])
        return HEADER + "\n\n" + "\n".join(lines) + "\n"

    def number(self, value):
        return f"{float(value)}" if self.is_float else f"{value}"

    def _variables(self):
        lines = ["with S.scope():"]
        for v in self.program.variables:
            initial = [v.initial + i for i in range(VECTOR_SIZE)] if v.is_vector else v.initial
            kind = "ON_READ" if v.on_read else "ON_WRITE"
            lines.append(
                f'    {v.name} = rx.Variable(jnp.asarray({initial}, "{v.dtype}"), name="{v.name}", '
                f"synchronization=rx.VariableSynchronization.{kind}, "
                f"aggregation=rx.VariableAggregation.{v.aggregation})"
            )
        return lines

    def _knobs(self):
        lines, names = [], [f"k{i}" for i in range(len(self.program.knobs))]
        first = self.program.steps[0].knobs
        for name, kind, value in zip(names, self.program.knobs, first, strict=True):
            lines.append(f"{name} = {self._knob(kind, value)}")
            if kind == "defaults":
                lines += ["", f"def {name}_with(value, factor={self.number(value)}):"]
                lines += ["    return value * factor", ""]
            if kind == "helper":
                lines += ["", f"def {name}_of(value):", f"    return value * {name}", ""]
        lines += ["", f"def set_knobs({', '.join('new_' + name for name in names)}):"]
        lines += [f"    nonlocal {', '.join(names)}"] if names else ["    pass"]
        for name, kind in zip(names, self.program.knobs, strict=True):
            if kind == "defaults":
                lines.append(f"    {name}_with.__defaults__ = (new_{name},)")
            made = KNOBS[kind][0].format(number=f"new_{name}", one=self.number(1))
            lines.append(f"    {name} = {made}")
        return [*lines, ""]

    def _knob(self, kind, value):
        return KNOBS[kind][0].format(number=self.number(value), one=self.number(1))

    def _replica_function(self):
        program = self.program
        uses_argument = any(isinstance(node, Arg) for node in nodes(program.body))
        uses_argument |= any(isinstance(n, Arg) for out in program.outputs for n in nodes(out))
        lines = self.statements(program.body.statements)
        if uses_argument:
            lines.insert(0, "a = jnp.asarray(a, D)")
        outputs = ", ".join(self.value(output) for output in program.outputs)
        lines.append(f"return ({outputs},)")
        lines = ["def replica_fn(x, a):", *_indented(lines), ""]
        if program.wrapped == "partial":
            lines += ["replica_fn = functools.partial(replica_fn)"]
        if program.wrapped == "method":
            body = "\n".join(lines).replace("def replica_fn(x, a):", "def step(self, x, a):")
            lines = ["class Model:", *_indented(body.splitlines()), "replica_fn = Model().step"]
        return lines

    def _around(self):
        lines = []
        for assign in self.program.before:
            variable = self.program.variables[assign.variable]
            value = f"{assign.value}" if variable.dtype == "int32" else f"{float(assign.value)}"
            if variable.is_vector:
                start = assign.value
                value = (
                    f'jnp.asarray({[start + i for i in range(VECTOR_SIZE)]}, "{variable.dtype}")'
                )
            lines.append(f"{variable.name}.{assign.method}({value})")
        lines.append("out = S.run(fn, args=(x, a))")
        extra = []
        for reduction in self.program.after:
            if reduction.op == "gather":
                extra.append(f"S.gather(out[{reduction.output}], axis=0)")
            else:
                arguments = f'"{reduction.op}", out[{reduction.output}], axis={reduction.axis}'
                extra.append(f"S.reduce({arguments})")
        extra += [f"{self.program.variables[index].name}.value" for index in self.program.reads]
        lines.append(f"return out, ({''.join(e + ', ' for e in extra)})")
        return ["def around(fn, x, a):", *_indented(lines), ""]

    # -- statements ------------------------------------------------------------------------------

    def statements(self, statements):
        lines = []
        for statement in statements:
            lines += getattr(self, f"_{type(statement).__name__.lower()}")(statement)
        return lines

    def _definition(self, name, block, params=None):
        params = block.params if params is None else params
        lines = [*self.statements(block.statements), f"return {self.value(block.result)}"]
        return [f"def {name}({', '.join(params)}):", *_indented(lines), ""]

    def _let(self, statement):
        return [f"{statement.name} = {self.value(statement.value)}"]

    def _assign(self, statement):
        variable = self.program.variables[statement.variable]
        return [f"{variable.name}.{statement.method}({self._for(variable, statement.value)})"]

    def _for(self, variable, value):
        """An expression in the dtype of a variable."""
        if isinstance(value, Const) and not variable.is_vector:
            return self._python_number(variable, value)
        text = self.value(value)
        return (
            text if variable.dtype == self.program.dtype else f'({text}).astype("{variable.dtype}")'
        )

    @staticmethod
    def _python_number(variable, constant):
        return f"{float(constant.value)}" if variable.is_float else f"{constant.value}"

    def _call(self, statement: Call):
        name, made = f"f_{statement.name}", f"g_{statement.name}"
        lines = self._definition(name, statement.block)
        kinds = {"jit": "jax.jit", "checkpoint": "jax.checkpoint", "function": "rx.function"}
        if statement.kind in RULES:
            factor = self.number(RULES[statement.kind])
            lines.append(f"{made} = jax.{statement.kind}({name})")
            if statement.kind == "custom_jvp":
                rule = f"({made}(*primals), {factor} * tangents[0])"
                lines.append(f"{made}.defjvp(lambda primals, tangents: {rule})")
            else:
                rules = f"lambda p: ({name}(p), None), lambda _, g: ({factor} * g,)"
                lines.append(f"{made}.defvjp({rules})")
        else:
            lines.append(f"{made} = {kinds[statement.kind]}({name})")
        if statement.is_hoisted:
            self.hoisted += lines
            lines = []
        inputs = ", ".join(map(self.value, statement.inputs))
        result = f"{made}({inputs})"
        if statement.kind == "checkpoint":  # JAX gives constants of NumPy, which promote otherwise
            result = f"jnp.asarray({result})"
        return [*lines, f"{statement.name} = {result}"]

    def _cond(self, statement):
        yes, no = f"yes_{statement.name}", f"no_{statement.name}"
        lines = self._definition(yes, statement.yes) + self._definition(no, statement.no)
        test = f"{self.plain(statement.left)} > {statement.right}"
        arguments = ", ".join([test, yes, no, *map(self.value, statement.inputs)])
        return [*lines, f"{statement.name} = lax.cond({arguments})"]

    def _loop(self, statement):
        name, body = statement.name, f"body_{statement.name}"
        lines = self._definition(body, statement.block)
        initial = self.value(statement.initial)
        if statement.kind == "while":
            count = self.plain(statement.count)
            test = f"lambda s: s[0] < {count}"
            step = f"lambda s: (s[0] + 1, {body}(s[0], s[1]))"
            start = f"(jnp.asarray(0, D), {initial})"
            return [*lines, f"_, {name} = lax.while_loop({test}, {step}, {start})"]
        count = statement.count.value
        if statement.kind == "fori":
            step = f"lambda i, c: {body}(i.astype(D), c)"
            return [*lines, f"{name} = lax.fori_loop(0, {count}, {step}, {initial})"]
        step = f"lambda c, i: ({body}(i, c), None)"
        return [*lines, f"{name}, _ = lax.scan({step}, {initial}, jnp.arange({count}, dtype=D))"]

    def _grad(self, statement):
        name, loss = statement.name, f"loss_{statement.name}"
        lines = self._definition(loss, statement.block)
        gradients = f"({', '.join(statement.gradients)},)"
        inputs = ", ".join(map(self.value, statement.inputs))
        if statement.kind == "variables":
            variables = [self.program.variables[index] for index in statement.variables]
            by = f"[{', '.join(v.name for v in variables)}]"
            lines.append(f"{name}, {gradients} = rx.value_and_grad({loss}, {by})")
            for gradient, variable in zip(statement.gradients, variables, strict=True):
                if variable.dtype != self.program.dtype:
                    lines.append(f"{gradient} = {gradient}.astype(D)")
            return lines
        if statement.kind == "inputs":
            by = tuple(range(len(statement.inputs)))
            made = f"jax.value_and_grad({loss}, argnums={by})"
            return [*lines, f"{name}, {gradients} = {made}({inputs})"]
        lines.append(f"{name}, back_{name} = jax.vjp({loss}, {inputs})")
        if statement.between is not None:
            lines += self._assign(statement.between)
        return [*lines, f"{gradients} = back_{name}(jnp.ones((), D))"]

    def _merge(self, statement):
        name, merge = statement.name, f"merge_{statement.name}"
        total = f'strategy.reduce("{statement.op}", value, axis=None)'
        target = None
        if statement.variable is not None:
            target = self.program.variables[statement.variable].name
        if statement.how == "reduce_to":
            total = f'strategy.extended.reduce_to("{statement.op}", value, destinations={target})'
        lines = [f"total = {total}"]
        if target is not None and statement.method.startswith("update:"):
            method = statement.method.removeprefix("update:")
            lines.append(
                f"strategy.extended.update({target}, lambda v, t: v.{method}(t), args=(total,))"
            )
        elif target is not None:
            lines.append(f"{target}.{statement.method}(total)")
        result = "total"
        if statement.read is not None:
            read = self.program.variables[statement.read]
            value = f"{read.name}.value"
            result += f" + {value if read.dtype == self.program.dtype else value + '.astype(D)'}"
        lines.append(f"return {result}")
        value = self.value(statement.value)
        return [
            f"def {merge}(strategy, value):",
            *_indented(lines),
            "",
            f"{name} = ctx().merge_call({merge}, args=({value},))",
        ]

    def _update(self, statement):
        variable = self.program.variables[statement.variable]
        value = self.plain(statement.value)
        if isinstance(statement.value, Const):  # as an array it would be one per replica
            value = self._python_number(variable, statement.value)
        function = f"lambda v, t: v.{statement.method}(t)"
        if variable.is_vector:
            function = f'lambda v, t: v.{statement.method}(t + jnp.zeros(2, "{variable.dtype}"))'
        return [f"S.extended.update({variable.name}, {function}, args=({value},))"]

    # -- expressions -----------------------------------------------------------------------------

    def value(self, node):
        """An expression that is an array of the dtype of the program."""
        text = self._operand(node)
        while text.startswith("(") and _closes_at_end(text):
            text = text[1:-1]
        return text

    def _operand(self, node):
        """The same, in parentheses where a larger expression needs them."""
        return f"jnp.asarray({node.value}, D)" if isinstance(node, Const) else self.plain(node)

    def plain(self, node):
        """An expression that may be a Python number."""
        match node:
            case Const():
                return self.number(node.value)
            case Arg():
                return "a"
            case ReplicaId():
                return "jnp.asarray(ctx().replica_id_in_sync_group, D)"
            case Local():
                return node.name
            case Read():
                return self._read(node)
            case Knob():
                use = KNOBS[self.program.knobs[node.index]][1]
                operand = self._operand(node.operand)
                return f"({use.format(name=f'k{node.index}', operand=operand)})"
            case Binary():
                left, right = self.plain(node.left), self.plain(node.right)
                if isinstance(node.left, Const) and isinstance(node.right, Const):
                    left = self.value(node.left)
                return f"({left} {node.operator} {right})"
            case Total():
                return f"jnp.sum({self.value(node.operand)})"
            case Spread():
                return f"({self._operand(node.operand)} + jnp.zeros({VECTOR_SIZE}, D))"
            case BatchSum():
                return f"jnp.sum(x * {self.plain(node.factor)})"
            case Batch():
                return f"(x * {self.plain(node.factor)})"
            case Branch():
                test = "ctx().replica_id_in_sync_group == 0"
                return f"({self._operand(node.first)} if {test} else {self._operand(node.other)})"
            case AllReduce():
                return f'ctx().all_reduce("{node.op}", {self.value(node.operand)})'
            case AllGather(is_batch=True):
                return f"weighted(ctx().all_gather(x * {self.plain(node.operand)}, axis=0))"
            case AllGather():
                operand = self.value(node.operand)
                return f"weighted(ctx().all_gather(jnp.reshape({operand}, -1), axis=0))"
        raise TypeError(node)

    def _read(self, node):
        variable = self.program.variables[node.variable]
        text = {
            "value": f"{variable.name}.value",
            "call": f"{variable.name}.read_value()",
            "bare": f"({variable.name} * 1)",
        }[node.form]
        return text if variable.dtype == self.program.dtype else f"{text}.astype(D)"


def _closes_at_end(text):
    """Whether the parenthesis that opens the text is closed by its last character."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return position == len(text) - 1
    return False


def _indented(lines):
    return [f"    {line}" if line else "" for line in lines]
