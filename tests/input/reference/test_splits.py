"""Global batches are divided among 2 and 3 replicas as TensorFlow was observed to divide them."""

import jax
import numpy as np
import pytest

import replicax.tf as tf
from tests.input.reference.rows import (
    REPLICAS,
    assert_bare_steps,
    assert_steps,
    ids,
    lists,
    mirrored,
)
from tests.input.reference.splits import ERRORS, SHUFFLED, SPLITS

PER_REPLICA = tf.distribute.InputOptions(
    experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA
)


@pytest.fixture(params=[False, True], ids=["x32", "x64"])
def x64(request):
    with jax.enable_x64(request.param):
        yield request.param


@pytest.fixture(params=[1, *REPLICAS], ids=lambda count: f"{count} replicas")
def strategy(request):
    return mirrored(request.param)


def distributed(strategy, row):
    if row.after_per_replica:
        strategy.distribute_datasets_from_function(lambda _: row.build(), PER_REPLICA)
    return strategy.experimental_distribute_dataset(row.build())


@pytest.mark.parametrize("row", SPLITS, ids=ids(SPLITS))
def test_an_observed_split_is_reproduced_and_for_one_replica_is_the_bare_batch(row, strategy, x64):
    count = strategy.num_replicas_in_sync
    dataset = distributed(strategy, row)
    for _ in range(2):  # the second pass is as the first
        if count == 1:
            assert_bare_steps(dataset, row.steps[2], row.dtype)
        else:
            assert_steps(strategy, dataset, row.steps[count], row.dtype)


@pytest.mark.parametrize("row", SPLITS, ids=ids(SPLITS))
def test_len_and_cardinality_are_the_steps_where_they_are_known(row, strategy):
    dataset = distributed(strategy, row)
    if dataset.cardinality >= 0:
        assert len(dataset) == dataset.cardinality == len(row.steps[2])
    else:
        assert dataset.cardinality == tf.data.UNKNOWN_CARDINALITY
        assert "generator" in row.name or "bucket" in row.name


@pytest.mark.parametrize("row", SHUFFLED, ids=ids(SHUFFLED))
def test_a_shuffled_pass_has_the_observed_sizes_and_every_element_once(row, strategy):
    count = strategy.num_replicas_in_sync
    dataset = strategy.experimental_distribute_dataset(row.build())
    passes = [lists(strategy, dataset) for _ in range(2)]
    sizes = [[sum(step)] for step in row.steps[2]] if count == 1 else row.steps[count]
    for steps in passes:
        assert [[len(part) for part in step] for step in steps] == sizes
        assert sorted(x for step in steps for part in step for x in part) == list(range(8))
    assert passes[0] != passes[1]  # reshuffled


@pytest.mark.parametrize("row", ERRORS, ids=ids(ERRORS))
def test_what_cannot_be_divided_is_refused_with_words(row, strategy):
    with pytest.raises(row.error, match=row.text):
        list(strategy.experimental_distribute_dataset(row.build()))


def test_a_list_of_batches_is_a_dataset(strategy):
    # Observed: AttributeError, because only tf.data was accepted.
    dataset = strategy.experimental_distribute_dataset([np.arange(4), np.arange(4, 6)])
    together = [[x for part in step for x in part] for step in lists(strategy, dataset)]
    assert together == [[0, 1, 2, 3], [4, 5]]
