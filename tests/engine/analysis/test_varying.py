"""The varying analysis over real traces: each rule has a program that needs it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.extend import core as jex_core
from jax.extend.core import primitives
from jax.sharding import PartitionSpec as P

from replicax.engine.analysis.varying import analyse
from tests.engine.tracing import (
    AXIS,
    in_scan,
    nested_shard_map,
    psum,
    ref_program,
    set_to,
    trace,
    varying,
)


@jax.custom_vjp
def double_vjp(value: jax.Array) -> jax.Array:
    return psum(value) * 2


double_vjp.defvjp(lambda value: (double_vjp(value), None), lambda _, g: (g * 2,))


@jax.custom_jvp
def double_jvp(value: jax.Array) -> jax.Array:
    return psum(value) * 2


double_jvp.defjvp(lambda p, t: (double_jvp(p[0]), t[0] * 2))


@jax.custom_batching.custom_vmap
def double_vmap(value: jax.Array) -> jax.Array:
    return psum(value) * 2


@double_vmap.def_vmap
def _(axis_size: int, in_batched: list[bool], value: jax.Array) -> tuple[jax.Array, bool]:
    return psum(value) * 2, in_batched[0]


def shift_register(x: jax.Array, m: jax.Array) -> tuple[jax.Array, ...]:
    """x enters at one end and reaches the other only in the third round."""

    def body(carry: tuple[jax.Array, ...], _: None) -> tuple[tuple[jax.Array, ...], None]:
        a, b, _, d = carry
        return (x, a, b, d + m), None

    return lax.scan(body, (m, m, m, m), None, length=3)[0]


def write_in_scan(ref: Any, value: jax.Array, *, length: int = 3) -> None:
    lax.scan(lambda c, _: (set_to(ref, value), (c, None))[1], 0, None, length=length)


def delayed_write(ref: Any, x: jax.Array, m: jax.Array) -> None:
    """The first round stores m, only later rounds store x."""
    other = jax.new_ref(m)

    def body(carry: int, _: None) -> tuple[int, None]:
        ref[...] = other[...]
        other[...] = x
        return carry, None

    lax.scan(body, 0, None, length=3)


def write_in_while(predicate: Callable[..., jax.Array]) -> Callable[..., None]:
    def write(ref: Any, x: jax.Array, m: jax.Array) -> None:
        def body(i: jax.Array) -> jax.Array:
            ref[...] = m + 1
            return i + 1.0

        lax.while_loop(lambda i: i < predicate(x, m), body, 0.0)

    return write


def write_in_cond(predicate: str, value: str) -> Callable[..., None]:
    def write(ref: Any, x: jax.Array, m: jax.Array) -> None:
        known = {"x": x, "m": m}
        lax.cond(known[predicate][0] > 0, lambda: set_to(ref, known[value]), lambda: None)

    return write


def own_answer(value: jax.Array) -> jax.Array:
    return jax.pure_callback(lambda a: a, jax.typeof(value), value)


def foreign(value: jax.Array, *, has_side_effect: bool) -> jax.Array:
    return jax.ffi.ffi_call("any", jax.typeof(value), has_side_effect=has_side_effect)(value)


def bind_call(primitive: Any, fn: Callable[..., Any], x: jax.Array) -> jax.Array:
    """A call primitive, which no public function makes in this JAX."""
    closed = jax.make_jaxpr(fn, axis_env=[(AXIS, 4)])(x)
    body = closed if primitive is primitives.closed_call_p else closed.jaxpr
    return primitive.bind(x, **primitive.get_bind_params({"call_jaxpr": body}))[0]


GROUPS = [[0, 1], [2, 3]]
RULES: dict[str, tuple[Callable[..., Any], bool]] = {
    # values
    "a per-replica input": (lambda x, m: x + m, True),
    "a mirrored input": (lambda x, m: m * 2, False),
    "a constant": (lambda x, m: jnp.ones(3), False),
    "a literal output": (lambda x, m: 1.0 + 0 * jnp.float32(2), False),
    "the replica id": (lambda x, m: lax.axis_index(AXIS) + 1, True),
    "a scatter of mirrored values": (lambda x, m: m.at[0].add(2.0), False),
    "a scatter of a varying value": (lambda x, m: m.at[0].add(x[0]), True),
    "a linear solve": (lambda x, m: jnp.linalg.solve(jnp.diag(m), m), False),
    "a random draw from a mirrored key": (
        lambda x, m: jax.random.normal(jax.random.key(m[0].astype(int)), (2,)),
        False,
    ),
    "a random draw from the device's own generator": (
        lambda x, m: lax.rng_uniform(0.0, m[0], (2,)),
        True,
    ),
    "a pure callback": (lambda x, m: own_answer(m), True),
    "an unknown primitive with the replica id inside": (
        lambda x, m: lax.custom_linear_solve(
            lambda v: v * (1 + lax.axis_index(AXIS)),
            m,
            lambda _, b: b / (1 + lax.axis_index(AXIS)),
            symmetric=True,
        ),
        True,
    ),
    # collectives
    "psum": (lambda x, m: psum(x), False),
    "pmean": (lambda x, m: lax.pmean(x, AXIS), False),
    "pmax": (lambda x, m: lax.pmax(x, AXIS), False),
    "pmin": (lambda x, m: lax.pmin(x, AXIS), False),
    "all_gather": (lambda x, m: lax.all_gather(x, AXIS), False),
    "pbroadcast": (lambda x, m: lax.pbroadcast(x, (AXIS,), 0), False),
    "psum within groups": (lambda x, m: lax.psum(x, AXIS, axis_index_groups=GROUPS), True),
    "all_gather within groups": (
        lambda x, m: lax.all_gather(x, AXIS, axis_index_groups=GROUPS),
        True,
    ),
    "ppermute of a mirrored value": (lambda x, m: lax.ppermute(m, AXIS, [(0, 1)]), True),
    "all_to_all of a mirrored value": (lambda x, m: lax.all_to_all(m, AXIS, 0, 0), True),
    "psum_scatter of a mirrored value": (lambda x, m: lax.psum_scatter(m, AXIS), True),
    "an index and a sum over another axis": (lambda x, m: nested_shard_map(m), False),
    "a sum over another axis only": (lambda x, m: nested_shard_map(x), True),
    "a sum over both axes": (
        lambda x, m: jax.shard_map(
            lambda t: lax.psum(t, (AXIS, "x")),
            in_specs=P("x"),
            out_specs=P(),
            axis_names={"x"},
            check_vma=False,
        )(x),
        False,
    ),
    "a foreign function": (lambda x, m: foreign(m, has_side_effect=False), False),
    "a foreign function with side effects": (lambda x, m: foreign(m, has_side_effect=True), True),
    # calls
    "psum in call": (lambda x, m: bind_call(primitives.call_p, psum, x), False),
    "psum in closed_call": (lambda x, m: bind_call(primitives.closed_call_p, psum, x), False),
    "psum in jit": (lambda x, m: jax.jit(psum)(x), False),
    "jit": (lambda x, m: jax.jit(jnp.sin)(x), True),
    "psum in custom_vjp": (lambda x, m: double_vjp(x), False),
    "psum in custom_jvp": (lambda x, m: double_jvp(x), False),
    "psum in custom_vmap": (lambda x, m: double_vmap(x), False),
    "psum in linear_call": (
        lambda x, m: jax.custom_derivatives.linear_call(
            lambda _, a: psum(a), lambda _, a: psum(a), (), x
        ),
        False,
    ),
    "psum in checkpoint": (lambda x, m: jax.checkpoint(psum)(x), False),
    "a gradient that is not reduced": (lambda x, m: jax.grad(lambda w: (w * x).sum())(m), True),
    "a gradient that is reduced": (
        lambda x, m: psum(jax.grad(lambda w: (w * x).sum())(m)),
        False,
    ),
    "a checkpointed gradient that is reduced": (
        lambda x, m: psum(jax.grad(jax.checkpoint(lambda w: jnp.sin(w * x).sum()))(m)),
        False,
    ),
    # control flow
    "scan that reduces its carry": (lambda x, m: in_scan(x, m), False),
    "scan that reduces a varying carry": (lambda x, m: in_scan(x, x), False),
    "scan of no rounds over a varying carry": (lambda x, m: in_scan(x, x, length=0), True),
    "while with a mirrored bound": (
        lambda x, m: lax.while_loop(lambda i: i < m[0], lambda i: i + 1, 0.0),
        False,
    ),
    "while with a varying bound": (
        lambda x, m: lax.while_loop(lambda i: i < x[0], lambda i: i + 1, 0.0),
        True,
    ),
    "a carry that a varying while leaves alone": (
        lambda x, m: lax.while_loop(lambda c: c[0] < x[0], lambda c: (c[0] + 1, c[1]), (0.0, m))[1],
        False,
    ),
    "cond of equal branches": (
        lambda x, m: lax.cond(m[0] > 0, lambda: m, lambda: m * 2),
        False,
    ),
    "cond with one varying branch": (
        lambda x, m: lax.cond(m[0] > 0, lambda: m, lambda: x),
        True,
    ),
    "cond with a varying predicate": (
        lambda x, m: lax.cond(x[0] > 0, lambda: m * 3, lambda: m * 2),
        True,
    ),
    "switch on the replica id": (
        lambda x, m: lax.switch(lax.axis_index(AXIS), [lambda: m * 3, lambda: m * 2]),
        True,
    ),
    # Refs
    "a write of a varying value": (ref_program(lambda r, x, m: set_to(r, x)), True),
    "a write of a reduced value over a varying one": (
        ref_program(lambda r, x, m: set_to(r, psum(x)), start="x"),
        False,
    ),
    "a write of a whole static slice": (
        ref_program(lambda r, x, m: r.__setitem__(slice(None), m), start="x"),
        False,
    ),
    "a write of part of a static slice": (
        ref_program(lambda r, x, m: r.__setitem__(slice(0, 2), m[:2]), start="x"),
        True,
    ),
    "a write at a varying position": (
        ref_program(lambda r, x, m: r.__setitem__(x[0].astype(int), 7.0)),
        True,
    ),
    "a read at a varying position": (
        lambda x, m: jax.new_ref(m)[x[0].astype(int)],
        True,
    ),
    "adding a varying value": (ref_program(lambda r, x, m: jax.ref.addupdate(r, ..., x)), True),
    "adding a mirrored value": (ref_program(lambda r, x, m: jax.ref.addupdate(r, ..., m)), False),
    "adding to a varying value": (
        ref_program(lambda r, x, m: jax.ref.addupdate(r, ..., m), start="x"),
        True,
    ),
    "freezing": (lambda x, m: jax.freeze(jax.new_ref(x)), True),
    "a write in jit": (ref_program(lambda r, x, m: jax.jit(lambda: set_to(r, x))()), True),
    "a reduced write in jit": (
        ref_program(lambda r, x, m: jax.jit(lambda: set_to(r, psum(x)))(), start="x"),
        False,
    ),
    "a write in scan": (ref_program(lambda r, x, m: write_in_scan(r, x)), True),
    "a reduced write in scan": (
        ref_program(lambda r, x, m: write_in_scan(r, psum(x)), start="x"),
        False,
    ),
    "a write in scan that arrives in a later round": (ref_program(delayed_write), True),
    "a write in a cond that all replicas take": (ref_program(write_in_cond("m", "m")), False),
    "a varying write in a cond": (ref_program(write_in_cond("m", "x")), True),
    "a mirrored write in a cond that some replicas take": (
        ref_program(write_in_cond("x", "m")),
        True,
    ),
    "a mirrored write in a while that all replicas take": (
        ref_program(write_in_while(lambda x, m: m[0])),
        False,
    ),
    "a mirrored write in a while of varying length": (
        ref_program(write_in_while(lambda x, m: x[0])),
        True,
    ),
    "a Ref that a varying cond only reads": (
        ref_program(lambda r, x, m: lax.cond(x[0] > 0, lambda: r[0], lambda: 0.0)),
        False,
    ),
    "a Ref made inside checkpoint": (
        lambda x, m: jax.checkpoint(ref_program(lambda r, x, m: set_to(r, x)))(x, m),
        True,
    ),
}


@pytest.mark.whole
@pytest.mark.parametrize("rule", RULES)
def test_a_value_varies_exactly_when_the_rule_says_so(rule: str) -> None:
    fn, expected = RULES[rule]
    assert varying(fn) is expected


def test_a_scan_is_followed_until_nothing_changes() -> None:
    assert varying(shift_register) == [True, True, True, False]


def test_a_mirrored_value_beside_a_varying_one_in_a_barrier_stays_mirrored() -> None:
    assert varying(lambda x, m: lax.optimization_barrier((x, m))) == [True, False]


def test_a_read_before_the_write_has_the_old_state() -> None:
    def fn(x: jax.Array, m: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        ref = jax.new_ref(m)
        before = ref[...]
        ref[...] = x
        between = ref[...]
        ref[...] = psum(x)
        return before, between, ref[...]

    assert varying(fn) == [False, True, False]


def test_a_jitted_function_is_judged_by_the_inputs_of_each_call() -> None:
    double = jax.jit(lambda a: a * 2)
    assert varying(lambda x, m: (double(m), double(x), double(m))) == [False, True, False]


def test_a_jitted_write_is_judged_by_the_state_at_each_call() -> None:
    def fn(x: jax.Array, m: jax.Array) -> tuple[jax.Array, jax.Array]:
        first, second = jax.new_ref(m), jax.new_ref(m)
        move = jax.jit(lambda ref, value: set_to(ref, value))
        move(first, m)
        move(second, x)
        move(first, m)
        return first[...], second[...]

    assert varying(fn) == [False, True]


def test_a_jitted_write_counts_at_each_call_in_a_varying_branch() -> None:
    def fn(x: jax.Array, m: jax.Array) -> list[jax.Array]:
        refs = [jax.new_ref(m), jax.new_ref(m)]
        move = jax.jit(lambda ref, value: set_to(ref, value))  # one body for both
        for ref in refs:
            lax.cond(x[0] > 0, lambda ref=ref: move(ref, m), lambda: None)
        return [ref[...] for ref in refs]

    assert varying(fn) == [True, True]


def test_a_ref_that_an_unknown_primitive_touches_varies_from_then_on() -> None:
    unknown = jex_core.Primitive("unknown")
    unknown.def_abstract_eval(lambda ref: jax.core.ShapedArray((), jnp.float32))
    assert varying(ref_program(lambda r, x, m: unknown.bind(r))) is True


@pytest.mark.timing
def test_a_large_program_is_analysed_in_little_time() -> None:
    def nested(x: jax.Array, depth: int) -> jax.Array:
        if depth == 0:
            for _ in range(300):
                x = jnp.sin(x) + 1
            return x
        return lax.scan(lambda c, _: (nested(c, depth - 1), None), x, None, length=2)[0]

    jaxpr, varying_in = trace(lambda x, m: nested(x, 6))
    start = time.perf_counter()
    analyse(jaxpr, varying_in, axis=AXIS)
    assert time.perf_counter() - start < 0.5


def test_the_number_of_inputs_is_checked() -> None:
    jaxpr, _ = trace(lambda x, m: x + m)
    with pytest.raises(ValueError, match="varying_in has 1 entries for the 2 inputs"):
        analyse(jaxpr, [True], axis=AXIS)
