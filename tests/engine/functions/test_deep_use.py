"""Runs, reductions, assignments and JAX's own transformations, all in one function."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import replicax as rx

SUM = rx.VariableAggregation.SUM
MEAN = rx.VariableAggregation.MEAN
ON_READ = rx.VariableSynchronization.ON_READ


@pytest.fixture(params=[1, 2, 3])
def strategy(request):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(request.param)])


@pytest.fixture
def two():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


def variable_in(strategy, value=0.0, **options):
    with strategy.scope():
        return rx.Variable(value, **{"aggregation": SUM, **options})


def ids(strategy):
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: np.float32(ctx.replica_id_in_sync_group)
    )


def local(strategy, value):
    return [float(x) for x in strategy.experimental_local_results(value)]


# -- runs and cross-replica code in one program ------------------------------------------------


def test_several_runs_with_cross_replica_code_between_them(strategy):
    count = strategy.num_replicas_in_sync
    total = variable_in(strategy, 1.0)
    seen = variable_in(strategy, 0.0, synchronization=ON_READ)

    def count_and_scale(x):
        seen.assign_add(1.0)
        return (x + 1.0) * total

    @rx.function
    def step(x):
        first = strategy.run(count_and_scale, args=(x,))
        total.assign_add(strategy.reduce("SUM", first, axis=None))
        in_the_middle = seen.read_value()
        second = strategy.run(count_and_scale, args=(first,))
        total.assign(total * 2.0 + in_the_middle)
        return first, second, strategy.reduce("MEAN", second, axis=None), seen.read_value()

    total_now = 1.0
    for call in (1, 2):
        first, second, mean, last_seen = step(ids(strategy))
        expected = [(i + 1.0) * total_now for i in range(count)]
        assert local(strategy, first) == expected
        total_now += sum(expected)
        expected = [(x + 1.0) * total_now for x in expected]
        assert local(strategy, second) == expected
        assert float(mean) == pytest.approx(np.mean(expected))
        total_now = total_now * 2.0 + (2 * call - 1) * count
        assert float(total) == total_now
        assert float(last_seen) == 2 * call * count
        assert float(seen) == 2 * call * count
    assert step.trace_count == 1


@pytest.mark.parametrize("loop", ["scan", "while_loop", "fori_loop"])
def test_a_run_inside_a_loop_at_cross_replica_level(strategy, loop):
    count = strategy.num_replicas_in_sync
    total = variable_in(strategy)
    own = variable_in(strategy, synchronization=ON_READ)

    def replica_fn(x):
        own.assign_add(x)
        total.assign_add(x)
        return rx.get_replica_context().all_reduce("SUM", x) + total * 0.0

    def body(carry):
        result = strategy.run(replica_fn, args=(carry,))
        return strategy.reduce("MEAN", result, axis=None)

    @rx.function
    def step(x):
        if loop == "scan":
            return lax.scan(lambda c, _: (body(c), None), x, None, length=3)[0]
        if loop == "fori_loop":
            return lax.fori_loop(0, 3, lambda _, c: body(c), x)
        return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, body(s[1])), (0, x))[1]

    for call in (1, 2):
        assert float(step(jnp.ones(()))) == count**3
        expected = call * sum(count * count**i for i in range(3))
        assert float(total) == expected
        assert float(own) == expected
    assert step.trace_count == 1


def test_a_run_inside_cond_at_cross_replica_level(strategy):
    count = strategy.num_replicas_in_sync
    total = variable_in(strategy)

    def add(x):
        total.assign_add(x)
        return x * 2.0

    @rx.function
    def step(flag, x):
        return lax.cond(
            flag,
            lambda x: strategy.reduce("SUM", strategy.run(add, args=(x,)), axis=None),
            lambda x: x * 100.0,
            x,
        )

    assert float(step(jnp.asarray(True), jnp.ones(()))) == 2.0 * count
    assert float(total) == count
    assert float(step(jnp.asarray(False), jnp.ones(()))) == 100.0
    assert float(total) == count
    assert step.trace_count == 1


def test_reduce_and_assign_inside_a_scan_at_cross_replica_level(strategy):
    count = strategy.num_replicas_in_sync
    total = variable_in(strategy, 1.0)

    @rx.function
    def step(x):
        def body(carry, scale):
            result = strategy.run(lambda x: x * scale * total, args=(x,))
            total.assign_add(strategy.reduce("SUM", result, axis=None))
            return carry + total.value, total.value

        return lax.scan(body, 0.0, jnp.asarray([1.0, 2.0]))

    last, history = step(jnp.ones(()))
    first = 1.0 + count
    second = first + 2.0 * first * count
    np.testing.assert_allclose(history, [first, second])
    assert float(last) == first + second
    assert float(total) == second


def test_functions_three_deep(strategy):
    count = strategy.num_replicas_in_sync
    total = variable_in(strategy)

    @rx.function
    def innermost(x):
        total.assign_add(x)
        return total * 1.0

    @rx.function
    def replica_fn(x):
        return innermost(x) + innermost(x)

    @rx.function
    def middle(x):
        return strategy.run(replica_fn, args=(x,))

    @rx.function
    def outer(x):
        return middle(x), middle(x * 0.0)

    first, second = outer(1.0)
    assert local(strategy, first) == [count + 2.0 * count] * count
    assert local(strategy, second) == [4.0 * count] * count
    assert float(total) == 2.0 * count
    assert outer.trace_count == 1
    assert [f.trace_count for f in (middle, replica_fn, innermost)] == [0, 0, 0]


def test_a_replica_function_may_capture_values_of_the_outer_trace(strategy):
    count = strategy.num_replicas_in_sync

    @rx.function
    def step(x, per_replica):
        scale = jnp.sin(x)
        middle = strategy.reduce("SUM", per_replica, axis=None)
        result = strategy.run(lambda y: y + scale * 2.0 + middle, args=(per_replica,))
        unchanged = strategy.run(lambda: scale)
        return result, unchanged

    result, unchanged = step(1.0, ids(strategy))
    total = count * (count - 1) / 2
    expected = [i + np.sin(1.0) * 2.0 + total for i in range(count)]
    np.testing.assert_allclose(local(strategy, result), expected, rtol=1e-6)
    assert float(unchanged) == pytest.approx(np.sin(1.0))


def test_the_result_of_one_run_is_the_argument_of_the_next(strategy):
    @rx.function
    def step(x):
        for _ in range(3):
            x = strategy.run(lambda x: {"a": x["a"] + 1.0, "b": (x["b"][0] * 2.0,)}, args=(x,))
        return x

    result = step({"a": ids(strategy), "b": (ids(strategy),)})
    count = strategy.num_replicas_in_sync
    assert local(strategy, result["a"]) == [i + 3.0 for i in range(count)]
    assert local(strategy, result["b"][0]) == [i * 8.0 for i in range(count)]


def test_uneven_components_pass_through_several_runs(two):
    total = variable_in(two)

    @rx.function
    def step(x):
        y = two.run(lambda x: x * 2.0, args=(x,))
        sums = two.run(lambda y: total.assign_add(y.sum()) + y.max(), args=(y,))
        return y, sums, two.gather(y, axis=0), two.reduce("MEAN", y, axis=0)

    batch = two.distribute_batch(np.arange(5, dtype=np.float32))
    y, sums, gathered, mean = step(batch)
    assert [x.shape for x in two.experimental_local_results(y)] == [(3,), (2,)]
    assert local(two, sums) == [20.0 + 4.0, 20.0 + 8.0]
    np.testing.assert_array_equal(gathered, [0, 2, 4, 6, 8])
    assert float(mean) == 4.0


# -- devices -----------------------------------------------------------------------------------


def test_two_strategies_in_one_function_are_refused_with_their_devices(two):
    other = rx.MirroredStrategy(["CPU:2", "CPU:3", "CPU:4"])

    @rx.function
    def step():
        return two.run(lambda: 1.0 * jnp.ones(())), other.run(lambda: jnp.ones(()))

    with pytest.raises(ValueError, match=r"different devices: .*id=0.*id=3.*Use one strategy in"):
        step()


def test_variables_of_two_strategies_in_one_function_are_refused(two):
    other = rx.MirroredStrategy(["CPU:2", "CPU:3"])
    a, b = variable_in(two), variable_in(other)
    step = rx.function(lambda: a + b)
    with pytest.raises(ValueError, match="variables or runs of strategies on different devices"):
        step()
    assert float(rx.function(lambda: a + 1.0)()) == 1.0


def test_two_strategies_on_the_same_devices_may_meet_in_one_function(two):
    same = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    a, b = variable_in(two, 1.0), variable_in(same, 2.0)
    assert float(rx.function(lambda: a + b)()) == 3.0


def test_plain_variables_and_arrays_of_other_devices_are_welcome(two):
    plain = rx.Variable(1.0)
    elsewhere = jax.device_put(jnp.ones(()), jax.devices()[5])
    total = variable_in(two)

    @rx.function
    def step(x):
        two.run(lambda y: total.assign_add(y), args=(x + plain.value,))
        plain.assign_add(total.value)
        return x + total

    assert float(step(elsewhere)) == 1.0 + 4.0
    assert float(plain) == 5.0
    assert float(plain + total + elsewhere) == 10.0


# -- what comes back ---------------------------------------------------------------------------


class Point(NamedTuple):
    x: object
    y: object


class Thing:
    pass


def test_a_function_returns_whatever_python_returns(two):
    v = variable_in(two, 3.0)
    thing = Thing()
    captured = jnp.arange(2)

    @rx.function
    def step(x):
        all_reduced = two.run(lambda: rx.get_replica_context().all_reduce("SUM", 1.0))
        return {
            "none": None,
            "variable": v,
            "object": thing,
            "string": "text",
            "number": 7,
            "numpy": np.arange(3),
            "captured": captured,
            "per_replica": two.run(lambda x: x + v, args=(x,)),
            "mirrored": all_reduced,
            "point": Point(x=x, y=[v * 2.0, ()]),
        }

    for _ in range(2):
        result = step(ids(two))
        assert result["none"] is None
        assert result["variable"] is v
        assert result["object"] is thing
        assert result["string"] == "text"
        assert result["number"] == 7
        np.testing.assert_array_equal(result["numpy"], [0, 1, 2])
        assert result["captured"] is captured
        assert isinstance(result["per_replica"], rx.PerReplica)
        assert local(two, result["per_replica"]) == [3.0, 4.0]
        assert isinstance(result["mirrored"], rx.Mirrored)
        assert float(result["mirrored"]) == 2.0
        assert isinstance(result["point"], Point)
        assert local(two, result["point"].x) == [0.0, 1.0]
        assert float(result["point"].y[0]) == 6.0
        assert result["point"].y[1] == ()
    assert rx.function(lambda: None)() is None


def test_results_are_uncommitted_arrays_of_one_device(two):
    v = variable_in(two, 3.0)
    result = rx.function(lambda: v * 2.0)()
    assert len(result.devices()) == 1
    assert not result.committed
    assert float(result + jax.device_put(jnp.ones(()), jax.devices()[6])) == 7.0


def test_a_per_replica_result_that_holds_host_objects_comes_back(two):
    names = two.experimental_distribute_values_from_function(
        lambda ctx: f"replica {ctx.replica_id_in_sync_group}"
    )
    result = rx.function(lambda: names)()
    assert two.experimental_local_results(result) == ("replica 0", "replica 1")


# -- gradients ---------------------------------------------------------------------------------


def test_gradients_of_plain_code_at_cross_replica_level(strategy):
    w = variable_in(strategy, 3.0)

    @rx.function
    def step(x):
        gradient = jax.grad(lambda x: (x * w.value) ** 2)(x)
        own = rx.grad(lambda: w.value**3, w)
        w.assign_sub(own * 0.0)
        return gradient, own

    gradient, own = step(2.0)
    assert float(gradient) == 2 * 2.0 * 9.0
    assert float(own) == 27.0


def test_a_gradient_through_a_run_reaches_a_captured_value(strategy):
    count = strategy.num_replicas_in_sync

    @rx.function
    def step(x, batch):
        def loss(x):
            losses = strategy.run(lambda b: (x * b).sum(), args=(batch,))
            return strategy.reduce("SUM", losses, axis=None)

        return jax.value_and_grad(loss)(x)

    batch = strategy.distribute_batch(np.arange(2 * count, dtype=np.float32))
    loss, gradient = step(2.0, batch)
    total = sum(range(2 * count))
    assert float(loss) == 2.0 * total
    assert float(gradient) == total


# -- never stale -------------------------------------------------------------------------------

READERS = {
    "jit": lambda read: jax.jit(read)(),
    "scan": lambda read: lax.scan(lambda c, _: (c, read()), 0, None, length=1)[1][0],
    "cond": lambda read: lax.cond(jnp.ones(()) > 0, read, lambda: jnp.zeros(())),
    "while_loop": lambda read: lax.while_loop(
        lambda s: s[0] < 1, lambda s: (s[0] + 1, read()), (0, jnp.zeros(()))
    )[1],
    "checkpoint": lambda read: jax.checkpoint(read)(),
    "grad of checkpoint": lambda read: jax.grad(jax.checkpoint(lambda x: x * read()))(1.0),
    "vmap": lambda read: jax.vmap(lambda x: x * read())(jnp.ones(2))[0],
    "map": lambda read: lax.map(lambda x: x * read(), jnp.ones(2))[1],
}


@pytest.mark.parametrize("where", ["function", "compiled run", "run in function"])
@pytest.mark.parametrize("reader", READERS)
def test_a_variable_read_in_a_users_own_transformation_is_never_stale(two, reader, where):
    v = variable_in(two, 1.0)
    read = functools.partial(v.read_value)

    def body(x):
        before = READERS[reader](read)
        v.assign_add(x)
        after = READERS[reader](read)
        return before, after

    count = 1 if where == "function" else 2
    if where == "function":
        call = rx.function(body)
    elif where == "compiled run":
        replica_fn = rx.function(body)
        call = lambda x: two.run(replica_fn, args=(x,))  # noqa: E731
    else:
        call = rx.function(lambda x: two.run(body, args=(x,)))
    now = 1.0
    for step in range(3):
        before, after = call(1.0)
        assert local(two, before)[0] == now
        now += count
        assert local(two, after)[0] == now
        if step == 1:
            v.assign(100.0)
            now = 100.0


def test_one_jitted_helper_is_right_in_functions_runs_and_outside(two):
    v = variable_in(two, 1.0)
    helper = jax.jit(lambda x, w: x * w)
    reading = jax.jit(lambda x: x * v.value)
    step = rx.function(lambda x: reading(x) + helper(x, v))
    in_run = rx.function(lambda x: reading(x))
    for value in (1.0, 2.0, 3.0):
        v.assign(value)
        assert float(step(1.0)) == 2 * value
        assert local(two, two.run(in_run, args=(10.0,))) == [10.0 * value] * 2
        assert float(helper(5.0, v)) == 5.0 * value
        with pytest.raises(RuntimeError, match=r"is read inside jax\.jit, .*where JAX would"):
            reading(1.0)


def test_two_functions_that_share_a_jitted_helper_do_not_share_its_trace(two):
    a, b = variable_in(two, 1.0), variable_in(two, 10.0)
    current = [a]
    helper = jax.jit(lambda x: x + current[0].value)
    first, second = rx.function(lambda x: helper(x)), rx.function(lambda x: helper(x) * 2.0)
    assert float(first(0.0)) == 1.0
    current[0] = b
    assert float(second(0.0)) == 20.0
    assert float(first(0.0)) == 1.0  # its program was traced with the other variable, and keeps it
