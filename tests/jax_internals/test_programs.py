"""The private JAX APIs that read and change programs."""

import inspect

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from replicax.jax_internals.primitives import differentiate_as_identity, lower_as_identity
from replicax.jax_internals.programs import (
    TransposedProduct,
    call_jaxpr,
    eval_jaxpr,
    is_backward,
    is_ref,
    open_jaxpr,
    origin_of,
    scan_counts,
    shaped_array,
    sub_jaxprs,
    transposed_product,
    user_line,
)
from replicax.jax_internals.traces import is_about_writes


def test_eval_jaxpr_evaluates_with_constants_and_in_a_trace():
    constant = jnp.arange(3.0)
    closed = jax.make_jaxpr(lambda x: (x * constant, x + 1))(2.0)
    outs = eval_jaxpr(closed.jaxpr, closed.consts, 3.0)
    np.testing.assert_array_equal(outs[0], [0, 3, 6])
    outs = jax.jit(lambda x: eval_jaxpr(closed.jaxpr, closed.consts, x))(4.0)
    assert float(outs[1]) == 5.0


def test_eval_jaxpr_records_equations_in_a_trace_as_they_are():
    def fn(x, y):
        ref = jax.new_ref(y)  # what has effects is called
        ref[...] = ref[...] + jnp.sin(x)
        total, _ = lax.scan(lambda carry, row: (carry + row, row), 0.0, x)
        return ref[...], total, 2.0

    arrays = jnp.arange(3.0), jnp.ones(3)
    closed = jax.make_jaxpr(fn)(*arrays)
    evaluate = lambda *args: eval_jaxpr(closed.jaxpr, closed.consts, *args)  # noqa: E731
    again = jax.make_jaxpr(evaluate)(*arrays)
    assert [e.primitive for e in again.eqns] == [e.primitive for e in closed.eqns]
    assert [user_line(e) for e in again.eqns] == [user_line(e) for e in closed.eqns]
    assert again.out_avals == closed.out_avals
    for found, expected in zip(jax.jit(evaluate)(*arrays), jax.jit(fn)(*arrays), strict=True):
        np.testing.assert_array_equal(found, expected)
    gradient = jax.jit(jax.grad(lambda x: evaluate(x, arrays[1])[1]))(arrays[0])
    np.testing.assert_array_equal(gradient, np.ones(3))


def test_call_jaxpr_is_one_equation_that_can_be_differentiated_and_mapped():
    closed = jax.make_jaxpr(lambda x, y: (jnp.sin(x) * y, x))(1.0, 2.0)

    def fn(x):
        return call_jaxpr(closed.jaxpr, [x, jnp.float32(3.0)], "named")

    (eqn,) = jax.make_jaxpr(fn)(1.0).eqns
    assert (eqn.primitive.name, eqn.params["name"]) == ("jit", "named")
    np.testing.assert_allclose(jax.jit(fn)(0.5), [3 * np.sin(0.5), 0.5], rtol=1e-6)
    derivative = jax.jit(jax.vmap(jax.grad(lambda x: fn(x)[0])))(jnp.arange(2.0))
    np.testing.assert_allclose(derivative, 3 * np.cos([0, 1]), rtol=1e-6)


def loop(start, rows, factor):
    def body(carry, row):
        return jnp.sin(carry * factor) + row, carry

    return lax.scan(body, start, rows)


def test_scan_counts_tell_what_stays_from_what_is_carried_and_from_rows():
    arrays = jnp.ones(2), jnp.ones((5, 2)), jnp.float32(3)
    total = lambda *args: loop(*args)[0].sum()  # noqa: E731
    (eqn,) = jax.make_jaxpr(loop)(*arrays).eqns
    assert scan_counts(eqn) == (1, 1)
    gradient = jax.make_jaxpr(jax.grad(total, argnums=(0, 1, 2)))(*arrays)
    scans = [eqn for eqn in gradient.eqns if eqn.primitive is lax.scan_p]
    assert len(scans) == 2
    for eqn in scans:
        num_whole = sum(scan_counts(eqn))
        whole, rows = eqn.invars[:num_whole], eqn.invars[num_whole:]
        shapes = [v.aval.shape for v in whole] + [v.aval.shape[1:] for v in rows]
        assert [v.aval.shape for v in open_jaxpr(eqn.params["jaxpr"]).invars] == shapes
        num_carry = scan_counts(eqn)[1]
        assert all(v.aval.shape[:1] == (5,) for v in eqn.outvars[num_carry:])


def test_shaped_array_has_a_strong_type():
    aval = shaped_array([2, 3], jnp.bfloat16)
    assert (aval.shape, aval.dtype, aval.weak_type) == ((2, 3), jnp.bfloat16, False)


