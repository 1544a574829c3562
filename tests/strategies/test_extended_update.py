"""`update` and `update_non_slot`, and the recipes that the document makes of them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import replicax as rx
from tests.contracts.strategies import mirrored, num_copies

SUM = rx.ReduceOp.SUM
ON_READ = rx.VariableSynchronization.ON_READ


def variable(strategy, value, **options):
    with strategy.scope():
        return rx.Variable(value, **options)


def copies(strategy, v):
    return [np.asarray(copy) for copy in strategy.experimental_local_results(v)]


def scaled_inputs(strategy):
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: jnp.asarray([1.0, 2.0]) * (ctx.replica_id_in_sync_group + 1)
    )


@pytest.mark.parametrize("how", ["reduce_to", "batch_reduce_to"])
def test_the_four_steps_to_update_variables(strategy, execute, how):
    w, b = variable(strategy, [1.0, 2.0]), variable(strategy, 0.0)

    def apply(strategy, pairs):
        extended = strategy.extended
        if how == "reduce_to":  # step 3
            totals = [extended.reduce_to(SUM, update, v) for update, v in pairs]
        else:
            totals = extended.batch_reduce_to(SUM, pairs)
        for total, (_, v) in zip(totals, pairs, strict=True):  # step 4
            extended.update(v, lambda v, t: v.assign_sub(0.5 * t), args=(total,))

    def fn(x):
        gradients = rx.grad(lambda: jnp.sum(w * x) + b, [w, b])  # step 1
        pairs = list(zip(gradients, [w, b], strict=True))
        rx.get_replica_context().merge_call(apply, args=(pairs,))  # step 2

    execute(strategy, fn, args=(scaled_inputs(strategy),))
    n = strategy.num_replicas_in_sync
    total = n * (n + 1) / 2
    for copy in copies(strategy, w):
        np.testing.assert_allclose(copy, [1 - 0.5 * total, 2 - total])
    for copy in copies(strategy, b):
        np.testing.assert_allclose(copy, -0.5 * n)


def test_an_assign_with_an_aggregation_does_steps_2_to_4(strategy, execute):
    v = variable(strategy, 0.0, aggregation=rx.VariableAggregation.SUM)

    def fn():
        v.assign_add(rx.get_replica_context().replica_id_in_sync_group + 1.0)

    execute(strategy, fn)
    n = strategy.num_replicas_in_sync
    assert [float(c) for c in copies(strategy, v)] == [n * (n + 1) / 2] * num_copies(strategy)


def test_update_calls_fn_once_per_copy_in_update_context(strategy):
    v = variable(strategy, 1.0)
    seen = []

    def fn(copy, amount, *, factor):
        assert rx.in_cross_replica_context() or v.strategy is None
        if v.strategy is not None:
            assert rx.get_replica_context() is None
            assert rx.get_strategy() is strategy
        seen.append(copy)
        return copy.assign_add(amount * factor)

    result = strategy.extended.update(v, fn, args=[2.0], kwargs={"factor": 3.0})
    assert result is v
    assert len(seen) == num_copies(strategy)
    assert [float(c) for c in copies(strategy, v)] == [7.0] * num_copies(strategy)


def test_update_of_a_traced_variable_runs_once(distributed):
    v = variable(distributed, 1.0)
    calls = []

    def fn(v, x):
        calls.append(v)
        return v.assign_add(x)

    step = rx.function(lambda x: distributed.extended.update(v, fn, args=(x,)))
    assert step(2.0) is v
    assert len(calls) == 1
    assert [float(c) for c in copies(distributed, v)] == [3.0] * num_copies(distributed)


def test_each_copy_is_updated_where_it_is(distributed):
    v = variable(distributed, 1.0)
    places = []

    def fn(copy):
        places.append(jnp.zeros(()).devices().pop().id)
        copy.assign(copy * 2)

    assert distributed.extended.update(v, fn) is None
    assert [f"CPU:{place}" for place in places] == list(distributed.extended.parameter_devices)
    assert [float(c) for c in copies(distributed, v)] == [2.0] * num_copies(distributed)


def test_mirrored_arguments_are_unwrapped(strategy, across):
    v = variable(strategy, 1.0)
    total = strategy.extended.reduce_to(SUM, strategy.run(lambda: jnp.float32(2)), v)
    seen = []

    def fn(copy, x, *, y):
        seen.extend([x, y["deep"]])
        copy.assign(x + y["deep"])

    def update(total):
        strategy.extended.update(v, fn, args=(total,), kwargs={"y": {"deep": total}})

    across(update, total)
    assert not any(isinstance(x, rx.DistributedValues) for x in seen)
    assert float(v) == 4.0 * strategy.num_replicas_in_sync


def test_group_false_gives_a_list_per_leaf(strategy, across):
    v = variable(strategy, 1.0)

    def fn(copy, x):
        copy.assign_add(x)
        return {"new": copy + 0, "text": "done"}

    def update(x):
        return strategy.extended.update(v, fn, args=(x,), group=False)

    if v.strategy is None:
        assert across(update, 1.0) == {"new": 2.0, "text": "done"}
        return
    result = across(update, 1.0)
    count = num_copies(strategy)
    assert result["text"] == ["done"] * count
    assert [float(x) for x in result["new"]] == [2.0] * count


def test_the_merged_result_of_arrays_is_mirrored(many, across):
    v = variable(many, 1.0)
    result = across(lambda: many.extended.update(v, lambda copy: copy + 1.0))
    assert isinstance(result, rx.Mirrored) == (num_copies(many) > 1)
    assert float(result) == 2.0


def test_update_may_be_called_in_replica_context(strategy, execute):
    v = variable(strategy, 1.0)

    def fn():
        strategy.extended.update(v, lambda copy, x: copy.assign_add(x), args=(2.0,))
        return v + 0

    result = execute(strategy, fn)
    assert [float(x) for x in strategy.experimental_local_results(result)] == [3.0] * (
        strategy.num_replicas_in_sync
    )


def test_a_function_in_an_update_assigns_at_every_call(strategy, execute):
    v, other = variable(strategy, 0.0), variable(strategy, 0.0)

    @rx.function
    def add(copy, value):
        copy.assign_add(value)
        other.assign(value)

    for step in (1.0, 2.0, 3.0):
        execute(strategy, lambda step=step: strategy.extended.update(v, add, args=(step,)) and None)
        np.testing.assert_allclose(copies(strategy, other), step)
    np.testing.assert_allclose(copies(strategy, v), 6.0)


def test_what_is_differentiated_may_update_a_variable(strategy, execute):
    v = variable(strategy, 0.0)

    def loss(x):
        total = rx.get_replica_context().all_reduce("SUM", x * x)
        strategy.extended.update(v, lambda copy, t: copy.assign(t), args=(total,))
        return total * v.value

    n = strategy.num_replicas_in_sync
    result = execute(strategy, lambda: jax.value_and_grad(loss)(2.0))
    for value, gradient in strategy.experimental_local_results(result):
        np.testing.assert_allclose([value, gradient], [(4 * n) ** 2, 4 * n * n * 4])
    np.testing.assert_allclose(copies(strategy, v), 4 * n)


def test_an_eager_update_gives_no_arrays_without_their_gradient(many):
    v = variable(many, 0.0)

    def loss(x):
        total = rx.get_replica_context().all_reduce("SUM", x * x)
        return many.extended.update(v, lambda copy, t: t * 2, args=(total,))

    step = lambda: jax.grad(loss)(2.0)  # noqa: E731
    with pytest.raises(RuntimeError, match=r"extended\.update .* inside jax\.grad .*no gradient.*"):
        many.run(step)
    n = many.num_replicas_in_sync
    for gradient in many.experimental_local_results(many.run(rx.function(step))):
        assert gradient == 8 * n


def test_an_undistributed_variable_is_just_passed_to_fn(strategy):
    plain = rx.Variable(1.0)
    calls = []

    def fn(v, x):
        calls.append(v)
        return v.assign_add(x)

    assert strategy.extended.update(plain, fn, args=(2.0,)) is plain
    assert calls == [plain]
    assert float(plain) == 3.0


def test_the_example_of_colocation(strategy, execute):
    with strategy.scope():
        var1 = rx.Variable([1.0, 2.0])
        with strategy.extended.colocate_vars_with(var1):
            # var2 and var3 will be created on the same device(s) as var1
            var2 = rx.Variable([10.0, 20.0])
            var3 = rx.Variable(0, name="count")
    assert var2.devices() == var3.devices() == var1.devices()

    def fn(v1, v2, v3):
        # operates on v1 from var1, v2 from var2, and v3 from var3
        v2.assign(0.5 * v2)
        v1.assign_add(v2)
        v3.assign_add(1)

    def merge_fn(strategy):
        strategy.extended.update(var1, fn, args=(var2, var3))

    with strategy.scope():
        strategy.extended.update(var1, fn, args=(var2, var3))
    execute(strategy, lambda: rx.get_replica_context().merge_call(merge_fn))
    for copy in copies(strategy, var1):
        np.testing.assert_allclose(copy, [1 + 5 + 2.5, 2 + 10 + 5])
    for copy in copies(strategy, var2):
        np.testing.assert_allclose(copy, [2.5, 5.0])
    assert [int(c) for c in copies(strategy, var3)] == [2] * num_copies(strategy)


def test_a_sync_on_read_variable_is_updated_copy_by_copy(many):
    v = variable(many, 1.0, synchronization=ON_READ, aggregation=rx.VariableAggregation.SUM)
    seen = []

    def fn(copy, x):
        seen.append(float(copy))
        copy.assign_add(x)

    many.extended.update(v, fn, args=(2.0,))
    n = many.num_replicas_in_sync
    assert seen == [1.0] * n
    assert [float(c) for c in copies(many, v)] == [3.0] * n
    assert float(v) == 3.0 * n


def test_non_slot_variables_are_created_and_updated_on_their_devices(strategy, across):
    with strategy.scope():
        weights = rx.Variable(1.0)
        devices = strategy.extended.non_slot_devices([weights])
        with strategy.extended.colocate_vars_with(devices):
            steps = rx.Variable(0, name="steps")
    assert isinstance(devices, tuple)
    assert devices == strategy.extended.parameter_devices

    def fn(amount):
        steps.assign_add(amount)
        return steps + 0

    def update():
        return strategy.extended.update_non_slot(devices, fn, args=(2,))

    with strategy.scope():
        result = across(update)
        assert int(result) == 2
        listed = across(
            lambda: strategy.extended.update_non_slot(
                devices, fn, kwargs={"amount": 1}, group=False
            )
        )
    assert [int(x) for x in listed] == [3] * num_copies(strategy)
    assert [int(c) for c in copies(strategy, steps)] == [3] * num_copies(strategy)


def test_non_slot_state_is_updated_in_merge_call(strategy, execute):
    with strategy.scope():
        weights = rx.Variable(1.0)
        devices = strategy.extended.non_slot_devices([weights])
        with strategy.extended.colocate_vars_with(devices):
            power = rx.Variable(1.0)

    def merge_fn(strategy, factor):
        total = strategy.extended.reduce_to("MEAN", factor, power)
        strategy.extended.update_non_slot(
            devices, lambda t: power.assign(power * t).read_value(), args=(total,)
        )

    def fn():
        factor = jnp.float32(0.5)
        rx.get_replica_context().merge_call(merge_fn, args=(factor,))

    execute(strategy, fn)
    execute(strategy, fn)
    assert [float(c) for c in copies(strategy, power)] == [0.25] * num_copies(strategy)


def test_the_copies_become_visible_together(two):
    v = variable(two, 1.0)

    def fn(copy):
        copy.assign(5.0)
        assert float(copy) == 5.0  # this copy's own new value
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        two.extended.update(v, fn)
    assert [float(c) for c in copies(two, v)] == [1.0, 1.0]


@pytest.mark.parametrize("call", ["update", "update_non_slot"])
def test_copies_that_would_differ_are_refused_and_nothing_is_written(many, call):
    v, other = variable(many, 3.0, name="w"), variable(many, [1.0, 2.0])
    numbers = itertools.count()

    def fn(*_):
        other.assign([5.0, 5.0])
        v.assign(float(next(numbers)))

    where = v if call == "update" else many.extended.non_slot_devices([v])
    if num_copies(many) == 1:  # nothing can differ
        getattr(many.extended, call)(where, fn)
        assert float(v) == 0.0
        return
    with pytest.raises(
        ValueError, match=r"variable 'w' different values: 0\.0 to copy 0 and 1\.0 to copy 1.*args"
    ):
        getattr(many.extended, call)(where, fn)
    assert all(copy == 3.0 for copy in copies(many, v))
    assert all(copy.tolist() == [1.0, 2.0] for copy in copies(many, other))


def test_the_same_bits_are_no_difference(many):
    v = variable(many, [1.0, 2.0, 3.0])
    many.extended.update(v, lambda v: v.assign([jnp.nan, -0.0, jnp.inf]))
    for copy in copies(many, v):
        np.testing.assert_array_equal(copy, [np.nan, -0.0, np.inf])
        assert np.signbit(copy[1])


def test_results_that_differ_are_per_replica(two):
    v, numbers = variable(two, 1.0), itertools.count()
    array, number = two.extended.update(v, lambda v: (jnp.float32(next(numbers)), next(numbers)))
    assert [float(x) for x in two.experimental_local_results(array)] == [0.0, 2.0]
    assert list(two.experimental_local_results(number)) == [1, 3]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(width=32), min_size=2, max_size=2),
    st.sampled_from(["assign", "assign_add", "assign_sub"]),
)
def test_an_update_leaves_equal_copies_or_raises(values, method):
    strategy = mirrored(2)
    v = variable(strategy, 1.5)
    given_values = iter(values)
    try:
        strategy.extended.update(v, lambda v: getattr(v, method)(next(given_values)))
    except ValueError as error:
        assert "different values" in str(error)
        assert [float(copy) for copy in copies(strategy, v)] == [1.5, 1.5]
    first, second = copies(strategy, v)
    assert first.tobytes() == second.tobytes()
