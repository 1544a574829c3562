"""Arrays without elements go through everything that others go through."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx

ON_READ = rx.VariableSynchronization.ON_READ


@pytest.fixture(params=[(0, 3), (3, 0)], ids=str)
def shape(request):
    return request.param


def per_replica(strategy, shape, dtype=np.float32):
    return strategy.experimental_distribute_values_from_function(lambda _: jnp.zeros(shape, dtype))


def components(strategy, result):
    return [np.asarray(part) for part in strategy.experimental_local_results(result)]


def context():
    return rx.get_replica_context()


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_a_reduction_of_nothing_has_the_shape_and_dtype_of_any_other(strategy, shape, op, axis):
    def reduce(value):
        return strategy.reduce(op, value, axis)

    for dtype in (np.float32, np.float16, np.int32, np.bool_):
        empty = per_replica(strategy, shape, dtype)
        dtype = reduce(per_replica(strategy, tuple(size or 2 for size in shape), dtype)).dtype
        for result in (reduce(empty), rx.function(reduce)(empty)):
            assert result.shape == (shape if axis is None else tuple(np.delete(shape, axis)))
            assert result.dtype == dtype
            assert not np.asarray(result).any()


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_several_empty_values_are_reduced_together(strategy, shape, op):
    value, other = per_replica(strategy, shape), per_replica(strategy, (0,), np.int32)

    def reduce(value, other):
        pairs = [(value, "CPU:0"), (other, "CPU:0"), (value, value)]
        return strategy.extended.batch_reduce_to(op, pairs)

    for results in (reduce(value, other), rx.function(reduce)(value, other)):
        assert [np.shape(result) for result in results] == [shape, (0,), shape]


def test_nothing_is_gathered_to_nothing(strategy, shape):
    value, count = per_replica(strategy, shape), strategy.num_replicas_in_sync

    def gather(value):
        return strategy.gather(value, 0), strategy.gather(value, -1)

    for first, last in (gather(value), rx.function(gather)(value)):
        assert first.shape == (shape[0] * count, *shape[1:])
        assert last.shape == (*shape[:-1], shape[-1] * count)


def test_collectives_take_empty_values_alone_and_beside_others(strategy, execute, shape):
    count = strategy.num_replicas_in_sync

    def replica_fn(x, y):
        reduced = context().all_reduce("SUM", [x, y, jnp.ones(3), jnp.zeros(0, jnp.int32)])
        gathered = [context().all_gather(value, axis=0) for value in (x, y)]
        return [context().all_reduce("MEAN", x), *reduced, *gathered]

    args = per_replica(strategy, shape), per_replica(strategy, (0, 2), np.float16)
    results = execute(strategy, replica_fn, args=args)
    shapes = [shape, shape, (0, 2), (3,), (0,), (shape[0] * count, *shape[1:]), (0, 2)]
    for result, expected in zip(results, shapes, strict=True):
        for part in components(strategy, result):
            assert part.shape == expected
    for part in components(strategy, results[3]):
        assert part.tolist() == [count] * 3


def test_a_run_may_take_nothing_but_empty_values(strategy, execute, shape):
    def replica_fn(*values):
        sums = [context().all_reduce("SUM", value.sum() + 1) for value in values]
        return [value * 2 for value in values], sums

    args = (per_replica(strategy, shape),) * 3
    doubled, sums = execute(strategy, replica_fn, args=args)
    for result in doubled:
        assert [part.shape for part in components(strategy, result)] == [
            shape
        ] * strategy.num_replicas_in_sync
    for result in sums:
        assert components(strategy, result)[0] == strategy.num_replicas_in_sync


def test_gradients_go_through_collectives_of_empty_values(strategy, execute, shape):
    def replica_fn(x):
        def loss(x):
            reduced = context().all_reduce("SUM", x)
            return reduced.sum() + context().all_gather(x, axis=0).sum()

        return jax.grad(loss)(x)

    result = execute(strategy, replica_fn, args=(per_replica(strategy, shape),))
    assert {part.shape for part in components(strategy, result)} == {shape}


@pytest.mark.parametrize("aggregation", ["SUM", "MEAN", "ONLY_FIRST_REPLICA"])
def test_empty_variables_are_assigned_and_read(strategy, execute, shape, aggregation):
    aggregation = rx.VariableAggregation[aggregation]
    created = []
    with strategy.scope():
        v = rx.Variable(np.zeros(shape, np.float32), aggregation=aggregation)
        r = rx.Variable(
            np.zeros(shape, np.float32), aggregation=aggregation, synchronization=ON_READ
        )

    def replica_fn(x):
        if not created:
            created.append(rx.Variable(x + 1))
        v.assign(x)
        v.assign_add(x)
        r.assign_add(x)
        return context().merge_call(lambda _: r.value + 0)

    step = execute.prepare(strategy, replica_fn)
    for _ in range(3):
        assert components(strategy, step(per_replica(strategy, shape)))[0].shape == shape
    v.assign(np.zeros(shape, np.float32))
    r.assign(np.zeros(shape, np.float32))
    strategy.extended.update(v, lambda v: v.assign(np.zeros(shape, np.float32)))
    for variable in (v, r, created[0]):
        assert variable.numpy().shape == rx.function(lambda v=variable: v.value)().shape == shape


@pytest.mark.parametrize("steps", [1, 2])
def test_an_optimizer_updates_empty_variables_beside_others(strategy, execute, steps):
    with strategy.scope():
        variables = [rx.Variable(np.ones(s, np.float32)) for s in ((0,), (4,), (3, 0))]
        clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1))
        optimizer = rx.Optimizer(clipped, accumulate_steps=steps)

    def replica_fn():
        gradients = rx.grad(lambda: sum((v * v).sum() for v in variables), variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    step = execute.prepare(strategy, replica_fn)
    for _ in range(2 * steps):
        step()
    np.testing.assert_allclose(variables[1].numpy(), np.full(4, 0.8), rtol=1e-3)
    assert variables[0].numpy().shape == (0,)


def test_an_optimizer_updates_nothing_but_empty_variables(strategy, execute):
    with strategy.scope():
        variables = [rx.Variable(np.ones((0, 3), np.float32)) for _ in range(3)]
        optimizer = rx.Optimizer(optax.adam(0.1))
    step = execute.prepare(
        strategy, lambda: optimizer.apply_gradients([(jnp.zeros((0, 3)), v) for v in variables])
    )
    for _ in range(3):
        step()
    assert int(optimizer.iterations) == 3


def test_many_empty_variables_beside_others_are_written_by_a_step(strategy, shape):
    with strategy.scope():
        variables = [rx.Variable(np.zeros((shape, (2,))[i % 2], np.float32)) for i in range(80)]
    step = rx.function(lambda: [v.assign(v.value + 1) for v in variables] and None)
    for _ in range(3):
        step()
    assert [v.numpy().tolist() for v in variables[1::2]] == [[3.0, 3.0]] * 40
    assert {v.numpy().shape for v in variables[::2]} == {shape}
