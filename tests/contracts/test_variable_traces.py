"""Variables inside JAX transformations: never stale, right or a clear error."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from tests.contracts.strategies import STRATEGIES

SUM = rx.VariableAggregation.SUM
ON_READ = rx.VariableSynchronization.ON_READ


def discard(_):
    """Makes a lambda return None."""


def variable(strategy, value, **options):
    options.setdefault("aggregation", SUM)
    with strategy.scope():
        return rx.Variable(value, **options)


def local(strategy, value):
    return [np.asarray(part) for part in strategy.experimental_local_results(value)]


CELL: list = [None]  # what the module-level functions below read


@jax.jit
def jitted(x):
    return CELL[0] * x


def _scan_body(carry, _):
    return carry + CELL[0].read_value(), None


def scanned(x):
    return jax.lax.scan(_scan_body, x, None, length=2)[0]


def _branch(x):
    return CELL[0] + x


def conditional(x):
    return jax.lax.cond(x > 0, _branch, _branch, x)


checkpointed = jax.checkpoint(lambda x: CELL[0] * x)


def looped(x):
    return jax.lax.fori_loop(0, 2, lambda _, y: y + CELL[0].read_value(), x)


@jax.jit
def nested(x):
    return jitted(x) + 0


READERS = {
    "jit": (jitted, lambda v, x: v * x),
    "scan": (scanned, lambda v, x: x + 2 * v),
    "cond": (conditional, lambda v, x: v + x),
    "checkpoint": (checkpointed, lambda v, x: v * x),
    "while": (looped, lambda v, x: x + 2 * v),
    "jit in jit": (nested, lambda v, x: v * x),
}


# Every strategy with jit, every other transformation with two replicas.
CASES = [(name, "jit") for name in STRATEGIES]
CASES += [("mirrored_2", name) for name in READERS if name != "jit"]


@pytest.fixture(params=CASES, ids="-".join)
def case(request):
    """A strategy, a function that reads ``CELL[0]`` in a trace of its own, and what it gives."""
    strategy, reader = request.param
    yield STRATEGIES[strategy](), *READERS[reader]
    CELL[0] = None


def test_a_read_in_a_users_own_trace_is_refused_at_top_level(case):
    strategy, fn, expected = case
    CELL[0] = v = variable(strategy, 2.0, name="w")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"'w' is read inside jax\.jit.*as an argument.*fun"):
            fn(jnp.float32(3))
        with (
            strategy.scope(),
            pytest.raises(RuntimeError, match=r"'w' is read inside.*replicax\.function"),
        ):
            fn(jnp.float32(3))
    assert float(v) == 2
    assert float(rx.function(fn)(jnp.float32(3))) == expected(2, 3)


def test_a_write_in_a_users_own_trace_is_refused_at_top_level(strategy):
    v = variable(strategy, 2.0, name="w")
    for write in (v.assign, v.assign_add, v.assign_sub):
        with pytest.raises(RuntimeError, match=r"'w' was reached inside jax\.jit.*replicax\.func"):
            jax.jit(lambda x, write=write: discard(write(x)))(1.0)
    with pytest.raises(RuntimeError, match=r"'w' was reached inside"):
        jax.lax.scan(lambda c, _: (c, discard(v.assign_add(c))), 1.0, None, length=2)
    assert float(v) == 2


def test_an_eager_run_reads_right_after_writes_with_one_warning(case, request):
    strategy, fn, expected = case
    CELL[0] = v = variable(strategy, 2.0, name=request.node.name)  # a name is warned of once
    n = strategy.num_replicas_in_sync

    def step():
        before = fn(jnp.float32(3))
        v.assign_add(1.0)
        return before, fn(jnp.float32(3))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step_id in range(3):
            old = 2 + step_id * n
            for before, after in strategy.experimental_local_results(strategy.run(step)):
                np.testing.assert_allclose(before, expected(old, 3))
                np.testing.assert_allclose(after, expected(old + n, 3))
        v.assign(10.0)
        seen = strategy.run(lambda: fn(jnp.float32(3)))
        assert {float(x) for x in local(strategy, seen)} == {expected(10, 3)}
    mine = [w for w in caught if issubclass(w.category, rx.ReplicaxWarning)]
    assert len(mine) == 1
    assert "Put replicax.function around" in str(mine[0].message)


def test_local_copies_are_not_mixed_up_in_an_eager_run(many, request):
    name = request.node.name
    CELL[0] = v = variable(many, 0.0, synchronization=ON_READ, name=name)

    def step():
        v.assign_add(rx.get_replica_context().replica_id_in_sync_group + 1.0)
        return jitted(jnp.float32(10))

    with pytest.warns(rx.ReplicaxWarning, match="is read inside jax.jit"):
        first = many.run(step)
    second = many.run(step)
    n = many.num_replicas_in_sync
    np.testing.assert_allclose(local(many, first), [10.0 * (i + 1) for i in range(n)])
    np.testing.assert_allclose(local(many, second), [20.0 * (i + 1) for i in range(n)])
    CELL[0] = None


def test_a_compiled_run_is_never_stale(case, compiled):
    strategy, fn, expected = case
    CELL[0] = v = variable(strategy, 2.0)
    n = strategy.num_replicas_in_sync

    def step(x):
        before = fn(x)
        v.assign_add(1.0)
        return before, fn(x)

    def other(x):
        v.assign(v * 0 + 1.0)
        return fn(x)

    run, run_other = compiled.prepare(strategy, step), compiled.prepare(strategy, other)
    for step_id in range(3):
        old = 2 + step_id * n
        for before, after in strategy.experimental_local_results(run(jnp.float32(3))):
            np.testing.assert_allclose(before, expected(old, 3))
            np.testing.assert_allclose(after, expected(old + n, 3))
    for _ in range(2):
        seen = run_other(jnp.float32(3))
        np.testing.assert_allclose(local(strategy, seen), [expected(n, 3)] * n)
    for before, _ in strategy.experimental_local_results(run(jnp.float32(3))):
        np.testing.assert_allclose(before, expected(n, 3))


def test_two_variables_through_one_jitted_function(two, compiled):
    a, b = variable(two, 2.0), variable(two, 5.0)

    def step(x):
        CELL[0] = a
        first = jitted(x)
        CELL[0] = b
        return first, jax.jit(lambda x: CELL[0] * x)(x)

    first, second = compiled(two, step, (jnp.float32(3),))
    assert [float(x) for x in local(two, first)] == [6, 6]
    assert [float(x) for x in local(two, second)] == [15, 15]
    CELL[0] = None


# -- writes inside transformations of a compiled run ---------------------------------------------


def _scan(v, x):
    def body(carry, y):
        v.assign_add(y)
        return carry + v, v * 1

    total, seen = jax.lax.scan(body, jnp.float32(0), jnp.stack([x, 2 * x, 3 * x]))
    return total, seen[-1]


def _while(v, x):
    def body(state):
        v.assign_add(x)
        return state[0] + 1, state[1] + v

    return jax.lax.while_loop(lambda state: state[0] < 3, body, (0, jnp.float32(0)))[1]


def _cond(v, x):
    def yes(x):
        v.assign_add(x)
        return v * 2

    return jax.lax.cond(v > 0, yes, lambda x: x, x), jax.lax.cond(v < 0, yes, lambda x: x, x)


def _jit(v, x):
    @jax.jit
    def inner(x):
        v.assign_add(x)
        return v * 2

    return inner(x), inner(x)


def _grad(v, x):
    def loss(y):
        v.assign_add(x)
        return (y * y * v).sum()

    return jax.grad(loss)(x)


def _grad_of_scan(v, x):
    def body(carry, _):
        v.assign_add(x)
        return carry * 2, None

    return jax.grad(lambda y: jax.lax.scan(body, y, None, length=3)[0])(x)


# name: (fn, what it writes to v given n replicas and x, what it returns), v starts at 1
WRITERS = {
    "scan": (_scan, lambda v, d: (v + 6 * d, (3 * v + 10 * d, v + 6 * d))),
    "while": (_while, lambda v, d: (v + 3 * d, 3 * v + 6 * d)),
    "cond": (_cond, lambda v, d: (v + d, (2 * (v + d), None))),
    "jit": (_jit, lambda v, d: (v + 2 * d, (2 * (v + d), 2 * (v + 2 * d)))),
    "grad": (_grad, lambda v, d: (v + d, None)),
    "grad of scan": (_grad_of_scan, lambda v, d: (v + 3 * d, 8.0)),
}


WRITE_CASES = [(name, "scan") for name in STRATEGIES]
WRITE_CASES += [("mirrored_2", name) for name in WRITERS if name != "scan"]


@pytest.mark.parametrize("case", WRITE_CASES, ids="-".join)
def test_writes_inside_transformations_of_a_compiled_run(compiled, case):
    strategy, name = STRATEGIES[case[0]](), case[1]
    fn, model = WRITERS[name]
    v = variable(strategy, 1.0)
    run = compiled.prepare(strategy, lambda x: fn(v, x))
    n = strategy.num_replicas_in_sync
    value = 1.0
    for _ in range(2):
        result = run(jnp.float32(2))
        value, expected = model(value, 2.0 * n)
        np.testing.assert_allclose(v.numpy(), value)
        if name == "grad":
            expected = 2 * 2 * value
        for part in strategy.experimental_local_results(result):
            for got, want in zip(jax.tree.leaves(part), np.atleast_1d(expected), strict=False):
                if want is not None:
                    np.testing.assert_allclose(got, want)


@pytest.mark.parametrize("name", ["scan", "while", "cond", "jit", "grad", "grad of scan"])
def test_local_writes_inside_transformations_of_a_compiled_run(two, compiled, name):
    fn, model = WRITERS[name]
    v = variable(two, 1.0, synchronization=ON_READ)

    def step(x):
        return fn(v, x * (rx.get_replica_context().replica_id_in_sync_group + 1))

    compiled(two, step, (jnp.float32(2),))
    np.testing.assert_allclose(local(two, v), [model(1.0, 2.0)[0], model(1.0, 4.0)[0]])


def test_an_aggregated_write_inside_scan_needs_function_in_an_eager_run(strategy):
    v = variable(strategy, 1.0, name="w")
    if strategy is rx.get_strategy():
        match = r"'w'.*inside jax\.jit"
    else:
        match = r"assign_add of variable 'w' was reached inside.*replicax\.function"
    for fn in (_scan, _while, _jit):
        with pytest.raises(RuntimeError, match=match):
            strategy.run(lambda fn=fn: discard(fn(v, jnp.float32(1))))
    assert float(v) == 1


def test_cross_replica_writes_inside_transformations_of_a_function(strategy):
    for fn, model in (_scan, WRITERS["scan"][1]), (_jit, WRITERS["jit"][1]):
        v = variable(strategy, 1.0)
        step = rx.function(lambda x, fn=fn, v=v: fn(v, x))
        step(jnp.float32(2))
        step(jnp.float32(2))
        np.testing.assert_allclose(v.numpy(), model(model(1.0, 2.0)[0], 2.0)[0])


@pytest.mark.parametrize("differentiate", [True, False])
def test_a_write_inside_checkpoint_is_refused(strategy, compiled, differentiate):
    v = variable(strategy, 1.0, name="w")

    @jax.checkpoint
    def block(x):
        v.assign_add(1.0)
        return jnp.sin(x) * 2

    step = jax.grad(block) if differentiate else block
    match = (
        r"test_variable_traces\.py:\d+ assigns a variable inside jax\.checkpoint.*Move the assign"
    )
    with pytest.raises(ValueError, match=match):
        compiled(strategy, lambda x: step(x), (jnp.float32(1),))
    with pytest.raises(ValueError, match=match):
        rx.function(lambda x: step(x))(jnp.float32(1))
    assert float(v) == 1


def test_a_read_inside_checkpoint_under_grad_is_right(strategy, compiled):
    v = variable(strategy, 2.0)

    @jax.checkpoint
    def block(x):
        return jnp.sin(x * v)

    def step(x):
        gradient = jax.grad(block)(x)
        v.assign_add(1.0)
        return gradient, jax.grad(block)(x)

    n = strategy.num_replicas_in_sync
    result = compiled(strategy, step, (jnp.float32(1),))
    for before, after in strategy.experimental_local_results(result):
        np.testing.assert_allclose(before, 2 * np.cos(2.0), rtol=1e-5)
        np.testing.assert_allclose(after, (2 + n) * np.cos(2.0 + n), rtol=1e-4)


def test_a_write_inside_vmap_is_refused(strategy, execute):
    v = variable(strategy, 1.0, name="w")

    def step():
        def one(x):
            v.assign(x)
            return x

        return jax.vmap(one)(jnp.arange(3.0))

    error = ValueError if execute.is_compiled else RuntimeError
    with pytest.raises(error, match=r"'w' is assigned inside jax\.vmap.*Return the values"):
        execute(strategy, step)
    assert float(v) == 1


def test_a_local_write_inside_vmap_is_refused(two, execute):
    v = variable(two, 1.0, synchronization=ON_READ, name="w")
    error = ValueError if execute.is_compiled else RuntimeError
    with pytest.raises(error, match=r"'w' is assigned inside jax\.vmap"):
        execute(two, lambda: jax.vmap(lambda x: discard(v.assign(x)))(jnp.arange(3.0)))
    assert float(v) == 2


def test_a_write_inside_vmap_is_refused_at_top_level(strategy):
    v = variable(strategy, 1.0, name="w")
    with pytest.raises(RuntimeError, match=r"'w' is assigned inside jax\.vmap"):
        jax.vmap(lambda x: discard(v.assign(x)))(jnp.arange(3.0))
    assert float(v) == 1


def test_a_read_inside_vmap_is_right(strategy, execute):
    v = variable(strategy, 2.0)
    seen = execute(strategy, lambda: jax.vmap(lambda x: x * v)(jnp.arange(3.0)))
    for value in strategy.experimental_local_results(seen):
        np.testing.assert_allclose(value, [0, 2, 4])


def test_a_run_inside_scan_and_cond_at_cross_replica_level(many):
    v = variable(many, 0.0)

    def step(x):
        v.assign_add(x)
        return v + 0

    @rx.function
    def whole(x):
        def body(carry, _):
            many.run(step, (x,))
            return carry + v, None

        total = jax.lax.scan(body, jnp.float32(0), None, length=3)[0]
        jax.lax.cond(total > 0, lambda: discard(many.run(step, (x,))), lambda: None)
        return total, v + 0

    n = many.num_replicas_in_sync
    total, last = whole(jnp.float32(1))
    assert (float(total), float(last)) == (6 * n, 4 * n)
    total, last = whole(jnp.float32(1))
    assert (float(total), float(last)) == (12 * n + 6 * n, 8 * n)
