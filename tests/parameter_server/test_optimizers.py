"""Optimizers on servers: the same numbers as elsewhere, or a refusal."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.core.errors import TraceError, VariableError
from replicax.variables.rows import RowGradient
from tests.tiers import full_only

HALVES = rx.experimental.partitioners.FixedShardsPartitioner(2)
STEPS = 5


def two_layers():
    random = np.random.default_rng(0)
    w = rx.Variable(random.normal(size=(6, 4)).astype(np.float32), name="w")
    b = rx.Variable(np.zeros(4, np.float32), name="b")
    return w, b


def loss_of(w, b, x):
    return jnp.mean(jnp.square(jnp.tanh(x @ w + b)))


def batches():
    random = np.random.default_rng(1)
    return [random.normal(size=(8, 6)).astype(np.float32) for _ in range(STEPS)]


def trained_mirrored(transformation, **options):
    """Weights after training on one replica."""
    strategy = rx.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        w, b = two_layers()
        optimizer = rx.Optimizer(transformation, **options)

    @rx.function
    def step(x):
        gradients = rx.grad(lambda: loss_of(w, b, x), [w, b])
        optimizer.apply_gradients(zip(gradients, [w, b], strict=True))

    for x in batches():
        strategy.run(step, args=(x,))
    return w.numpy(), b.numpy()


def trained_on_servers(strategy, transformation, **options):
    """The same under parameter servers, one closure after the other."""
    coordinator = rx.coordinator.ClusterCoordinator(strategy, max_staleness=0)
    with strategy.scope():
        w, b = two_layers()
        optimizer = rx.Optimizer(transformation, **options)

    def replica_fn(x):
        gradients = rx.grad(lambda: loss_of(w, b, x), [w, b])
        optimizer.apply_gradients(zip(gradients, [w, b], strict=True))

    @rx.function
    def step(x):
        strategy.run(replica_fn, args=(x,))

    for x in batches():
        coordinator.schedule(step, args=(x,))
    coordinator.join()
    assert int(optimizer.iterations) == STEPS
    assert set(coordinator.stats().staleness) == {0}
    return w.numpy(), b.numpy()


@pytest.mark.parametrize(
    "transformation", [optax.sgd(0.1), optax.sgd(0.1, momentum=0.9)], ids=["sgd", "momentum"]
)
@pytest.mark.parametrize("partitioner", [None, HALVES], ids=["whole", "cut"])
def test_synchronous_training_has_the_bits_of_one_replica(
    new_strategy, transformation, partitioner
):
    expected = trained_mirrored(transformation)
    strategy = new_strategy(num_workers=1, partitioner=partitioner)
    for got, wanted in zip(trained_on_servers(strategy, transformation), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_adam_has_the_bits_of_an_update_in_a_program_of_its_own(new_strategy):
    transformation = optax.adam(0.1)
    strategy = rx.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        w, b = two_layers()
    values = [w.value, b.value]
    state = transformation.init(values)
    gradients_of = jax.jit(jax.grad(lambda values, x: loss_of(*values, x)))

    @jax.jit
    def update(gradients, state, values):
        updates, state = transformation.update(gradients, state, values)
        return optax.apply_updates(values, updates), state

    for x in batches():
        values, state = update(gradients_of(values, x), state, values)
    got = trained_on_servers(new_strategy(1, 1), transformation)
    for mine, wanted in zip(got, values, strict=True):
        np.testing.assert_array_equal(mine, wanted)


@pytest.mark.parametrize("partitioner", [None, HALVES], ids=["whole", "cut"])
@pytest.mark.parametrize("servers", [2, full_only(1)])
@pytest.mark.parametrize(
    "make",
    [
        lambda: optax.inject_hyperparams(optax.adamw)(learning_rate=0.1),
        full_only(lambda: optax.adam(0.1)),
        full_only(lambda: optax.adagrad(0.1)),
        full_only(lambda: optax.chain(optax.clip(0.01), optax.rmsprop(0.1))),
    ],
    ids=["adamw", "adam", "adagrad", "clip and rmsprop"],
)
def test_training_is_that_of_one_replica(new_strategy, make, servers, partitioner):
    expected = trained_mirrored(make())
    got = trained_on_servers(new_strategy(1, servers, partitioner), make())
    for mine, wanted in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, wanted, atol=1e-6)


def test_a_mask_and_labels_see_the_whole_tree(new_strategy):
    transformation = optax.multi_transform(
        {"slow": optax.sgd(0.01), "adam": optax.adam(0.1)}, ["adam", "slow"]
    )
    expected = trained_mirrored(transformation)
    got = trained_on_servers(new_strategy(1, 2), transformation)
    for mine, wanted in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, wanted, atol=1e-6)


def test_the_global_norm_is_clipped_on_the_worker(new_strategy):
    options = {"clip_global_norm": 0.01}
    expected = trained_mirrored(optax.sgd(0.1), **options)
    got = trained_on_servers(new_strategy(1, 2), optax.sgd(0.1), **options)
    for mine, wanted in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, wanted, atol=1e-7)


def test_named_optimizers_and_their_learning_rate(new_strategy):
    strategy = new_strategy(1, 2)
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        a, b = rx.Variable([1.0, 1.0]), rx.Variable([2.0, 2.0])
        optimizer = rx.optimizers.SGD(0.5)

    def step():
        gradients = rx.grad(lambda: jnp.sum(a.value) + jnp.sum(b.value), [a, b])
        optimizer.apply_gradients(zip(gradients, [a, b], strict=True))

    coordinator.schedule(step)
    coordinator.join()
    optimizer.learning_rate = 0.25
    coordinator.schedule(step)
    coordinator.join()
    assert a.numpy().tolist() == [0.25, 0.25]
    assert b.numpy().tolist() == [1.25, 1.25]


# -- rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitioner", [None, HALVES], ids=["whole", "cut"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: optax.adagrad(0.5),
        lambda: optax.adam(0.1),
        full_only(lambda: optax.sgd(0.5)),
        full_only(lambda: optax.sgd(0.1, momentum=0.9)),
    ],
    ids=["adagrad", "adam", "sgd", "momentum"],
)
def test_gradients_of_rows_mean_what_dense_ones_do(new_strategy, make, partitioner):
    ids = [np.array([1, 4, 1], np.int32), np.array([0, 5, 5], np.int32)]
    start = np.random.default_rng(2).normal(size=(6, 2)).astype(np.float32)
    values, transformation = jnp.asarray(start), make()
    state = transformation.init(values)
    for some in ids * 2:
        gradient = jax.grad(lambda v, some=some: jnp.sum(jnp.square(v[some])))(values)
        updates, state = transformation.update(gradient, state, values)
        values = optax.apply_updates(values, updates)

    strategy = new_strategy(1, 2, partitioner)
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        table = rx.Variable(start, name="table")
        optimizer = rx.Optimizer(make())
    kinds = []

    def step(ids):
        gradient = rx.grad(lambda: jnp.sum(jnp.square(table.gather(ids))), table)
        kinds.append(type(gradient))
        optimizer.apply_gradients([(gradient, table)])

    for some in ids * 2:
        coordinator.schedule(step, args=(some,))
    coordinator.join()
    assert set(kinds) == {RowGradient}
    np.testing.assert_allclose(table.numpy(), values, atol=1e-6)


def test_a_loss_that_reads_the_whole_as_well_has_a_dense_gradient(strategy, coordinator):
    with strategy.scope():
        table = rx.Variable(np.ones((4, 2), np.float32))

    def closure():
        return rx.grad(lambda: table.gather([1]).sum() + (table * 2).sum(), table)

    expected = [[2, 2], [3, 3], [2, 2], [2, 2]]
    assert coordinator.schedule(closure).fetch().tolist() == expected


def test_rows_that_are_looked_up_by_rows(new_strategy):
    strategy = new_strategy(1, 2, HALVES)
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        following = rx.Variable(np.array([[3], [2], [0], [1]], np.int32))
        table = rx.Variable(np.arange(8.0).reshape(4, 2).astype(np.float32))

    def closure(ids):
        there = following[ids][:, 0]
        return table[following.gather(there)[:, 0]]

    got = coordinator.schedule(closure, args=(np.array([0, -1, 9]),)).fetch()
    assert got.tolist() == table.numpy()[[1, 2, 2]].tolist()
    assert table.gather([0, -1, 9]).tolist() == table.numpy()[[0, 3, 3]].tolist()


def test_rows_are_added_and_replaced(new_strategy):
    strategy = new_strategy(1, 2, HALVES)
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        table = rx.Variable(np.zeros((5, 2), np.float32), name="table")

    def closure():
        table.add_rows([0, 4, 0, 99], np.ones((4, 2), np.float32))
        table.assign_rows([2], [[7.0, 8.0]])
        return table.gather([2])

    assert coordinator.schedule(closure).fetch().tolist() == [[7, 8]]
    coordinator.join()
    table.add_rows([-1], [[1.0, 1.0]])
    assert table.numpy().tolist() == [[2, 2], [0, 0], [7, 8], [0, 0], [2, 2]]
    assert table.shard_shapes == ((3, 2), (2, 2))
    with pytest.raises(VariableError, match="got 2 rows and values of shape"):
        table.add_rows([0, 1], np.zeros((3, 2), np.float32))


# -- what is refused ---------------------------------------------------------------------------


def refused(strategy, transformation, match, **options):
    with pytest.raises(VariableError, match=match):
        trained_on_servers(strategy, transformation, **options)


def test_what_servers_cannot_do_is_refused_with_the_way(new_strategy):
    clipping = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1))
    refused(new_strategy(1, 2), clipping, r"Clip by rx.Optimizer\(\.\.\., clip_global_norm")
    noise = optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(0)), optax.sgd(0.1))
    refused(new_strategy(1, 2), noise, "keeps a random key in its state")
    refused(new_strategy(1, 2, HALVES), optax.lamb(0.1), "needs the whole of variable 'w'")
    accumulating = "accumulate_steps, which servers do not do"
    refused(new_strategy(1, 1), optax.sgd(0.1), accumulating, accumulate_steps=2)
    trained_on_servers(new_strategy(1, 1), clipping)  # one server has everything


def test_a_read_after_apply_gradients_is_refused(strategy, coordinator):
    with strategy.scope():
        w = rx.Variable([1.0], name="w")
        optimizer = rx.Optimizer(optax.sgd(0.1))

    def closure():
        optimizer.apply_gradients([(jnp.ones(1), w)])
        return w.value

    with pytest.raises(TraceError, match="a read of variable 'w' comes after apply_gradients"):
        coordinator.schedule(closure)

    def twice():
        optimizer.apply_gradients([(jnp.ones(1), w)])
        optimizer.apply_gradients([(jnp.ones(1), w)])

    with pytest.raises(TraceError, match="is called twice in one closure"):
        coordinator.schedule(twice)
