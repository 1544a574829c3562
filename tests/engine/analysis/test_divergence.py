"""Programs that would hang, write twice or miss a write are refused when they are traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from replicax.core.errors import ReplicaxError
from replicax.engine.analysis.varying import (
    DivergentCollectiveError,
    RematWriteError,
    StalePredicateError,
)
from tests.engine.tracing import AXIS, in_scan, nested_shard_map, psum, ref_program, varying

BRANCHES: dict[str, tuple[Callable[..., Any], str]] = {
    "cond": (
        lambda x, m: lax.cond(x[0] > 0, psum, lambda a: a, x),
        "psum at .*tracing.py:[0-9]+ .* inside a cond or switch at .*test_divergence.py:[0-9]+",
    ),
    "switch": (
        lambda x, m: lax.switch(lax.axis_index(AXIS), [psum, lambda a: a], x),
        "inside a cond or switch",
    ),
    "while body": (
        lambda x, m: lax.while_loop(lambda c: c[0] < x[0], lambda c: psum(c) / 4 + 1, x),
        "psum .* inside a while loop",
    ),
    "while predicate": (
        lambda x, m: lax.while_loop(lambda c: (c + psum(c))[0] < x[0], lambda c: c + 1, x),
        "psum .* inside a while loop",
    ),
    "ppermute": (
        lambda x, m: lax.cond(x[0] > 0, lambda: lax.ppermute(m, AXIS, [(0, 1)]), lambda: m),
        "ppermute at",
    ),
    "a scan in a jit in a cond": (
        lambda x, m: lax.cond(x[0] > 0, lambda: jax.jit(in_scan)(x, m), lambda: m),
        "psum at .* inside a cond",
    ),
    "a predicate that varies from the second round": (
        lambda x, m: lax.scan(
            lambda c, _: (lax.cond(c[0] > 0, psum, lambda a: a, x), None), m, None, length=2
        ),
        "psum at .* inside a cond",
    ),
    "a uniform cond inside a varying one": (
        lambda x, m: lax.cond(
            x[0] > 0, lambda: lax.cond(m[0] > 0, psum, lambda a: a, m), lambda: m
        ),
        "psum at .* inside a cond",
    ),
    "a linear solve": (
        lambda x, m: lax.cond(
            x[0] > 0,
            lambda: lax.custom_linear_solve(psum, m, lambda _, b: psum(b), symmetric=True),
            lambda: m,
        ),
        "psum at .* inside a cond",
    ),
}


@pytest.mark.parametrize("case", BRANCHES)
def test_a_collective_that_only_some_replicas_reach_is_refused(case: str) -> None:
    fn, text = BRANCHES[case]
    with pytest.raises(DivergentCollectiveError, match=text) as caught:
        varying(fn)
    assert isinstance(caught.value, ReplicaxError)
    assert isinstance(caught.value, ValueError)


def test_the_refusal_of_a_divergent_collective_says_what_to_do() -> None:
    def fn(x: jax.Array, m: jax.Array) -> jax.Array:
        def reached_by_some(a: jax.Array) -> jax.Array:
            return psum(a)

        return lax.cond(x[0] > 0, reached_by_some, lambda a: a, x)

    line = fn.__code__.co_firstlineno
    text = (
        rf"tracing.py:{psum.__code__.co_firstlineno + 1} communicates between replicas .* at "
        rf".*test_divergence.py:{line + 4} .* would hang. Compute on both branches and choose with "
        rf"jnp.where, or make the predicate equal on all replicas with all_reduce"
    )
    with pytest.raises(DivergentCollectiveError, match=text):
        varying(fn)


def test_collectives_are_allowed_where_all_replicas_take_the_same_branch() -> None:
    def fn(x: jax.Array, m: jax.Array) -> list[jax.Array]:
        return [
            lax.cond(m[0] > 0, psum, lambda a: a * 0, x),
            lax.cond(psum(x)[0] > 0, psum, lambda a: a * 0, x),
            lax.while_loop(lambda c: c[0] < m[0], lambda c: psum(c) + 1, m),
        ]

    assert varying(fn) == [True, True, False]  # a * 0 is not known to be zero


def test_the_replica_id_may_be_asked_for_in_a_branch_that_some_take() -> None:
    def fn(x: jax.Array, m: jax.Array) -> jax.Array:
        return lax.cond(x[0] > 0, lambda: lax.axis_index(AXIS), lambda: 0)

    assert varying(fn) is True


def test_a_sum_over_another_axis_may_be_under_a_varying_predicate() -> None:
    assert varying(lambda x, m: lax.cond(x[0] > 0, nested_shard_map, lambda a: a[:2], m)) is True


@pytest.mark.parametrize("differentiate", [False, True])
def test_a_write_inside_checkpoint_is_refused(differentiate: bool) -> None:
    def fn(x: jax.Array, m: jax.Array) -> jax.Array:
        ref = jax.new_ref(m)

        @jax.checkpoint
        def loss(a: jax.Array) -> jax.Array:
            ref[...] = lax.stop_gradient(a)
            return jnp.sin(jnp.sin(a)).sum()

        return (jax.grad(loss) if differentiate else loss)(x) + ref[...]

    text = (
        "test_divergence.py:[0-9]+ assigns a variable inside jax.checkpoint "
        ".*test_divergence.py:[0-9]+.*"
        "would happen twice. Move the assign out of jax.checkpoint, or return the value"
    )
    with pytest.raises(RematWriteError, match=text) as caught:
        varying(fn)
    assert isinstance(caught.value, ReplicaxError)
    assert isinstance(caught.value, ValueError)


def test_an_addition_in_a_scan_inside_checkpoint_is_refused() -> None:
    def fn(x: jax.Array, m: jax.Array) -> jax.Array:
        ref = jax.new_ref(m)

        def body(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            jax.ref.addupdate(ref, ..., m)
            return jnp.sin(carry), None

        return jax.checkpoint(lambda a: lax.scan(body, a, None, length=2)[0])(x)

    with pytest.raises(RematWriteError, match=r"assigns a variable inside jax\.checkpoint"):
        varying(fn)


def test_a_read_inside_checkpoint_and_a_write_after_it_are_allowed() -> None:
    def write(ref: Any, x: jax.Array, m: jax.Array) -> None:
        ref[...] = jax.checkpoint(lambda a: jnp.sin(a) * ref[...])(m)

    assert varying(ref_program(write)) is False


@pytest.mark.parametrize("writes", ["in the body", "in the predicate"])
def test_a_while_loop_whose_predicate_and_body_share_what_one_writes_is_refused(
    writes: str,
) -> None:
    def write(ref: Any, x: jax.Array, m: jax.Array) -> None:
        def add(where: str) -> jax.Array:
            if writes == where:
                ref[...] = ref[...] + 1
            return ref[...]

        lax.while_loop(
            lambda c: (add("in the predicate") < 5).all(),
            lambda c: c + add("in the body"),
            m,
        )

    text = (
        "the predicate and the body of the while loop at .*test_divergence.py:[0-9]+ use the same"
    )
    with pytest.raises(StalePredicateError, match=text):
        varying(ref_program(write))


def test_a_while_loop_whose_predicate_reads_what_its_body_reads_is_allowed() -> None:
    def write(ref: Any, x: jax.Array, m: jax.Array) -> None:
        own = jax.new_ref(m)

        def body(c: jax.Array) -> jax.Array:
            own[...] = own[...] + ref[...]
            return c + ref[...]

        lax.while_loop(lambda c: (c < ref[...]).all(), body, m)

    assert varying(ref_program(write)) is False