def test_is_ref_tells_refs_from_values():
    def fn(x):
        ref = jax.new_ref(x)
        ref[...] = x + 1
        return ref[...]

    jaxpr = jax.make_jaxpr(fn)(1.0).jaxpr
    kinds = {atom for eqn in jaxpr.eqns for atom in eqn.outvars if is_ref(atom)}
    assert len(kinds) == 1
    assert not is_ref(jaxpr.invars[0])


def test_open_jaxpr_and_sub_jaxprs_find_every_inner_program():
    def fn(x):
        y = lax.cond(x > 0, lambda: x, lambda: -x)
        y = lax.while_loop(lambda c: c < 3, lambda c: c + 1, y)
        y = lax.scan(lambda c, _: (c * 2, None), y, None, length=2)[0]
        return jax.jit(lambda y: y + 1)(y)

    closed = jax.make_jaxpr(fn)(1.0)
    assert open_jaxpr(closed) is closed.jaxpr
    assert open_jaxpr(closed.jaxpr) is closed.jaxpr
    counts = {}
    for eqn in closed.jaxpr.eqns:
        inner = list(sub_jaxprs(eqn.params))
        assert all(hasattr(jaxpr, "eqns") for jaxpr in inner)
        if inner:
            counts[eqn.primitive.name] = len(inner)
    assert counts == {"cond": 2, "while": 2, "scan": 1, "jit": 1}


def test_an_error_of_jax_about_writes_is_recognised():
    def branch(ref):
        return lambda x: (ref.__setitem__(..., x), x)[1]

    def loop(x):
        ref = jax.new_ref(jnp.float32(0.0))
        body = lambda x, _: (lax.cond(x > 0, branch(ref), lambda x: x * 0.5, x), None)  # noqa: E731
        return lax.scan(body, x, None, length=2)[0]

    with pytest.raises(NotImplementedError, match="effect") as caught:
        jax.jit(jax.grad(loop))(1.0)
    assert is_about_writes(caught.value)
    assert not is_about_writes(NotImplementedError("something else"))


def this_line():
    return inspect.currentframe().f_back.f_lineno


def test_user_line_is_the_line_that_made_the_equation():
    def fn(x):
        fn.line = this_line() + 1
        return jnp.sin(x)

    (eqn,) = jax.make_jaxpr(fn)(1.0).eqns
    assert user_line(eqn) == f"{__file__}:{fn.line}"


def test_origin_of_gives_new_equations_the_line_of_an_old_one():
    def fn(x):
        with jax.named_scope("layer"):
            return jnp.sin(x)

    (eqn,) = jax.make_jaxpr(fn)(1.0).eqns

    def replay(x):
        with origin_of(eqn):
            return jnp.cos(x)

    (new,) = jax.make_jaxpr(replay)(1.0).eqns
    assert user_line(new) == user_line(eqn)
    assert "layer" in str(new.source_info.name_stack)


def test_a_primitive_that_lowers_as_identity_compiles_to_nothing_and_is_looked_through_by_vmap():
    marker_p = jex.Primitive("test_marker")
    marker_p.def_abstract_eval(lambda value, *, label: value)
    lower_as_identity(marker_p)
    differentiate_as_identity(marker_p)

    def marked(x):
        return marker_p.bind(x, label="here") + 1.0

    x = jnp.arange(3.0)
    np.testing.assert_array_equal(jax.jit(marked)(x), x + 1.0)
    np.testing.assert_array_equal(jax.jit(jax.vmap(marked))(x), x + 1.0)
    assert "marker" not in jax.jit(marked).lower(x).compile().as_text()
    assert jax.jit(jax.grad(lambda x: 3.0 * marked(x)))(2.0) == 3.0


def test_a_transposed_product_is_recognised_in_the_innermost_trace_only():
    seen = []

    def fn(x, y):
        product = jnp.einsum("abi,abj->ij", x, y)
        seen.append(transposed_product(product.T))
        seen.append(transposed_product(product))
        seen.append(transposed_product((product + 1.0).T))
        outer = product.T
        jax.jit(lambda z: (seen.append(transposed_product(outer)), z)[1])(x)
        return seen[0].product

    x, y = jnp.ones((2, 3, 4)), jnp.ones((2, 3, 5))
    result = jax.jit(fn)(x, y)
    assert isinstance(seen[0], TransposedProduct)
    assert (seen[0].permutation, sorted(seen[0].contracted)) == ((1, 0), [2, 3])
    assert seen[1:] == [None, None, None]
    np.testing.assert_array_equal(result, np.full(result.shape, 6.0))
    assert transposed_product(jnp.ones((2, 3)).T) is None


def test_the_equations_of_the_backward_pass_are_told_apart():
    jaxpr = jax.make_jaxpr(jax.grad(lambda x: jnp.sin(x) ** 3))(1.0)
    assert {is_backward(eqn) for eqn in jaxpr.eqns} == {False, True}
    forward = jax.make_jaxpr(lambda x: jnp.sin(x) ** 3)(1.0)
    assert not any(map(is_backward, forward.eqns))
