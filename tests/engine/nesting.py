"""Random nestings of JAX transformations around reads and writes of variables.

A program is a list of steps on one number. It runs on two machines: with variables and the
transformations themselves, and as a plain function of a list of arrays, where a loop is a loop of
Python and what only says how code is run (jit, checkpoint, a custom rule) is left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

NUM_VARIABLES = 3
OWN = 2  # every replica has its own value of this one
LINES = ("jit", "checkpoint", "saving checkpoint", "scan", "fori", "while", "cond", "rows")
DERIVATIVES = ("grad", "value_and_grad", "vjp", "rx.grad", "jvp")
RULES = ("custom_jvp", "custom_vjp", "vmap", "solve")
# Nothing may be written in there; over the rows, because replicas have different numbers of them.
CLOSED = ("checkpoint", "saving checkpoint", "rows", *RULES)

# How often JAX traces or copies what is inside: programs grow by the product of these.
COPIES = {"solve": 4, "custom_vjp": 3, "custom_jvp": 2, **dict.fromkeys(DERIVATIVES, 2)}
MAX_SIZE = 64

Number = Any
Fn = Callable[[Number], Number]


@dataclasses.dataclass(frozen=True)
class Step:
    """What to do next.

    Attributes:
        kind: "read", "write", or the transformation around `body`.
        variable: The variable that is read or written, or that decides.
        source: For a write: the variable that the value comes from.
        body: The steps inside.
    """

    kind: str
    variable: int = 0
    source: int = 0
    body: tuple[Step, ...] = ()

    def writes(self) -> bool:
        """Whether it writes at any depth."""
        return self.kind in ("write", "vjp") or any(step.writes() for step in self.body)


Program = tuple[Step, ...]


def size(program: Program) -> int:
    """About how many reads and writes there are in all copies that JAX makes of `program`."""
    return sum(COPIES.get(step.kind, 1) * size(step.body) or 1 for step in program)


@st.composite
def programs(
    draw: st.DrawFn,
    *,
    depth: int = 3,
    closed: bool = False,
    backward: bool = False,
    forward: bool = False,
):
    """Programs of some steps each, nested up to `depth` times.

    `closed` is for code that may not write; `backward` and `forward` for code with a backward pass,
    where JAX takes no while loop, and with a forward derivative, where it takes no custom_vjp.
    """
    variables = st.integers(0, NUM_VARIABLES - 1)
    steps = []
    for _ in range(draw(st.integers(1, 3))):
        kinds = ["read"]
        if not closed:
            kinds += ["write", "write"]
        if depth:
            kinds += [kind for kind in LINES if not (backward and kind == "while")]
            kinds += [kind for kind in DERIVATIVES if not (closed and kind == "vjp")]
            kinds += [kind for kind in RULES if not (forward and kind == "custom_vjp")]
        kind = draw(st.sampled_from(kinds))
        body: Program = ()
        if kind not in ("read", "write"):
            inner = {
                "depth": depth - 1,
                "closed": closed or kind in CLOSED,
                "backward": backward or kind in DERIVATIVES or kind in RULES,
                "forward": forward or kind in ("jvp", "custom_jvp"),
            }
            body = draw(programs(**inner))
        deciding = st.integers(0, OWN - 1) if kind == "cond" else variables
        target = variables
        source = draw(variables)
        if kind == "write" and source == OWN:
            target = st.just(OWN)  # its values differ between replicas
        steps.append(Step(kind, draw(target if kind == "write" else deciding), source, body))
    return tuple(steps)


class Machine:
    """Runs programs; a subclass says what reads, writes and transformations are."""

    def __init__(self, rows: Any) -> None:
        """For a component of these `rows`."""
        self.rows = rows

    def read(self, variable: int) -> Number:
        """The value of a variable."""
        raise NotImplementedError

    def write(self, variable: int, value: Number) -> None:
        """Assigns a variable."""
        raise NotImplementedError

    def run(self, program: Program, x: Number) -> Number:
        """What `program` makes of `x`."""
        for step in program:
            x = self._run_step(step, x)
        return x

    def _run_step(self, step: Step, x: Number) -> Number:
        inner = lambda x: self.run(step.body, x)  # noqa: E731
        match step.kind:
            case "read":
                return jnp.sin(x * 0.5 + self.read(step.variable))
            case "write":
                self.write(step.variable, jnp.cos(self.read(step.source)) + 0.25 * step.variable)
                return x
            case "rows":
                return self.over_rows(lambda x, row: inner(x + 0.1 * row), x)
            case "grad":
                return x + self.derivative(lambda x: jax.grad(inner)(x), x)
            case "value_and_grad":
                return self.derivative(lambda x: sum(jax.value_and_grad(inner)(x)), x)
            case "jvp":
                return self.derivative(lambda x: sum(jax.jvp(inner, (x,), (jnp.ones(()),))), x)
            case "vjp":
                return self.derivative(lambda x: self._pulled(step, inner, x), x)
            case "rx.grad":
                return x + self.gradient(step.variable, lambda: inner(x))
            case _:
                return self.transformed(step, inner, x)

    def _pulled(self, step: Step, inner: Fn, x: Number) -> Number:
        y, pullback = jax.vjp(inner, x)
        self.write(step.variable % OWN, jnp.cos(self.read(step.source % OWN)) - 2.0)
        return y + pullback(jnp.ones(()))[0]

    def derivative(self, fn: Fn, x: Number) -> Number:
        """``fn(x)``, which has a derivative in it."""
        return fn(x)

    def gradient(self, variable: int, loss: Callable[[], Number]) -> Number:
        """The gradient of ``loss()`` with respect to a variable."""
        raise NotImplementedError

    def over_rows(self, fn: Callable[[Number, Number], Number], x: Number) -> Number:
        """``fn`` of what it gave before and of a row, for all rows."""
        raise NotImplementedError

    def transformed(self, step: Step, inner: Fn, x: Number) -> Number:
        """``inner(x)`` inside the transformation that `step` names."""
        raise NotImplementedError


class Reference(Machine):
    """The variables are a list; nothing is staged."""

    def __init__(self, rows: Any, values: list[Any]) -> None:
        """Starts with `values`, and leaves the last ones there."""
        super().__init__(rows)
        self.values = values

    def read(self, variable: int) -> Number:
        """The value of a variable."""
        return self.values[variable]

    def write(self, variable: int, value: Number) -> None:
        """Assigns a variable."""
        self.values[variable] = lax.stop_gradient(value)

    def gradient(self, variable: int, loss: Callable[[], Number]) -> Number:
        """The gradient of ``loss()`` with respect to a variable."""
        before = self.values[variable]

        def of(value: Number) -> Number:
            self.values[variable] = value
            y = loss()
            if self.values[variable] is value:  # not assigned
                self.values[variable] = before
            return y

        return jax.grad(of)(before)

    def over_rows(self, fn: Callable[[Number, Number], Number], x: Number) -> Number:
        """``fn`` of what it gave before and of a row, for all rows."""
        for row in self.rows:
            x = fn(x, row)
        return x

    def transformed(self, step: Step, inner: Fn, x: Number) -> Number:
        """``inner(x)`` inside the transformation that `step` names."""
        match step.kind:
            case "scan" | "fori" | "while":
                return inner(inner(x))
            case "cond":
                return inner(x) if self.read(step.variable) > 0.5 else x * 0.5
            case "vmap":
                return inner(x) + inner(x + 1.0)
            case "solve":
                return x / (2.0 + inner(jnp.ones(())) ** 2)
        return inner(x)


class Library(Machine):
    """The variables are those of the library, the transformations those of JAX."""

    def __init__(self, rows: Any, variables: Sequence[Any], gradient: Callable[..., Any]) -> None:
        """`gradient` is that of the library."""
        super().__init__(rows)
        self._variables = variables
        self._gradient = gradient

    def read(self, variable: int) -> Number:
        """The value of a variable."""
        return self._variables[variable].value

    def write(self, variable: int, value: Number) -> None:
        """Assigns a variable."""
        self._variables[variable].assign(value)

    def gradient(self, variable: int, loss: Callable[[], Number]) -> Number:
        """The gradient of ``loss()`` with respect to a variable."""
        return self._gradient(loss, self._variables[variable])

    def over_rows(self, fn: Callable[[Number, Number], Number], x: Number) -> Number:
        """``fn`` of what it gave before and of a row, for all rows."""
        return lax.scan(lambda x, row: (fn(x, row), None), x, self.rows)[0]

    def transformed(self, step: Step, inner: Fn, x: Number) -> Number:
        """``inner(x)`` inside the transformation that `step` names."""
        match step.kind:
            case "jit":
                return jax.jit(inner)(x)
            case "checkpoint":
                return jax.checkpoint(inner)(x)
            case "saving checkpoint":
                policy = jax.checkpoint_policies.everything_saveable
                return jax.checkpoint(inner, policy=policy)(x)
            case "scan":
                return lax.scan(lambda x, _: (inner(x), None), x, None, length=2)[0]
            case "fori":
                return lax.fori_loop(0, 2, lambda _, x: inner(x), x)
            case "while":
                start = jnp.int32(0), x
                return lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, inner(s[1])), start)[
                    1
                ]
            case "cond":
                return lax.cond(self.read(step.variable) > 0.5, inner, lambda x: x * 0.5, x)
            case "vmap":
                return jax.vmap(inner)(jnp.stack([x, x + 1.0])).sum()
            case "solve":
                divisor = lambda: 2.0 + inner(jnp.ones(())) ** 2  # noqa: E731
                return lax.custom_linear_solve(
                    lambda y: y * divisor(), x, lambda _, b: b / divisor(), symmetric=True
                )
            case "custom_jvp":
                made = jax.custom_jvp(inner)
                made.defjvp(lambda primals, tangents: jax.jvp(inner, primals, tangents))
                return made(x)
            case "custom_vjp":
                ruled = jax.custom_vjp(inner)
                ruled.defvjp(lambda x: jax.vjp(inner, x), lambda pullback, g: pullback(g))
                return ruled(x)
        raise ValueError(step.kind)


def expected(program: Program, components: Sequence[np.ndarray], values: list[list[Any]]) -> Any:
    """What each replica gets; `values`, a list of each replica's, are left as they are then."""
    results = []
    for rows, own in zip(components, values, strict=True):
        machine = Reference(jnp.asarray(rows), own)
        results.append(float(machine.run(program, jnp.sin(rows.sum()))))
    return results
