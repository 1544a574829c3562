"""Equations are rewritten at any depth, and what a program shares stays shared."""

import jax
from jax import lax
from jax.extend import core as jex

from replicax.engine.trace.rewriting import rewritten
from replicax.jax_internals.programs import eval_jaxpr


def tripled(eqn):
    if eqn.primitive.name != "mul":
        return eqn
    factors = [jex.Literal(3.0, v.aval) if isinstance(v, jex.Literal) else v for v in eqn.invars]
    return eqn.replace(invars=factors)


def test_equations_are_rewritten_wherever_they_are():
    def fn(x):
        y = lax.cond(x > 0, lambda: x * 2, lambda: -x)
        return lax.scan(lambda c, _: (jax.jit(lambda c: c * 2)(c), None), y, None, length=3)[0]

    closed = jax.make_jaxpr(fn)(1.0)
    (result,) = eval_jaxpr(rewritten(closed.jaxpr, tripled), closed.consts, 1.0)
    assert (float(fn(1.0)), float(result)) == (2.0**4, 3.0**4)


def test_a_body_that_stands_in_several_places_is_rewritten_once():
    num_rewritten = 0

    def counted(eqn):
        nonlocal num_rewritten
        num_rewritten += 1
        return tripled(eqn)

    fn = lambda x: x * 2  # noqa: E731
    for _ in range(16):  # 2 to the power of 16 products
        fn = jax.jit(lambda x, inner=fn: inner(inner(x)))
    closed = jax.make_jaxpr(lambda x: fn(fn(x)))(1.0)
    one, other = (eqn.params["jaxpr"] for eqn in rewritten(closed.jaxpr, counted).eqns)
    assert one is other
    assert num_rewritten == 2 * 17
