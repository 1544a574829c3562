"""The order of a shuffle: a permutation, near or far, a function of seed and pass."""

import itertools

import pytest

from replicax.data import UNKNOWN_CARDINALITY, Dataset


def ints(dataset):
    return [int(x) for x in dataset]


def test_a_full_shuffle_is_a_permutation_that_moves_elements_far():
    order = ints(Dataset.range(100).shuffle(100))
    assert sorted(order) == list(range(100))
    assert max(abs(place - x) for place, x in enumerate(order)) > 50


@pytest.mark.parametrize("size", [97, 100, 3])
def test_a_small_buffer_limits_how_far_elements_move(size):
    order = ints(Dataset.range(size).shuffle(10))
    assert sorted(order) == list(range(size))
    assert max(abs(place - x) for place, x in enumerate(order)) < 10
    assert order != list(range(size))


def test_a_buffer_of_one_keeps_the_order():
    assert ints(Dataset.range(10).shuffle(1)) == list(range(10))


def test_the_same_seed_gives_the_same_order_and_another_seed_another():
    orders = [ints(Dataset.range(50).shuffle(50, seed=seed)) for seed in (1, 1, 2, None)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert orders[3] == ints(Dataset.range(50).shuffle(50))


def test_every_pass_has_another_order():
    dataset = Dataset.range(50).shuffle(50)
    orders = [tuple(ints(dataset)) for _ in range(5)]
    assert len(set(orders)) == 5


def test_a_shuffle_that_does_not_reshuffle_keeps_its_order():
    dataset = Dataset.range(50).shuffle(50, reshuffle_each_iteration=False)
    first = ints(dataset)
    assert ints(dataset) == first
    assert ints(dataset.repeat(2)) == first * 2


def test_the_passes_of_repeat_are_the_passes_of_the_dataset():
    dataset = Dataset.range(20).shuffle(20, seed=3)
    passes = list(itertools.chain.from_iterable(ints(dataset) for _ in range(4)))
    twice = Dataset.range(20).shuffle(20, seed=3).repeat(2)
    assert ints(twice) + ints(twice) == passes


def test_an_endless_repeat_reshuffles_and_its_next_pass_begins_with_a_whole_epoch():
    dataset = Dataset.range(7).shuffle(7).repeat().take(21)
    for _ in range(2):
        order = ints(dataset)
        epochs = [order[i : i + 7] for i in (0, 7, 14)]
        assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    twice = ints(dataset.repeat(2))
    assert all(sorted(twice[i : i + 7]) == list(range(7)) for i in range(0, 42, 7))


def test_shuffling_batches_moves_whole_batches():
    dataset = Dataset.range(8).batch(2).shuffle(4, seed=1)
    batches = [tuple(batch) for batch in dataset]
    assert sorted(batches) == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_a_stream_is_shuffled_and_reshuffled_too():
    dataset = Dataset.range(60).filter(lambda x: x < 50).shuffle(20, seed=5)
    first, second = ints(dataset), ints(dataset)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert max(abs(place - x) for place, x in enumerate(first)) < 20
    again = Dataset.range(60).filter(lambda x: x < 50).shuffle(20, seed=5).repeat(2)
    assert ints(again) == first + second


def test_the_cardinality_of_a_dataset_is_a_buffer_size():
    dataset = Dataset.range(30)
    assert sorted(ints(dataset.shuffle(dataset.cardinality()))) == list(range(30))
    stream = dataset.filter(lambda x: True)
    assert stream.cardinality() == UNKNOWN_CARDINALITY
    order = ints(stream.shuffle(stream.cardinality()))
    assert sorted(order) == list(range(30))
    assert order != list(range(30))


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "buffer_size=0; expected 1 or more"),
        (-1, "The dataset is endless: give a number"),
        (-3, "buffer_size=-3; expected 1 or more"),
    ],
)
def test_a_buffer_that_holds_nothing_is_refused(size, text):
    with pytest.raises(ValueError, match=text):
        Dataset.range(3).shuffle(size)


def test_a_buffer_size_is_an_int():
    with pytest.raises(TypeError, match=r"shuffle got buffer_size=2.5; expected an int"):
        Dataset.range(3).shuffle(2.5)
