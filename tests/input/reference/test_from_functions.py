"""Pipelines of per-replica batches are taken as TensorFlow was observed to take them."""

import contextlib

import jax
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from replicax.core.spec import PerReplicaSpec
from tests.input.reference import from_functions
from tests.input.reference.from_functions import GLOBAL_BATCH_SIZE, PER_REPLICA, ROWS
from tests.input.reference.rows import (
    REPLICAS,
    assert_same,
    assert_steps,
    expected_arrays,
    ids,
    lists,
    mirrored,
)

Dataset = tf.data.Dataset


@pytest.fixture(params=REPLICAS, ids=lambda count: f"{count} replicas")
def strategy(request):
    return mirrored(request.param)


class Made:
    """A ``dataset_fn`` that records what it was told."""

    def __init__(self, build):
        self._build = build
        self.calls = []

    def __call__(self, context):
        self.calls.append(
            (
                context.input_pipeline_id,
                context.num_input_pipelines,
                context.num_replicas_in_sync,
                context.get_per_replica_batch_size(GLOBAL_BATCH_SIZE),
            )
        )
        return self._build()


def distributed(strategy, row, dataset_fn):
    if row.after_per_replica:
        strategy.distribute_datasets_from_function(lambda _: row.build(), PER_REPLICA)
    return strategy.distribute_datasets_from_function(dataset_fn, row.options)


def warned(row, count):
    if row.warning is None:
        return contextlib.nullcontext()
    return pytest.warns(rx.ReplicaxWarning, match=row.warning[count])


@pytest.mark.parametrize("x64", [False, True], ids=["x32", "x64"])
@pytest.mark.parametrize("row", ROWS, ids=ids(ROWS))
def test_an_observed_step_is_reproduced_in_every_pass(row, strategy, x64):
    count = strategy.num_replicas_in_sync
    with jax.enable_x64(x64):
        dataset = distributed(strategy, row, lambda _: row.build())
        with warned(row, count):
            assert_steps(strategy, dataset, row.steps[count], row.dtype)
        assert_steps(strategy, dataset, row.steps[count], row.dtype)


@pytest.mark.parametrize("row", ROWS, ids=ids(ROWS))
def test_dataset_fn_is_told_its_place_once(row, strategy):
    count = strategy.num_replicas_in_sync
    dataset_fn = Made(row.build)
    dataset = distributed(strategy, row, dataset_fn)
    with warned(row, count):
        passes = [list(dataset) for _ in range(2)]
    assert len(passes[0]) == len(passes[1])
    each = GLOBAL_BATCH_SIZE // count
    if row.options is PER_REPLICA:
        assert dataset_fn.calls == [(i, count, count, each) for i in range(count)]
    else:
        assert dataset_fn.calls == [(0, 1, count, each)]


@pytest.mark.parametrize("row", ROWS, ids=ids(ROWS))
def test_spec_and_number_of_steps_are_known_without_reading(row, strategy):
    count = strategy.num_replicas_in_sync
    dataset = distributed(strategy, row, lambda _: row.build())
    own = from_functions.ANY_SIZE if row.spec is None else row.spec[count]

    def replicated(spec):
        narrow = tf.TensorSpec(spec.shape, jax.dtypes.canonicalize_dtype(spec.dtype))
        return PerReplicaSpec(*[narrow] * count)

    expected = {k: replicated(v) for k, v in own.items()} if type(own) is dict else replicated(own)
    assert dataset.element_spec == expected
    assert iter(dataset).element_spec == expected
    assert len(dataset) == dataset.cardinality == len(row.steps[count])
    assert row.build().cardinality() == row.num_batches


@pytest.mark.parametrize("row", ROWS, ids=ids(ROWS))
def test_with_one_replica_every_element_is_a_step_of_its_own(row):
    strategy = mirrored(1)
    dataset = distributed(strategy, row, lambda _: row.build())
    elements = [part for step in row.steps[2] for part in step]
    if row.options is PER_REPLICA:
        elements = [step[0] for step in row.steps[2]]
    elif row.warning is not None:
        elements = [0, 1, 2, 3, 4]  # none is left over
    elements = [x for x in elements if not isinstance(x, list) or x]
    values = list(dataset)
    assert len(values) == len(elements) == row.num_batches
    for value, element in zip(values, elements, strict=True):
        assert not isinstance(value, rx.DistributedValues)
        assert_same(value, expected_arrays(element, row.dtype))


def test_batches_stay_on_the_host_if_they_are_not_fetched(strategy):
    row = next(row for row in ROWS if row.name == "from_fn fetch_to_device False")
    for value in distributed(strategy, row, lambda _: row.build()):
        assert all(type(part) is np.ndarray for part in value.values)


def test_a_list_of_batches_may_be_returned(strategy):
    # Observed: AttributeError, because only tf.data was accepted.
    count = strategy.num_replicas_in_sync
    batches = [np.arange(2), np.arange(2, 4), np.arange(4, 6)]
    dataset = strategy.distribute_datasets_from_function(lambda _: batches)
    assert_steps(strategy, dataset, from_functions.THREE[count])


def test_a_batch_size_that_does_not_divide_is_refused_with_both_numbers(strategy):
    count = strategy.num_replicas_in_sync
    with pytest.raises(ValueError, match=rf"size is 7, which {count} replicas do not divide"):
        strategy.distribute_datasets_from_function(
            lambda context: Dataset.range(8).batch(context.get_per_replica_batch_size(7))
        )


def test_one_dataset_for_all_cannot_be_per_replica(strategy):
    with pytest.raises(NotImplementedError, match=r"PER_REPLICA needs a dataset for each replica"):
        strategy.experimental_distribute_dataset(Dataset.range(8).batch(4), PER_REPLICA)


def test_optionals_end_where_the_steps_do(strategy):
    count = strategy.num_replicas_in_sync
    dataset = strategy.distribute_datasets_from_function(lambda _: Dataset.range(6).batch(2))
    iterator = iter(dataset)
    optionals = [iterator.get_next_as_optional() for _ in range(3)]
    steps = from_functions.THREE[count]
    missing = [False] * (3 - len(steps))
    assert [optional.has_value() for optional in optionals] == [True] * len(steps) + missing
    values = [optional.get_value() for optional in optionals[: len(steps)]]
    assert lists(strategy, values) == steps
