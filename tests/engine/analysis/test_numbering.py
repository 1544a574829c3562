"""Which outputs the variants of a replica function compute in the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from replicax.engine.analysis.numbering import differing_outputs, number_constant
from tests.engine.merging import AXIS, DIM, KINDS, MIRRORED, SIZES, make_components, trace


def psum(value: Any) -> Any:
    return lax.psum(value, AXIS)


def find_differing(fn: Callable[..., Any]) -> list[int]:
    """The outputs of ``fn(x, m)`` that differ between the three kinds; m is the same for all."""
    components = make_components()
    examples = [components[KINDS.index(kind)] for kind in range(3)]
    variants, numbers = [], []
    for kind, example in enumerate(examples):
        closed, sources = trace(fn, example)
        variants.append(closed)
        names = {"x": ("x", kind), "m": "m"}
        numbers.append([names[s] if isinstance(s, str) else number_constant(s) for s in sources])
    count = len(variants[0].jaxpr.outvars)
    return differing_outputs(variants, numbers, range(count), axis=AXIS)


def with_ref(write: Callable[..., Any]) -> Callable[..., Any]:
    def fn(x: Any, m: Any) -> Any:
        ref = jax.new_ref(m)
        write(ref, x, m)
        return ref[...]

    return fn


def write(ref: Any, value: Any) -> None:
    ref[...] = value


def loop(body: Callable[..., Any], start: Any) -> Any:
    return lax.scan(lambda c, _: (body(c), None), start, None, length=2)[0]


def loop_that_writes(value: Callable[..., Any]) -> Callable[..., Any]:
    def run(ref: Any, x: Any, m: Any) -> None:
        def body(carry: Any, _: None) -> Any:
            ref[...] = ref[...] + value(x, m)
            return carry, None

        lax.scan(body, 0, None, length=2)

    return with_ref(run)


def counted(x: Any, m: Any, wrap: Callable[..., Any]) -> Any:
    """What a Ref holds after code that counts it up beside work on the component."""
    ref = jax.new_ref(m)

    def work(x: Any) -> Any:
        seen = x.sum() * ref[...].sum()
        ref[...] = ref[...] + 1
        return seen

    wrap(work)(x)
    return ref[...] * 2


def read_inside(x: Any, m: Any, wrap: Callable[..., Any]) -> Any:
    """What a Ref holds after code that reads it, and an addition."""
    ref = jax.new_ref(m)
    wrap(lambda x: x.sum() * ref[...].sum())(x)
    ref[...] = ref[...] + 1
    return ref[...]


WRAPS: dict[str, Callable[..., Any]] = {
    "jit": jax.jit,
    "scan": lambda fn: lambda x: lax.scan(lambda c, _: (c + fn(x), None), 0.0, None, length=2),
    "scan of jit": lambda fn: (
        lambda x: lax.scan(lambda c, _: (c + jax.jit(fn)(x), None), 0.0, None, length=2)
    ),
    "cond": lambda fn: lambda x: lax.cond(MIRRORED[0] > jnp.float32(0), fn, lambda x: x.sum(), x),
    "while": lambda fn: (
        lambda x: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + fn(x)), (0, 0.0))
    ),
    "scan in scan": lambda fn: (
        lambda x: lax.scan(
            lambda c, _: (
                c + lax.scan(lambda d, _: (d + fn(x), None), 0.0, None, length=2)[0],
                None,
            ),
            0.0,
            None,
            length=2,
        )
    ),
}
ONLY_READ: dict[str, Callable[..., Any]] = {
    **WRAPS,
    "checkpoint": jax.checkpoint,
    "grad of checkpoint": lambda fn: jax.grad(jax.checkpoint(fn)),
    "scan over the rows": lambda fn: (
        lambda x: lax.scan(lambda c, row: (c + fn(row[None]), None), 0.0, x)
    ),
}


def beside_another(x: Any, m: Any, wrap: Callable[..., Any], meets: bool) -> Any:
    """What a Ref holds after code that uses another one too: before it, after it or not at all."""
    ref, other = jax.new_ref(m), jax.new_ref(x.sum(0))

    def work() -> Any:
        if x.shape[0] == SIZES[0]:
            other[...] = other[...] * 2
        ref[...] = ref[...] + 1
        seen = other[...].sum() if x.shape[0] == SIZES[-1] else 0.0
        return seen + psum(x.sum()) if meets else seen

    wrap(work)()
    return ref[...]


def used_by_one_kind(x: Any, m: Any, wrap: Callable[..., Any], meets: bool) -> Any:
    """What a Ref holds after code in which one kind of replica reads it."""
    ref = jax.new_ref(m)

    def work() -> Any:
        seen = ref[...].sum() if x.shape[0] == SIZES[0] else 0.0
        return seen + psum(x.sum()) if meets else seen

    wrap(work)()
    return ref[...] + 1


def in_any_order(x: Any, m: Any, wrap: Callable[..., Any], meets: bool) -> Any:
    """What one of two Refs of equal content holds after code that reads them in some order."""
    ref, other = jax.new_ref(m), jax.new_ref(m + 1)
    other[...] = m

    def work() -> Any:
        first, second = (ref, other) if x.shape[0] == SIZES[0] else (other, ref)
        seen = first[...].sum() + second[...].sum()
        ref[...] = ref[...] * 2
        return seen + psum(x.sum()) if meets else seen

    wrap(work)()
    return ref[...]


LOOPS_AND_BRANCHES: dict[str, Callable[..., Any]] = {
    "a scan": lambda fn: lambda: lax.scan(lambda c, _: (c + fn(), None), 0.0, None, length=2),
    "a while": lambda fn: (
        lambda: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + fn()), (0, 0.0))
    ),
    "a cond": lambda fn: lambda: lax.cond(MIRRORED[0] > 0, fn, lambda: 0.0),
}
USES = {
    f"{name}{' with a sum' if meets else ''}": (wrap, meets)
    for name, wrap in LOOPS_AND_BRANCHES.items()
    for meets in (False, True)
}


def chain(x: Any, m: Any, factor: Any) -> Any:
    """The last of a chain of carried values, the first of which has to do with ``factor``."""

    def body(c: Any, _: None) -> Any:
        return (c[0] * factor, c[0] + 1, c[1] * 2, c[3] * x.shape[0]), None

    return lax.scan(body, (m, m, m, m), None, length=3)[0][2]


def carried_or_itself(x: Any, m: Any) -> Any:
    """A value that a loop carries along unchanged; on one kind as it comes out, else as it was."""
    (after, _), _ = lax.scan(
        lambda c, _: ((c[0], c[1] + psum(x.sum())), None), (m, 0.0), None, length=2
    )
    return after * 2 if x.shape[0] == SIZES[0] else m * 2


SAME: dict[str, Callable[..., Any]] = {
    "what a loop carried unchanged, and what it was": carried_or_itself,
    **{f"a Ref read in {n}": lambda x, m, w=w: read_inside(x, m, w) for n, w in ONLY_READ.items()},
    **{f"a Ref counted in {n}": lambda x, m, w=w: counted(x, m, w) for n, w in WRAPS.items()},
    **{
        f"a Ref beside another in {n}": lambda x, m, use=use: beside_another(x, m, *use)
        for n, use in USES.items()
    },
    **{
        f"a Ref that one kind reads in {n}": lambda x, m, use=use: used_by_one_kind(x, m, *use)
        for n, use in USES.items()
    },
    **{
        f"a Ref beside one of the same content in {n}": lambda x, m, use=use: in_any_order(
            x, m, *use
        )
        for n, use in USES.items()
    },
    "a carry that a loop with a sum leaves alone": lambda x, m: lax.scan(
        lambda c, _: ((c[0], c[1] + psum(x.sum())), None), (m, 0.0), None, length=2
    )[0][0],
    "what both branches with a sum give": lambda x, m: lax.cond(
        m[0] > 0, lambda: (m, psum(x.sum())), lambda: (m, 0.0)
    )[0],
    "a chain through rounds beside others": lambda x, m: chain(x, m, 2.0),
    "a carry beside a sum of the rows": lambda x, m: lax.scan(
        lambda c, _: ((c[0] + 1, c[1] + x.sum()), None), (m, 0.0), None, length=2
    )[0][0],
    "rows stacked beside others": lambda x, m: lax.scan(
        lambda c, row: (c + 1, (row * 2 + c, x.sum())), 0.0, m
    )[1][0],
    "a carry that a loop over the rows leaves alone": lambda x, m: lax.scan(
        lambda c, row: ((c[0], c[1] + row.sum()), None), (m, 0.0), x
    )[0][0],
    "a while whose carry beside differs": lambda x, m: lax.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2, s[2] + x.sum()), (0, m, 0.0)
    )[1],
    "a branch that differs beside": lambda x, m: lax.cond(
        m[0] > 0, lambda: (m + 1, x.sum()), lambda: (m, x.sum())
    )[0],
    "a shared input": lambda x, m: m,
    "an expression of it": lambda x, m: jnp.sin(m) * 2 + 1,
    "a constant array": lambda x, m: jnp.asarray([1.0, 2.0]) + m,
    "a sum over replicas": lambda x, m: psum(x.sum(0)),
    "a mean over all examples": lambda x, m: psum(x.sum(0)) / psum(jnp.float32(x.shape[0])),
    "a jitted function": lambda x, m: jax.jit(lambda a: jnp.where(a > 0, a, 0))(m),
    "a custom derivative": lambda x, m: jax.nn.relu(psum(x.sum(0))) + jax.nn.silu(m),
    "a local loop": lambda x, m: loop(lambda c: c * 2, m),
    "a loop with a sum": lambda x, m: loop(lambda c: c + psum(x.sum(0)), m),
    "a while with a sum": lambda x, m: lax.while_loop(
        lambda c: c[0] < 9, lambda c: c + psum(jnp.abs(x).sum(0)) + 1, m
    ),
    "a cond with a sum": lambda x, m: lax.cond(m[0] > 0, lambda: psum(x.sum(0)), lambda: m),
    "a write of a sum": with_ref(lambda r, x, m: write(r, r[...] + psum(x.sum(0)))),
    "a write of part": with_ref(lambda r, x, m: r.__setitem__(0, m[1])),
    "a write over what differs": with_ref(
        lambda r, x, m: (write(r, m * x.shape[0]), write(r, psum(m)))
    ),
    "an addition in place": with_ref(lambda r, x, m: jax.ref.addupdate(r, ..., m)),
    "a write in jit": with_ref(lambda r, x, m: jax.jit(lambda a: write(r, a * 2))(m)),
    "a write in a local loop": loop_that_writes(lambda x, m: m),
    "a write in a loop with a sum": loop_that_writes(lambda x, m: psum(x.sum(0))),
    "a write in a cond with a sum": with_ref(
        lambda r, x, m: lax.cond(m[0] > 0, lambda: write(r, psum(x.sum(0))), lambda: None)
    ),
}

DIFFERENT: dict[str, Callable[..., Any]] = {
    "a chain through rounds": lambda x, m: chain(x, m, float(x.shape[0])),
    "a carry of a loop over the rows": lambda x, m: lax.scan(lambda c, _: (c + 1, None), m, x)[0],
    "a carry that starts differently and is lost in the first round": lambda x, m: lax.while_loop(
        lambda s: s[0] < m[0], lambda s: (s[0] + 1, m), (0.0, m * x.shape[0])
    )[1],
    "a while of another length": lambda x, m: lax.while_loop(
        lambda s: s[0] < x.shape[0], lambda s: (s[0] + 1, s[1] * 2), (0, m)
    )[1],
    "a branch by the size": lambda x, m: lax.cond(x.sum() > 0, lambda: m, lambda: m + 1),
    "stacked rows with the size": lambda x, m: lax.scan(lambda c, row: (c, row * x.shape[0]), 0, m)[
        1
    ],
    "two carries of a loop that change places": lambda x, m: lax.scan(
        lambda c, _: ((c[1], c[0]), None), (m, m * x.shape[0]), None, length=2
    )[0][0],
    "a Ref written in scan in jit": with_ref(
        lambda r, x, m: jax.jit(
            lambda: lax.scan(lambda c, _: (c, write(r, r[...] * x.shape[0])), 0, None, length=2)
        )()
    ),
    "a Ref written in a while over the size": with_ref(
        lambda r, x, m: lax.while_loop(
            lambda i: i < x.shape[0], lambda i: (write(r, r[...] + 1), i + 1)[1], 0
        )
    ),
    "the component": lambda x, m: x.sum(0),
    "its size": lambda x, m: jnp.float32(x.shape[0]),
    "a constant array": lambda x, m: jnp.full((2,), float(x.shape[0])) + m,
    "an expression with the size": lambda x, m: psum(m) * x.shape[0],
    "a jitted function": lambda x, m: jax.jit(lambda a: a * x.shape[0])(m),
    "a jitted function with a constant": lambda x, m: jax.jit(
        lambda a: a + jnp.array([x.shape[0], 1.0])
    )(m),
    "a local loop": lambda x, m: lax.fori_loop(0, x.shape[0], lambda i, c: c * 2, m),
    "a loop with a sum": lambda x, m: loop(lambda c: psum(c) + x.shape[0], m),
    "a loop that starts differently": lambda x, m: loop(lambda c: c + psum(m), m * x.shape[0]),
    "a difference that arrives in the second round": lambda x, m: loop(
        lambda c: (c[1], psum(m) * x.shape[0]), (m, m)
    )[0],
    "a cond with a sum": lambda x, m: lax.cond(m[0] > 0, lambda: psum(m), lambda: m * x.shape[0]),
    "a write of the size": with_ref(lambda r, x, m: write(r, jnp.full(DIM, float(x.shape[0])))),
    "a write of part": with_ref(lambda r, x, m: r.__setitem__(0, float(x.shape[0]))),
    "an addition in place": with_ref(lambda r, x, m: jax.ref.addupdate(r, ..., m * x.shape[0])),
    "a write in jit": with_ref(lambda r, x, m: jax.jit(lambda a: write(r, a))(m * x.shape[0])),
    "a write in a local loop": loop_that_writes(lambda x, m: m * x.shape[0]),
    "a write in a loop with a sum": loop_that_writes(lambda x, m: psum(m) * x.shape[0]),
    "a write in a cond with a sum": with_ref(
        lambda r, x, m: lax.cond(
            m[0] > 0, lambda: write(r, psum(m)), lambda: write(r, m * x.shape[0])
        )
    ),
}


@pytest.mark.whole
@pytest.mark.parametrize("case", SAME)
def test_values_computed_in_the_same_way_are_recognised(case: str) -> None:
    assert find_differing(lambda x, m: [SAME[case](x, m)]) == []


@pytest.mark.whole
@pytest.mark.parametrize("case", DIFFERENT)
def test_values_that_differ_between_kinds_are_found(case: str) -> None:
    assert find_differing(
        lambda x, m: [SAME["a sum over replicas"](x, m), DIFFERENT[case](x, m)]
    ) == [1]


def test_only_the_outputs_asked_for_are_reported() -> None:
    closed, _ = trace(lambda x, m: [x, m, x], make_components()[0])
    numbers = [["a", "m"], ["b", "m"]]
    assert differing_outputs([closed, closed], numbers, [1, 2], axis=AXIS) == [2]


def test_constants_of_equal_content_have_equal_numbers() -> None:
    assert number_constant(jnp.ones(2)) == number_constant(jnp.ones(2))
    assert number_constant(jnp.ones(2)) != number_constant(jnp.zeros(2))
    assert number_constant(jnp.ones(2)) != number_constant(jnp.ones((1, 2)))
    assert number_constant(jax.random.key(1)) == number_constant(jax.random.key(1))
    assert number_constant(jax.random.key(1)) != number_constant(jax.random.key(2))
