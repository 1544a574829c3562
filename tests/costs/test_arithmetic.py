"""Operations and bytes of a trace, against XLA's own count where it counts the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from replicax.costs import primitives
from replicax.costs.arithmetic import count_arithmetic, kept_for_backward
from replicax.engine.analysis.uniform import uniform_p
from replicax.engine.analysis.varying import CALLS
from replicax.jax_internals.primitives import AXES_OF
from tests.jax_internals.test_primitives import primitives as primitives_of_jax

A, B = jnp.ones((32, 48)), jnp.ones((48, 16))
IMAGES, KERNEL = jnp.ones((4, 12, 12, 3)), jnp.ones((3, 3, 3, 8))


def convolved(x, kernel):
    return lax.conv_general_dilated(
        x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


CASES = {
    "product": (lambda a, b: a @ b, A, B),
    "batched product": (jax.vmap(lambda a, b: a @ b), jnp.ones((5, 8, 4)), jnp.ones((5, 4, 8))),
    "elementwise": (lambda a: a * 2 + a, A),
    "reduction": (lambda a: a.sum(0), A),
    "convolution": (convolved, IMAGES, KERNEL),
    "layers": (lambda a, b: jnp.maximum(a @ b, 0).sum(), A, B),
    "gradient": (jax.grad(lambda b, a: ((a @ b) ** 2).sum()), B, A),
}


@pytest.mark.parametrize("case", CASES)
def test_operations_are_those_that_xla_counts(case):
    fn, *args = CASES[case]
    told = count_arithmetic(jax.make_jaxpr(fn)(*args))
    xla = jax.jit(fn).lower(*args).compile().cost_analysis()["flops"]
    assert told.uncounted == ()
    assert told.flops == pytest.approx(xla, rel=0.05)


def test_a_scan_counts_every_round_and_a_while_loop_says_that_there_is_more():
    once = count_arithmetic(jax.make_jaxpr(lambda a, b: a @ b)(A, B)).flops
    assert once == 2 * 32 * 48 * 16

    def scanned(a, b):
        return lax.scan(lambda carry, _: (carry, a @ b), 0.0, length=7)

    told = count_arithmetic(jax.make_jaxpr(scanned)(A, B))
    assert (told.flops, told.is_at_least) == (7 * once, False)
    looped = jax.make_jaxpr(lambda a: lax.while_loop(lambda c: c.sum() < 9, lambda c: c @ c, a))(
        jnp.ones((4, 4))
    )
    told = count_arithmetic(looped)
    assert (told.flops, told.is_at_least) == (2 * 4**3, True)


def test_of_two_branches_the_dearer_one_counts():
    def branched(flag, a, b):
        return lax.cond(flag, lambda: (a @ b).sum(), lambda: 0.0)

    told = count_arithmetic(jax.make_jaxpr(branched)(True, A, B))
    assert told.flops == 2 * 32 * 48 * 16 + 32 * 16


def test_products_read_and_write_what_they_multiply_and_elementwise_operations_nothing():
    told = count_arithmetic(jax.make_jaxpr(lambda a, b: jnp.tanh(a @ b) + 1)(A, B))
    assert told.bytes_accessed == 4 * (32 * 48 + 48 * 16 + 32 * 16)
    assert told.intensity == pytest.approx(told.flops / told.bytes_accessed)
    assert count_arithmetic(jax.make_jaxpr(lambda a: a + 1)(A)).intensity == 0


def test_whole_numbers_are_no_floating_point_operations():
    assert count_arithmetic(jax.make_jaxpr(lambda a: a * 2 + a)(jnp.arange(9))).flops == 0


def test_a_primitive_whose_cost_is_not_known_is_named():
    matrix = jnp.eye(4)
    told = count_arithmetic(jax.make_jaxpr(jnp.linalg.cholesky)(matrix))
    assert told.uncounted == ("cholesky",)


def test_what_the_backward_pass_needs_is_what_vjp_keeps():
    weights = [jnp.ones((16, 16)), jnp.ones((16, 16))]

    def loss(weights, x):
        for w in weights:
            x = jnp.sin(x @ w)
        return x.sum()

    x = jnp.ones((8, 16))
    _, backward = jax.vjp(lambda weights: loss(weights, x), weights)
    kept = {id(leaf): leaf.nbytes for leaf in jax.tree.leaves(backward)}
    inputs = {id(leaf) for leaf in (*weights, x)}
    expected = sum(size for key, size in kept.items() if key not in inputs)
    told = kept_for_backward(jax.make_jaxpr(jax.grad(loss))(weights, x))
    assert told == pytest.approx(expected, abs=4 * 8 * 16)
    remat = jax.make_jaxpr(jax.grad(jax.checkpoint(loss)))(weights, x)
    assert kept_for_backward(remat) < told


def test_the_tables_name_primitives_that_jax_has_and_each_only_once():
    tables = [
        set(primitives.KINDS),
        primitives.HOST_CALLS,
        primitives.MOVES,
        primitives.FREE - primitives.READS,
        primitives.ELEMENTWISE,
    ]
    known = {name for table in tables for name in table}
    assert sum(map(len, tables)) == len(known)
    assert known - {uniform_p.name} <= {primitive.name for primitive in primitives_of_jax()}
    assert not known & set(CALLS)
    assert set(primitives.KINDS) <= set(AXES_OF)


def test_bytes_of_a_slice_are_those_of_the_slice():
    big, row = jnp.ones((1000, 8)), np.int32(3)
    told = count_arithmetic(jax.make_jaxpr(lambda big, i: big[i])(big, row))
    assert told.bytes_accessed == 2 * 8 * 4
