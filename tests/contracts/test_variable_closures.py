"""Variables that JAX code closes over: checkpoints, custom rules, solvers, mapped code."""

import jax
import jax.numpy as jnp
import jax.scipy.sparse.linalg as solvers
import numpy as np
import pytest
from jax import lax
from jax.experimental.ode import odeint

import replicax as rx

MEAN = rx.VariableAggregation.MEAN


def variable(strategy, value, **options):
    with strategy.scope():
        return rx.Variable(value, aggregation=MEAN, **options)


def parts(strategy, result):
    return strategy.experimental_local_results(result)


# -- checkpoints -------------------------------------------------------------------------------

BLOCKS = {
    "checkpoint": jax.checkpoint,
    "everything saved": lambda fn: jax.checkpoint(
        fn, policy=jax.checkpoint_policies.everything_saveable
    ),
    "checkpoint of jit": lambda fn: jax.checkpoint(jax.jit(fn)),
    "jit of checkpoint": lambda fn: jax.jit(jax.checkpoint(fn)),
    "scan of checkpoint": lambda fn: (
        lambda x: lax.scan(lambda c, _: (jax.checkpoint(fn)(c), None), x, None, length=1)[0]
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.filterwarnings("ignore:variable .* is read inside")
def test_a_gradient_through_a_checkpoint_is_that_of_the_values_it_read(strategy, execute, name):
    w, u = variable(strategy, 2.0), variable(strategy, 3.0)

    def step():
        block = BLOCKS[name](lambda x: x * w.value * u.value)

        def loss():
            y = block(jnp.float32(1))
            u.assign(100.0)
            return y

        gradient = rx.grad(loss, w)
        _, pullback = jax.vjp(block, jnp.float32(1))
        u.assign(3.0)
        return gradient, pullback(jnp.float32(1))[0]

    for gradient, pulled in parts(strategy, execute(strategy, step)):
        assert float(gradient) == 3.0
        assert float(pulled) == 200.0
    assert float(u.numpy()) == 3.0


# -- code that closes over what it reads ----------------------------------------------------------


def with_jvp(u):
    fn = jax.custom_jvp(lambda x: x * u.value)
    fn.defjvp(lambda p, t: (p[0] * u.value, t[0] * u.value))
    return fn


def with_vjp(u):
    fn = jax.custom_vjp(lambda x: x * u.value)
    fn.defvjp(lambda x: (x * u.value, u.value), lambda residual, g: (g * residual,))
    return fn


def with_gradient(u):
    def fn(x):
        value = u.value
        return x * value, lambda g: g * value

    return jax.custom_gradient(fn)


def root(u):
    return lambda x: lax.custom_root(
        lambda y: y / u.value - x, x, lambda f, y: y - f(y) * u.value, lambda g, y: y / g(1.0)
    )


READERS = {
    "custom_jvp": with_jvp,
    "custom_vjp": with_vjp,
    "custom_gradient": with_gradient,
    "custom_root": root,
    "custom_linear_solve": lambda u: (
        lambda x: lax.custom_linear_solve(
            lambda y: y / u.value, x, lambda _, b: b * u.value, symmetric=True
        )
    ),
    "cg": lambda u: lambda x: solvers.cg(lambda y: y / u.value, x)[0],
    "gmres": lambda u: lambda x: solvers.gmres(lambda y: y / u.value, x[None])[0][0],
    "vmap of cond": lambda u: (
        lambda x: jax.vmap(lambda x: lax.cond(x > 0, lambda: x * u.value, lambda: x))(x[None])[0]
    ),
    "vmap of while": lambda u: (
        lambda x: jax.vmap(
            lambda x: lax.while_loop(
                lambda s: s[0] < u.value, lambda s: (s[0] + 1, s[1] + x), (0.0, 0.0 * x)
            )[1]
        )(x[None])[0]
    ),
    "jit": lambda u: jax.jit(lambda x: x * u.value),
    "associative_scan": lambda u: (
        lambda x: lax.associative_scan(
            lambda a, b: a * b * u.value, jnp.stack([x, jnp.ones_like(x)])
        )[-1]
    ),
    "fori with a bound that is read": lambda u: (
        lambda x: lax.fori_loop(0, u.value.astype(int), lambda _, c: c + x, 0.0 * x)
    ),
}
FORWARD_ONLY = ("vmap of while", "fori with a bound that is read")


@pytest.mark.parametrize("name", READERS)
def test_code_that_closes_over_a_variable_reads_it(two, compiled, name):
    strategy = two
    u = variable(strategy, 3.0)

    def step(x):
        fn = READERS[name](u)
        before = fn(x)
        derivative = jax.jvp if name in FORWARD_ONLY else jax.vjp
        if derivative is jax.jvp:
            gradient = jax.jvp(fn, (x,), (jnp.ones_like(x),))[1]
            u.assign_add(1.0)
        else:
            _, pullback = jax.vjp(fn, x)
            u.assign_add(1.0)
            (gradient,) = pullback(jnp.ones_like(x))
        return before, gradient, fn(x), jax.checkpoint(fn)(x)

    result = compiled(strategy, step, (jnp.float32(2),))
    for values in parts(strategy, result):
        np.testing.assert_allclose(values, (6.0, 3.0, 8.0, 8.0), rtol=1e-5)


def test_the_gradient_of_an_equation_reads_its_variable(two, compiled):
    strategy = two
    rate = variable(strategy, 3.0)

    def step(y):
        final = lambda y: odeint(lambda y, _: -y * rate.value, y, jnp.linspace(0.0, 1.0, 3))[-1]  # noqa: E731
        return jax.grad(final)(y)

    for gradient in parts(strategy, compiled(strategy, step, (jnp.float32(1),))):
        np.testing.assert_allclose(gradient, np.exp(-3.0), rtol=1e-4)


@pytest.mark.parametrize("around", ["jit", "scan", "cond"])
def test_a_rule_that_reads_inside_jit_scan_or_cond_is_refused_by_name(two, compiled, around):
    strategy = two
    u = variable(strategy, 3.0, name="scale")

    def step(x):
        fn = jax.custom_vjp(lambda x: x * u.value)
        fn.defvjp(lambda x: (x * u.value, None), lambda _, g: (g * u.value,))
        wrapped = {
            "jit": jax.jit(fn),
            "scan": lambda x: lax.scan(lambda c, _: (fn(c), None), x, None, length=2)[0],
            "cond": lambda x: lax.cond(x > 0, fn, jnp.sin, x),
        }[around]
        return jax.grad(wrapped)(x)

    match = (
        r"variable 'scale' is read in a rule of jax\.custom_jvp .* Pass the value to the function"
    )
    with pytest.raises(ValueError, match=match):
        compiled(strategy, step, (jnp.float32(1),))


@pytest.mark.parametrize("is_argument_differentiated", [True, False])
def test_a_gradient_by_a_variable_that_a_custom_rule_reads_is_refused(
    two, execute, is_argument_differentiated
):
    u = variable(two, 3.0, name="scale")

    def step():
        x = lambda: u.value if is_argument_differentiated else jnp.float32(2)  # noqa: E731
        return rx.grad(lambda: with_jvp(u)(x()), u)

    with pytest.raises(ValueError, match=r"variable 'scale' is differentiated, and read inside"):
        execute(two, step)


ASSIGNING = {
    "scan": lambda fn: lax.scan(lambda c, _: (c + fn(), None), 0.0, None, length=2)[0],
    "cond": lambda fn: lax.cond(jnp.float32(1) > 0, fn, lambda: 0.0),
    "while": lambda fn: lax.while_loop(lambda c: c < 1, lambda c: c + fn(), 0.0),
}


@pytest.mark.parametrize("name", ASSIGNING)
def test_a_gradient_by_a_variable_that_a_loop_or_branch_assigns_is_refused(two, compiled, name):
    u, v = variable(two, 3.0, name="weight"), variable(two, 2.0)

    def assign(chosen):
        y = u.value * v.value
        chosen.assign(5.0)
        return y

    def gradient(chosen):
        return rx.grad(lambda: ASSIGNING[name](lambda: assign(chosen)) * u.value, u)

    with pytest.raises(ValueError, match=r"'weight' is differentiated, and assigned inside a loop"):
        compiled(two, lambda: gradient(u))
    if name == "cond":
        for part in parts(two, compiled(two, lambda: gradient(v))):
            assert float(part) == 12.0


def test_a_while_loop_whose_predicate_waits_for_an_assign_of_its_body_is_refused(
    strategy, compiled
):
    u = variable(strategy, 0.0)

    def step():
        return lax.while_loop(lambda c: u.value < 3, lambda c: (u.assign_add(1.0), c + 1)[1], 0)

    with pytest.raises(ValueError, match=r"predicate and the body of the while loop at .* assigns"):
        compiled(strategy, step)


# -- components of different shape -------------------------------------------------------------


def with_own_derivative(fn):
    made = jax.custom_jvp(fn)
    made.defjvp(lambda primals, tangents: jax.jvp(fn, primals, tangents))
    return made


INNER = {
    "jit": jax.jit,
    "scan": lambda fn: lambda x: lax.scan(lambda c, _: (c + fn(x), None), 0.0, None, length=1)[0],
    "scan over the rows": lambda fn: (
        lambda x: lax.scan(lambda c, row: (c + fn(row[None]), None), 0.0, x)[0]
    ),
    "cond": lambda fn: lambda x: lax.cond(x.sum() > -1, fn, lambda x: 0.0, x),
    "checkpoint": jax.checkpoint,
    "gradient of checkpoint": lambda fn: lambda x: (jax.grad(jax.checkpoint(fn))(x) * x).sum(),
    "fori": lambda fn: lambda x: lax.fori_loop(0, 1, lambda _, c: c + fn(x), 0.0),
    "while": lambda fn: (
        lambda x: lax.while_loop(lambda s: s[0] < 1, lambda s: (s[0] + 1, s[1] + fn(x)), (0, 0.0))[
            1
        ]
    ),
    "custom_jvp": lambda fn: with_own_derivative(fn),
}
WRITABLE = ("jit", "scan", "fori", "while")


def uneven(two):
    """Batches for two replicas, each with the sums of its components."""
    for size, sums in (4, (3, 7)), (3, (3, 3)), (1, (1, 0)):
        yield two.distribute_batch(np.arange(1, 1 + size, dtype=np.float32)), sums


@pytest.mark.parametrize("name", INNER)
def test_a_variable_read_inside_may_get_a_new_value_with_an_uneven_batch(two, compiled, name):
    n = variable(two, 2.0)

    def step(x):
        y = INNER[name](lambda x: x.sum() * n.value)(x)
        n.assign_add(1.0)
        return y

    run = compiled.prepare(two, step)
    for value, (batch, sums) in enumerate(uneven(two), start=2):
        assert [float(y) for y in parts(two, run(batch))] == [value * total for total in sums]
    assert float(n.numpy()) == 5.0


@pytest.mark.parametrize("name", WRITABLE)
def test_a_variable_may_be_written_inside_with_an_uneven_batch(two, compiled, name):
    n, m = variable(two, 2.0), variable(two, 0.0)

    def step(x):
        def count(x):
            y = x.sum() * n.value
            n.assign_add(1.0)
            m.assign(n.value * 2)
            return y

        return INNER[name](count)(x)

    run = compiled.prepare(two, step)
    for value, (batch, sums) in enumerate(uneven(two), start=2):
        assert [float(y) for y in parts(two, run(batch))] == [value * total for total in sums]
        assert float(m.numpy()) == 2 * value + 2


@pytest.mark.parametrize("name", INNER)
@pytest.mark.filterwarnings("ignore:Python branches on the replica id")
def test_a_variable_read_inside_may_get_a_new_value_where_python_branches(two, compiled, name):
    n = variable(two, 2.0)

    def step(x):
        first = rx.get_replica_context().replica_id_in_sync_group == 0
        y = INNER[name](lambda x: x.sum() * n.value * (10 if first else 1))(x)
        n.assign_add(1.0)
        return y

    run = compiled.prepare(two, step)
    for value, (batch, sums) in enumerate(uneven(two), start=2):
        expected = [value * sums[0] * 10, value * sums[1]]
        assert [float(y) for y in parts(two, run(batch))] == expected
    assert float(n.numpy()) == 5.0


@pytest.mark.parametrize("name", ["jit", "scan", "while"])
def test_a_predicate_read_from_such_a_variable_may_decide_about_a_collective(two, compiled, name):
    n = variable(two, 0.0)

    def step(x):
        y = INNER[name](lambda x: x.sum() * n.value)(x)
        n.assign_add(1.0)
        total = lambda: rx.get_replica_context().all_reduce("sum", x.sum())  # noqa: E731
        return y, lax.cond(n.value > 1, total, lambda: 0.0)

    run = compiled.prepare(two, step)
    for value, (batch, sums) in enumerate(uneven(two), start=1):
        expected = sum(sums) if value > 1 else 0.0
        assert [float(part[1]) for part in parts(two, run(batch))] == [expected] * 2
        assert float(n.numpy()) == value
