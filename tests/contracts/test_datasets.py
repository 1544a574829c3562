"""Distributed datasets, the same for every strategy and every executor."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.core.spec import PerReplicaSpec, TensorSpec
from tests.contracts.strategies import local_ids
from tests.contracts.test_batches import chunks

Pair = collections.namedtuple("Pair", "image label")
SUM = rx.VariableAggregation.SUM


def results(strategy, value):
    return [np.asarray(part).tolist() for part in strategy.experimental_local_results(value)]


@pytest.mark.parametrize(("count", "size"), [(24, 8), (10, 4), (7, 3), (5, 8), (1, 1)])
def test_every_batch_is_divided_as_distribute_batch_divides_it(strategy, count, size):
    dataset = strategy.distribute_dataset(np.arange(count), batch_size=size)
    steps = [results(strategy, batch) for batch in dataset]
    starts = range(0, count, size)
    assert steps == [
        [
            [start + i for i in chunk]
            for chunk in chunks(min(size, count - start), strategy.num_replicas_in_sync)
        ]
        for start in starts
    ]
    assert len(dataset) == len(steps)


def test_a_pass_in_any_executor_sees_every_example_once(strategy, execute):
    batch = {"x": np.arange(11.0), "y": Pair(np.ones((11, 2)), np.arange(11))}
    dataset = strategy.distribute_dataset(batch, batch_size=4)

    def replica_fn(batch):
        return batch["x"].sum() + batch["y"].label.sum() + batch["y"].image.sum()

    total = 0.0
    for batch in dataset:
        assert isinstance(batch["y"], Pair)
        per_replica = execute(strategy, replica_fn, args=(batch,))
        total += float(strategy.reduce("SUM", per_replica, axis=None))
    assert total == 55.0 + 55.0 + 22.0


def test_with_one_replica_batch_and_spec_are_bare(strategy):
    dataset = strategy.distribute_dataset(np.ones((16, 3), np.float32), batch_size=8)
    (batch, *_) = dataset
    if strategy.num_replicas_in_sync == 1:
        assert isinstance(batch, jax.Array)
        assert isinstance(dataset.element_spec, TensorSpec)
    else:
        assert isinstance(batch, rx.PerReplica)
        assert isinstance(dataset.element_spec, PerReplicaSpec)
        assert len(dataset.element_spec.components) == strategy.num_replicas_in_sync


def test_the_spec_is_an_input_signature_in_both_contexts(strategy):
    batch = (np.ones((7, 2), np.float32), np.arange(7))
    dataset = strategy.distribute_dataset(batch, batch_size=4)
    signature = [dataset.element_spec]

    @rx.function(input_signature=signature)
    def replica_fn(batch):
        return batch[0].sum() + batch[1].sum()

    @rx.function(input_signature=signature)
    def train_step(batch):
        return strategy.reduce("SUM", strategy.run(replica_fn, args=(batch,)), axis=None)

    in_replica = [strategy.reduce("SUM", strategy.run(replica_fn, (b,)), None) for b in dataset]
    across = [train_step(batch) for batch in dataset]
    assert [float(x) for x in in_replica] == [float(x) for x in across] == [14.0, 21.0]


@pytest.mark.parametrize("given", ["dataset", "iterator", "closure", "next"])
def test_a_function_over_a_dataset_is_a_host_loop_with_compiled_runs(strategy, given):
    with strategy.scope():
        total = rx.Variable(0.0, aggregation=SUM)
    dataset = strategy.distribute_dataset(np.ones(24, np.float32), batch_size=8)
    traced = []

    def replica_fn(x):
        traced.append(isinstance(x, jax.core.Tracer))
        total.assign_add(x.sum())

    @rx.function
    def loop(batches):
        for batch in batches:
            strategy.run(replica_fn, args=(batch,))

    @rx.function
    def by_closure():
        for batch in dataset:
            strategy.run(replica_fn, args=(batch,))

    @rx.function
    def take_three(iterator):
        for _ in range(3):
            strategy.run(replica_fn, args=(next(iterator),))

    calls = {
        "dataset": lambda: loop(dataset),
        "iterator": lambda: loop(iter(dataset)),
        "closure": by_closure,
        "next": lambda: take_three(iter(dataset)),
    }
    for number in (1, 2):
        calls[given]()
        assert float(total) == 24.0 * number
    assert traced
    assert all(traced)


def test_iterating_inside_a_compiled_run_says_what_to_do(strategy, compiled):
    dataset = strategy.distribute_dataset(np.ones(8, np.float32), batch_size=8)
    with pytest.raises(RuntimeError, match=r"a DistributedDataset was iterated inside a compiled"):
        compiled(strategy, lambda: [batch for batch in dataset])


def test_per_replica_pipelines_feed_each_replica(strategy):
    count = strategy.num_replicas_in_sync

    def dataset_fn(context):
        size = context.get_per_replica_batch_size(2 * count)
        return [np.full(size, i) for i in range(count + 1)]

    dataset = strategy.distribute_datasets_from_function(dataset_fn)
    steps = [results(strategy, batch) for batch in dataset]
    here = len(local_ids(strategy))  # every worker has the same pipeline for its own replicas
    batches = [[i, i] for i in range(count + 1)] + [[]] * (-(count + 1) % here)
    taken = [batches[start : start + here] for start in range(0, len(batches), here)]
    assert steps == [step * (count // here) for step in taken]


def test_scalars_must_be_batched(strategy):
    dataset = strategy.distribute_dataset([1, 2, 3])
    with pytest.raises(ValueError, match=r"scalar|not batched"):
        list(dataset)


# -- prediction --------------------------------------------------------------------------------


@pytest.mark.parametrize("compile_it", [False, True])
@pytest.mark.parametrize("size", [4, 8, 50])
def test_predictions_come_back_in_the_order_of_the_input(strategy, compile_it, size):
    x = np.random.default_rng(0).normal(size=(27, 3)).astype(np.float32)

    def fn(batch):
        return {"sum": batch.sum(axis=1), "twice": 2 * batch}

    dataset = strategy.distribute_dataset(x, batch_size=size)
    result = strategy.predict(rx.function(fn) if compile_it else fn, dataset)
    assert all(type(leaf) is np.ndarray for leaf in result.values())
    np.testing.assert_allclose(result["sum"], x.sum(axis=1), rtol=1e-5)
    np.testing.assert_array_equal(result["twice"], 2 * x)


def test_predict_distributes_what_is_not_distributed(strategy):
    batches = [np.arange(4), np.arange(4, 7)]
    np.testing.assert_array_equal(strategy.predict(lambda x: x + 1, batches), np.arange(1, 8))


def test_predict_wants_a_row_for_every_example(strategy):
    dataset = strategy.distribute_dataset(np.ones((8, 3), np.float32), batch_size=8)
    with pytest.raises(
        ValueError, match=r"leaf \['m'\] of what fn returned.*one row for every exa"
    ):
        strategy.predict(lambda x: {"m": x.mean()}, dataset)


def test_predict_needs_at_least_one_batch(strategy):
    with pytest.raises(ValueError, match="predict got a dataset without batches"):
        strategy.predict(lambda x: x, [])


def test_predict_uses_the_variables(strategy):
    with strategy.scope():
        w = rx.Variable(jnp.asarray([1.0, 2.0]))
    x = np.arange(10.0, dtype=np.float32).reshape(5, 2)
    dataset = strategy.distribute_dataset(x, batch_size=2)
    result = strategy.predict(rx.function(lambda x: x @ w.value), dataset)
    np.testing.assert_allclose(result, x @ np.array([1.0, 2.0]))
