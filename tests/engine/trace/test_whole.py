"""Branches that replicas take differently are found, and what they compute is kept whole."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from replicax.engine.analysis.varying import divergent_branch
from replicax.engine.trace.whole import asks_for_pieces, without_pieces
from tests.engine.tracing import AXIS, psum, trace

PIECES = P("x")


def pieces(value, spec=PIECES):
    return lax.with_sharding_constraint(value, spec)


BRANCHES = {
    "cond on a local value": (lambda x, m: lax.cond(x[0] > 0, jnp.sin, jnp.cos, m), "cond"),
    "while on a local value": (
        lambda x, m: lax.while_loop(lambda c: c[0] < 9, lambda c: c + 1, x), "while",
    ),
    "switch on the replica id": (
        lambda x, m: lax.switch(lax.axis_index(AXIS), [jnp.sin, jnp.cos, jnp.tan, jnp.exp], m),
        "cond",
    ),
    "cond in a scan, local after a step": (
        lambda x, m: lax.scan(
            lambda c, _: (lax.cond(c[0] > 0, jnp.sin, jnp.cos, c) + x, None), m, None, length=2
        )[0],
        "cond",
    ),
    "cond on a common value": (lambda x, m: lax.cond(m[0] > 0, jnp.sin, jnp.cos, x), None),
    "cond on a sum": (lambda x, m: lax.cond(psum(x)[0] > 0, jnp.sin, jnp.cos, x), None),
    "fixed loop": (lambda x, m: lax.fori_loop(0, 3, lambda i, c: c + x, m), None),
    "where": (lambda x, m: jnp.where(x > 0, x, m), None),
}  # fmt: skip


@pytest.mark.parametrize("name", BRANCHES)
def test_a_branch_diverges_when_its_predicate_is_local(name):
    fn, expected = BRANCHES[name]
    jaxpr, varying_in = trace(fn)
    found = divergent_branch(jaxpr, varying_in, axis=AXIS)
    assert (None if found is None else found.primitive.name) == expected


ASKING = {
    "at the top": lambda x, m: pieces(x),
    "in a jit": lambda x, m: jax.jit(pieces)(x),
    "in a scan": lambda x, m: lax.scan(lambda c, _: (pieces(c), None), x, None, length=2)[0],
    "in a branch": lambda x, m: lax.cond(x[0] > 0, pieces, jnp.sin, x),
    "in a while": lambda x, m: lax.while_loop(lambda c: c[0] < 9, lambda c: pieces(c) + 1, x),
    "in a checkpoint": lambda x, m: jax.grad(lambda x: jax.checkpoint(pieces)(x).sum())(x),
    "in a vmap": lambda x, m: jax.vmap(lambda row: pieces(row))(x[None])[0],
}


@pytest.mark.parametrize("name", ASKING)
def test_layouts_are_found_and_replaced_wherever_they_are(name):
    jaxpr, _ = trace(ASKING[name])
    assert asks_for_pieces(jaxpr)
    whole = without_pieces(jaxpr)
    assert not asks_for_pieces(whole)
    assert [v.aval for v in whole.outvars] == [v.aval for v in jaxpr.outvars]


def test_a_whole_layout_asks_for_no_pieces():
    jaxpr, _ = trace(lambda x, m: pieces(x, P()) + pieces(m, P(None)))
    assert not asks_for_pieces(jaxpr)
