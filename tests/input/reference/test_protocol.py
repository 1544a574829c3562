"""Specs, counts, the iteration protocol and policies as they were observed, or better."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from replicax.core.spec import PerReplicaSpec
from tests.input.reference.rows import (
    REPLICAS,
    assert_bare_steps,
    assert_steps,
    ids,
    lists,
    mirrored,
)

Dataset = tf.data.Dataset
TensorSpec = tf.TensorSpec
Policy = tf.data.experimental.AutoShardPolicy
INFINITE = tf.data.INFINITE_CARDINALITY
UNKNOWN = tf.data.UNKNOWN_CARDINALITY


@pytest.fixture(params=REPLICAS, ids=lambda count: f"{count} replicas")
def strategy(request):
    return mirrored(request.param)


def narrowed(spec):
    return TensorSpec(spec.shape, jax.dtypes.canonicalize_dtype(spec.dtype))


# -- specs and counts --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class SpecRow:
    """What is known of a dataset before it is read.

    Attributes:
        name: The name of the observation.
        build: Makes the pipeline.
        spec: By number of replicas, the spec of one component, before JAX narrows it.
        whole: The spec for one replica.
        cardinality: The steps of a pass; where they are known, ``len`` is too, which was a
            TypeError in every observation.
    """

    name: str
    build: Callable[[], Any]
    spec: dict[int, Any]
    whole: Any
    cardinality: int


def vector(size=None):
    return TensorSpec((size,), tf.int64)


PAIR = {"a": vector(), "b": TensorSpec((None, 3), tf.float32)}

SPECS = (
    SpecRow(
        "spec 10/4",
        lambda: Dataset.range(10).batch(4),
        {2: vector(), 3: vector()},
        vector(),
        3,
    ),
    SpecRow(
        "spec 10/4 drop",
        lambda: Dataset.range(10).batch(4, drop_remainder=True),
        {2: vector(2), 3: vector()},
        vector(4),
        2,
    ),
    SpecRow(
        "spec 10/5 drop",
        lambda: Dataset.range(10).batch(5, drop_remainder=True),
        {2: vector(), 3: vector()},
        vector(5),
        2,
    ),
    SpecRow(
        "spec dict",
        lambda: Dataset.from_tensor_slices(
            {"a": np.arange(5), "b": np.ones((5, 3), np.float32)}
        ).batch(4),
        {2: PAIR, 3: PAIR},
        PAIR,
        2,
    ),
    SpecRow(
        "spec repeat",
        lambda: Dataset.range(10).batch(4).repeat(),
        {2: vector(), 3: vector()},
        vector(),
        INFINITE,
    ),
    SpecRow(
        "spec filter",
        lambda: Dataset.range(10).filter(lambda x: x > 2).batch(4),
        {2: vector(), 3: vector()},
        vector(),
        UNKNOWN,
    ),
)


@pytest.mark.parametrize("x64", [False, True], ids=["x32", "x64"])
@pytest.mark.parametrize("row", SPECS, ids=ids(SPECS))
@pytest.mark.parametrize("count", [1, *REPLICAS])
def test_the_spec_is_as_observed_and_bare_for_one_replica(row, count, x64):
    def handed_out(spec):
        return narrowed(spec) if count == 1 else PerReplicaSpec(*[narrowed(spec)] * count)

    with jax.enable_x64(x64):
        dataset = mirrored(count).experimental_distribute_dataset(row.build())
        own = row.whole if count == 1 else row.spec[count]
        expected = (
            {k: handed_out(v) for k, v in own.items()} if type(own) is dict else handed_out(own)
        )
        iterator = iter(dataset)
        assert dataset.element_spec == iterator.element_spec == expected
    assert isinstance(dataset, tf.distribute.DistributedDataset)
    assert isinstance(iterator, tf.distribute.DistributedIterator)


@pytest.mark.parametrize("row", SPECS, ids=ids(SPECS))
def test_the_cardinality_is_as_observed_and_len_works_where_it_is_known(row, strategy):
    dataset = strategy.experimental_distribute_dataset(row.build())
    assert dataset.cardinality == row.cardinality
    if row.cardinality >= 0:
        assert len(dataset) == row.cardinality
        assert len(list(dataset)) == row.cardinality
    else:
        why = {INFINITE: "never ends", UNKNOWN: "known only when it has been read"}
        with pytest.raises(TypeError, match=rf"no len\(\): .*{why[row.cardinality]}"):
            len(dataset)


# -- the iteration protocol --------------------------------------------------------------------

SIX = {
    2: [[[0, 1], [2, 3]], [[4], [5]]],
    3: [[[0, 1], [2, 3], []], [[4], [5], []]],
}


@pytest.fixture
def six(strategy):
    """The dataset and its steps, as they were observed."""
    dataset = strategy.experimental_distribute_dataset(Dataset.range(6).batch(4))
    return dataset, SIX[strategy.num_replicas_in_sync]


def test_next_gives_the_steps_and_then_the_end_as_often_as_it_is_asked(strategy, six):
    dataset, steps = six
    iterator = iter(dataset)
    assert_steps(strategy, [next(iterator), next(iterator)], steps)
    for _ in range(2):
        with pytest.raises(StopIteration, match=r"^$"):
            next(iterator)


def test_a_dataset_can_be_iterated_again(strategy, six):
    dataset, steps = six
    for _ in range(3):
        assert_steps(strategy, dataset, steps)


def test_iterators_are_independent(strategy, six):
    dataset, steps = six
    one, other = iter(dataset), iter(dataset)
    values = [next(one), next(other), next(one)]
    assert_steps(strategy, values, [steps[0], steps[0], steps[1]])
    assert_steps(strategy, other, steps[1:])


def test_optionals_hold_the_steps_and_then_nothing(strategy, six):
    dataset, steps = six
    iterator = iter(dataset)
    optionals = [iterator.get_next_as_optional() for _ in range(4)]
    assert [optional.has_value() for optional in optionals] == [True, True, False, False]
    assert_steps(strategy, [optional.get_value() for optional in optionals[:2]], steps)
    # Observed: InvalidArgumentError. Here the error of every iterator that has ended.
    with pytest.raises(tf.errors.OutOfRangeError, match=r"the optional has no value"):
        optionals[2].get_value()


def test_get_next_ends_with_the_out_of_range_error(strategy, six):
    dataset, steps = six
    iterator = iter(dataset)
    assert_steps(strategy, [iterator.get_next(), iterator.get_next()], steps)
    for _ in range(2):
        with pytest.raises(tf.errors.OutOfRangeError, match=r"has ended, after 2 steps"):
            iterator.get_next()


def test_a_dataset_is_not_subscriptable(six):
    with pytest.raises(TypeError, match=r"cannot be subscripted \(got \[0\]\)"):
        six[0][0]


def test_the_observed_attributes_are_there(six):
    # Observed too: auto_shard and build, which are TensorFlow's own and not documented.
    assert {"cardinality", "element_spec", "reduce"} <= set(dir(six[0]))
    of_iterator = {"element_spec", "get_next", "get_next_as_optional", "next"}
    assert of_iterator <= set(dir(iter(six[0])))


def test_a_distributed_dataset_is_not_distributed_again(strategy, six):
    with pytest.raises(TypeError, match=r"DistributedDataset, which is distributed already"):
        strategy.experimental_distribute_dataset(six[0])


def test_run_passes_a_dataset_straight_through(strategy, six):
    assert strategy.run(lambda dataset: dataset, args=(six[0],)) is six[0]


# -- policies and devices ----------------------------------------------------------------------

EVEN = SIX
FILLED = {
    2: [[[0, 1], [2, 3]], [[4, 5], []]],
    3: [[[0, 1], [2], [3]], [[4, 5], [], []]],
}
POLICIES = {"OFF": FILLED, "AUTO": EVEN, "FILE": FILLED, "DATA": EVEN, "HINT": FILLED}


def with_policy(policy):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = Policy[policy]
    return Dataset.range(6).batch(4).with_options(options)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_divides_a_short_batch_as_observed(policy, strategy):
    count = strategy.num_replicas_in_sync
    attached = strategy.experimental_distribute_dataset(with_policy(policy))
    assert_steps(strategy, attached, POLICIES[policy][count])
    passed = strategy.experimental_distribute_dataset(
        Dataset.range(6).batch(4), auto_shard_policy=policy
    )
    assert_steps(strategy, passed, POLICIES[policy][count])


@pytest.mark.parametrize("policy", POLICIES)
def test_one_replica_gets_the_bare_batch_under_every_policy(policy):
    dataset = mirrored(1).experimental_distribute_dataset(with_policy(policy))
    assert_bare_steps(dataset, [[[0, 1, 2, 3]], [[4, 5]]])


@pytest.mark.parametrize("fetch", [None, True])
def test_fetched_batches_are_on_the_devices_of_their_replicas(fetch, strategy):
    count = strategy.num_replicas_in_sync
    options = tf.distribute.InputOptions(experimental_fetch_to_device=fetch)
    dataset = strategy.experimental_distribute_dataset(Dataset.range(6).batch(4), options)
    assert_steps(strategy, dataset, EVEN[count])
    for value in dataset:
        devices = [part.devices() for part in strategy.experimental_local_results(value)]
        assert devices == [{device} for device in jax.devices()[:count]]


def test_batches_that_are_not_fetched_are_on_the_host(strategy):
    # Observed: on CPU:0. Here they are NumPy arrays, whatever the default device is.
    options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
    dataset = strategy.experimental_distribute_dataset(Dataset.range(6).batch(4), options)
    assert_steps(strategy, dataset, EVEN[strategy.num_replicas_in_sync])
    for value in dataset:
        assert all(type(part) is np.ndarray for part in strategy.experimental_local_results(value))


# -- what is computed from the steps -----------------------------------------------------------


def test_a_function_loops_over_a_dataset(strategy):
    dataset = strategy.experimental_distribute_dataset(Dataset.range(7).batch(4))

    @tf.function
    def total_and_steps(dataset):
        total, steps = 0, 0
        for batch in dataset:
            parts = strategy.run(tf.reduce_sum, args=(batch,))
            total += strategy.reduce("SUM", parts, axis=None)
            steps += 1
        return total, steps

    assert [int(x) for x in total_and_steps(dataset)] == [21, 2]


REDUCED = {
    2: {
        ("SUM", None): [6, 15],
        ("MEAN", None): [3.0, 7.5],
        ("SUM", 0): [6, 15],
        ("MEAN", 0): [1.5, 5.0],
    },
    3: {
        ("SUM", None): [6, 15],
        ("MEAN", None): [2.0, 5.0],
        ("SUM", 0): [6, 15],
        ("MEAN", 0): [1.5, 5.0],
    },
}
"""Without an axis the sums of the replicas are reduced, with one the batches themselves."""


@pytest.mark.parametrize(("op", "axis"), REDUCED[2])
def test_steps_are_reduced_as_observed(op, axis, strategy):
    dataset = strategy.experimental_distribute_dataset(Dataset.range(7).batch(4))
    got = []
    for batch in dataset:
        value = strategy.run(tf.reduce_sum, args=(batch,)) if axis is None else batch
        got.append(float(strategy.reduce(op, value, axis=axis)))
    assert got == REDUCED[strategy.num_replicas_in_sync][op, axis]


OVER_DIM_0 = {
    2: {"SUM": [6, 22, 8], "MEAN": [1.5, 5.5, 8.0]},
    3: {"SUM": [15, 51, 12], "MEAN": [2.5, 8.5, 12.0]},
}
GATHERED = {
    2: [[0, 1, 2, 3], [4, 5, 6, 7], [8]],
    3: [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11], [12]],
}
MEANS = {
    2: [[0.5, 2.5], [4.5, 6.5], [8.0, np.nan]],
    3: [[0.5, 2.5, 4.5], [6.5, 8.5, 10.5], [12.0, np.nan, np.nan]],
}


@pytest.fixture
def with_empty(strategy):
    """Two examples for each replica, twice, and then one for all."""
    count = strategy.num_replicas_in_sync
    return strategy.experimental_distribute_dataset(Dataset.range(4 * count + 1).batch(2 * count))


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_a_replica_without_examples_counts_nothing(op, strategy, with_empty):
    got = [float(strategy.reduce(op, batch, axis=0)) for batch in with_empty]
    assert got == OVER_DIM_0[strategy.num_replicas_in_sync][op]


def test_the_mean_that_a_replica_takes_of_nothing_is_nan_but_never_that_of_reduce(
    strategy, with_empty
):
    # The NaN is the user's own mean; reduce over dim 0 counts examples and makes none.
    def own_mean(x):
        return tf.reduce_mean(tf.cast(x, tf.float32))

    got = [strategy.run(own_mean, args=(batch,)) for batch in with_empty]
    np.testing.assert_array_equal(lists(strategy, got), MEANS[strategy.num_replicas_in_sync])
    for batch in with_empty:
        assert np.isfinite(strategy.reduce("MEAN", batch, axis=0))


def test_gather_puts_the_parts_together(strategy, with_empty):
    gathered = [np.asarray(strategy.gather(batch, axis=0)).tolist() for batch in with_empty]
    assert gathered == GATHERED[strategy.num_replicas_in_sync]


TRACES = {
    2: [(2,), (1,), (0,)],
    3: [(2,), (0,), (1,), (0,)],
}
"""Observed: one trace for every replica of every new step, of shape (None,) with a signature.
Here one for every distinct shape of a step, and XLA has the true shapes in both cases."""


@pytest.mark.parametrize("has_signature", [False, True])
def test_uneven_steps_are_traced_once_for_each_shape(has_signature, strategy):
    dataset = strategy.experimental_distribute_dataset(Dataset.range(5).batch(4))
    traces = []

    @tf.function(input_signature=[dataset.element_spec] if has_signature else None)
    def replica_fn(x):
        traces.append(x.shape)
        return tf.reduce_sum(x)

    for _ in range(2):
        for batch in dataset:
            strategy.run(replica_fn, args=(batch,))
        assert traces == TRACES[strategy.num_replicas_in_sync]


# -- values from functions ---------------------------------------------------------------------


def test_values_from_a_function_are_one_for_each_replica(strategy):
    count = strategy.num_replicas_in_sync

    def value_fn(context):
        return str(context.replica_id_in_sync_group), str(context.num_replicas_in_sync)

    values = strategy.experimental_distribute_values_from_function(value_fn)
    parts = strategy.experimental_local_results(values)
    assert parts == tuple((str(i), str(count)) for i in range(count))
    arrays = strategy.experimental_distribute_values_from_function(
        lambda context: np.ones(2, np.float32)
    )
    assert [part.dtype for part in strategy.experimental_local_results(arrays)] == (
        [np.float32] * count
    )


def test_values_from_a_function_may_be_datasets(strategy):
    count = strategy.num_replicas_in_sync
    values = strategy.experimental_distribute_values_from_function(lambda _: Dataset.range(3))
    assert isinstance(values, rx.PerReplica)
    parts = strategy.experimental_local_results(values)
    assert [type(part) for part in parts] == [Dataset] * count
    assert [list(part) for part in parts] == [[0, 1, 2]] * count
