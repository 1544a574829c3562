"""Who owns a buffer: reads are snapshots, inputs are copied, the rest is donated."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from tests.contracts.strategies import mirrored

SUM = rx.VariableAggregation.SUM
ON_READ = rx.VariableSynchronization.ON_READ


def discard(_):
    """Makes a lambda return None."""


def variable(strategy, value, **options):
    options.setdefault("aggregation", SUM)
    with strategy.scope():
        return rx.Variable(value, **options)


@pytest.mark.own_results
def test_a_snapshot_survives_donated_steps(strategy, execute):
    v = variable(strategy, jnp.arange(4.0))
    n = strategy.num_replicas_in_sync
    step = execute.prepare(strategy, lambda: discard(v.assign_add(jnp.ones(4))))
    step()
    kept = {
        "value": v.value,
        "read_value": v.read_value(),
        "numpy": v.numpy(),
        "asarray": np.asarray(v),
        "sum": v + 0,
        "local": np.asarray(strategy.experimental_local_results(v)[0]),
        "row": v[1:],
        "in run": strategy.experimental_local_results(strategy.run(lambda: v.read_value()))[-1],
    }
    expected = {name: np.array(value) for name, value in kept.items()}
    views = strategy.experimental_local_results(v)
    for _ in range(50 if execute.is_compiled else 5):
        step()
    for name, value in kept.items():
        np.testing.assert_array_equal(np.asarray(value), expected[name], err_msg=name)
    steps = 51 if execute.is_compiled else 6
    for view in views:  # a view is live, not a snapshot
        np.testing.assert_allclose(np.asarray(view), np.arange(4.0) + steps * n)


@pytest.mark.own_results
@pytest.mark.parametrize("aggregation", ["SUM", "MEAN", "ONLY_FIRST_REPLICA"])
def test_a_sync_on_read_snapshot_survives_donated_steps(many, aggregation):
    how = rx.VariableAggregation[aggregation]
    v = variable(many, jnp.zeros(3), synchronization=ON_READ, aggregation=how)
    step = rx.function(lambda: discard(v.assign_add(jnp.ones(3))))
    many.run(step)
    value, component = v.value, many.experimental_local_results(v)[-1].value
    expected = np.array(value)
    for _ in range(50):
        many.run(step)
    np.testing.assert_array_equal(value, expected)
    np.testing.assert_array_equal(component, np.ones(3))


def test_results_of_earlier_steps_survive(many):
    v = variable(many, 0.0)

    def step():
        v.assign_add(1.0)
        return v.read_value(), rx.get_replica_context().all_reduce("SUM", v.read_value())

    compiled = rx.function(step)
    results = [many.run(compiled) for _ in range(20)]
    n = many.num_replicas_in_sync
    for count, (own, total) in enumerate(results, 1):
        assert [float(x) for x in many.experimental_local_results(own)] == [count * n] * n
        assert float(total) == count * n * n


def test_the_users_array_stays_theirs(strategy):
    array, host = jnp.arange(64.0), np.arange(64, dtype=np.float32)
    first, second = variable(strategy, array), variable(strategy, array)
    third, fourth = variable(strategy, host), variable(strategy, first)

    @rx.function
    def step():
        for v in (first, second, third, fourth):
            v.assign_add(jnp.ones(64))

    for _ in range(3):
        strategy.run(step)
    n = strategy.num_replicas_in_sync
    for v in (first, second, third, fourth):
        np.testing.assert_array_equal(v.numpy(), np.arange(64) + 3 * n)
    np.testing.assert_array_equal(array, np.arange(64))
    first.assign(array)
    second.assign(array)
    third.assign(host)
    host[:] = -1
    strategy.run(step)
    np.testing.assert_array_equal(array, np.arange(64))
    np.testing.assert_array_equal(third.numpy(), np.arange(64) + n)
    np.testing.assert_array_equal(first.numpy(), np.arange(64) + n)


def test_assigning_one_variable_to_another_shares_nothing(strategy, execute):
    a, b = variable(strategy, [1.0, 2.0]), variable(strategy, [0.0, 0.0])
    b.assign(a)
    step = execute.prepare(strategy, lambda: discard(a.assign_add([1.0, 1.0])))
    step()
    step()
    np.testing.assert_array_equal(b.numpy(), [1, 2])
    swap = rx.function(lambda: discard((a.assign(b), b.assign(a * 2))))
    swap()
    swap()
    np.testing.assert_array_equal(a.numpy(), [2, 4])
    np.testing.assert_array_equal(b.numpy(), [4, 8])


def test_donation_happens_when_nothing_was_handed_out(in_place):
    v = variable(in_place, jnp.zeros(1024))
    step = rx.function(lambda: discard(v.assign_add(jnp.ones(1024))))
    in_place.run(step)
    old = v._storage.array
    pointers = {shard.data.unsafe_buffer_pointer() for shard in old.addressable_shards}
    in_place.run(step)
    assert old.is_deleted()
    new = {shard.data.unsafe_buffer_pointer() for shard in v._storage.array.addressable_shards}
    assert new == pointers


def test_a_handed_out_buffer_is_not_donated_and_the_next_one_is(in_place):
    v = variable(in_place, jnp.zeros(256), trainable=False)  # a read of a split one is a copy
    step = rx.function(lambda: discard(v.assign_add(jnp.ones(256))))
    in_place.run(step)
    value = v.value
    held = v._storage.array
    in_place.run(step)
    assert not held.is_deleted()
    assert not value.is_deleted()
    del held
    old = v._storage.array
    in_place.run(step)
    assert old.is_deleted()


def test_one_handed_out_variable_does_not_stop_the_others_for_ever(in_place):
    a, b = variable(in_place, jnp.zeros(256)), variable(in_place, jnp.zeros(256))
    step = rx.function(lambda: discard((a.assign_add(b + 1), b.assign_add(a + 1))))
    in_place.run(step)
    kept = a.value
    in_place.run(step)
    old_a, old_b = a._storage.array, b._storage.array
    in_place.run(step)
    assert old_a.is_deleted()
    assert old_b.is_deleted()
    assert not kept.is_deleted()


def test_without_donation_old_buffers_stay(two):
    v = variable(two, jnp.zeros(8))
    step = rx.function(lambda: discard(v.assign_add(jnp.ones(8))), donate=False)
    two.run(step)
    old = v._storage.array
    two.run(step)
    assert not old.is_deleted()


def test_a_variable_that_is_only_read_is_not_donated(strategy):
    v, w = variable(strategy, jnp.ones(8)), variable(strategy, jnp.zeros(8))
    step = rx.function(lambda: discard(w.assign_add(v * 1)))
    strategy.run(step)
    array = v._storage.array
    strategy.run(step)
    assert v._storage.array is array
    assert not array.is_deleted()


def test_steady_steps_transfer_nothing(in_place):
    v = variable(in_place, jnp.zeros(16))
    local = variable(in_place, 0.0, synchronization=ON_READ)
    batch = in_place.distribute_batch(np.ones((8, 16), np.float32))

    @rx.function
    def step(x):
        v.assign_add(x.sum(0))
        local.assign_add(1.0)
        return v.sum()

    whole = rx.function(lambda x: in_place.reduce("SUM", in_place.run(step, (x,)), axis=None))
    for call in (lambda: in_place.run(step, (batch,)), lambda: whole(batch)):
        call()
        with jax.transfer_guard("disallow"):
            results = [call() for _ in range(3)]
        assert results
    assert float(local) == 8 * in_place.num_replicas_in_sync


def test_steady_steps_allocate_nothing_that_stays(two):
    v = variable(two, jnp.zeros(16))
    step = rx.function(lambda: discard(v.assign_add(jnp.ones(16))))
    for _ in range(12):
        two.run(step)
    gc.collect()
    before = len(jax.live_arrays())
    for _ in range(20):
        two.run(step)
    gc.collect()
    assert len(jax.live_arrays()) == before


@pytest.mark.own_results
def test_a_read_of_a_mirrored_variable_copies_nothing(many):
    v = variable(many, jnp.zeros(1024), trainable=False)  # no strategy splits it
    pointers = {shard.data.unsafe_buffer_pointer() for shard in v._storage.array.addressable_shards}
    assert v.value.unsafe_buffer_pointer() in pointers
    for view in many.experimental_local_results(v):
        assert view.value.unsafe_buffer_pointer() in pointers


def live_buffers(shape):
    return sum(array.shape == shape for array in jax.live_arrays())


def test_a_deleted_variable_is_gone(strategy, execute):
    shape = (7, 11, 13)
    v = variable(strategy, np.zeros(shape, np.float32))
    holder, stored = [v], v._storage.array.shape
    execute(strategy, lambda: discard(holder[0].assign_add(np.ones(shape, np.float32))))
    assert live_buffers(stored) >= 1
    gone = weakref.ref(v)
    del v
    holder.clear()
    gc.collect()
    assert gone() is None
    assert live_buffers(stored) == 0


def test_a_program_does_not_keep_its_variables_alive(two):
    shape = (5, 17, 3)

    class Model:
        def __init__(self):
            with two.scope():
                self.w = rx.Variable(np.zeros(shape, np.float32), aggregation=SUM)

    @rx.function
    def step(model):
        model.w.assign_add(jnp.ones(shape))

    for _ in range(2):
        model = Model()
        two.run(step, (model,))
        two.run(step, (model,))
        np.testing.assert_array_equal(model.w.numpy(), np.full(shape, 4))
        gone = weakref.ref(model.w)
        del model
        gc.collect()
        assert gone() is None
        assert live_buffers(shape) == 0


@pytest.mark.own_results
def test_a_view_outlives_its_variable(strategy):
    with strategy.scope():
        v = rx.Variable([1.0, 2.0])
    views = strategy.experimental_local_results(v)
    if strategy.num_replicas_in_sync == 1 and views[0] is v:
        return  # the default strategy's variable is its own only component
    v.assign([3.0, 4.0])
    assert all(strategy.extended.value_container(view) is v for view in views)
    del v
    gc.collect()
    for view in views:
        np.testing.assert_array_equal(np.asarray(view), [3, 4])
        assert strategy.extended.value_container(view) is view
        np.testing.assert_array_equal(view + jnp.ones(2), [4, 5])


@pytest.mark.own_results
def test_views_are_the_same_objects_and_membership_goes_by_identity(many):
    v = variable(many, [1.0, 2.0])
    views = many.experimental_local_results(v)
    assert len(views) == len(many.extended.parameter_devices)
    assert all(a is b for a, b in zip(views, many.experimental_local_results(v), strict=True))
    assert many.extended.value_container(views[0]) is v
    array = jnp.ones(2)
    assert many.extended.value_container(array) is array


@pytest.mark.own_results
def test_a_view_is_written_only_by_update(many):
    v = variable(many, 1.0, name="w")
    view = many.experimental_local_results(v)[0]
    with pytest.raises(RuntimeError, match=r"copy 0 of variable 'w'.*extended\.update"):
        view.assign(2.0)


def test_many_strategies_and_variables_leave_nothing_behind():
    def once():
        strategy = mirrored(2)
        v = variable(strategy, np.zeros((9, 4), np.float32))
        strategy.run(lambda: discard(v.assign_add(np.ones((9, 4), np.float32))))
        strategy.run(rx.function(lambda: discard(v.assign_add(np.ones((9, 4), np.float32)))))

    for _ in range(3):
        once()
    gc.collect()
    assert live_buffers((9, 4)) == 0
