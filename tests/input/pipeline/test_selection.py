"""take, skip, shard, repeat, zip, concatenate, and how long they are."""

import pytest

from replicax.data import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, Dataset

MAKERS = {
    "indexed": Dataset.range,
    "stream": lambda n: Dataset.range(n).filter(lambda x: True),
}
pytestmark = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def ints(dataset):
    return [int(x) for x in dataset]


def test_take_and_skip_divide_a_dataset(make):
    assert ints(make(5).take(2)) == [0, 1]
    assert ints(make(5).skip(2)) == [2, 3, 4]
    assert (
        ints(make(5).take(9)) == ints(make(5).skip(0)) == ints(make(5).take(-1)) == list(range(5))
    )
    assert ints(make(5).take(0)) == ints(make(5).skip(9)) == ints(make(5).skip(-1)) == []


def test_shards_are_every_nth_element(make):
    assert [ints(make(7).shard(3, index)) for index in range(3)] == [[0, 3, 6], [1, 4], [2, 5]]


def test_repeat_goes_through_it_again(make):
    assert ints(make(3).repeat(2)) == [0, 1, 2, 0, 1, 2]
    assert ints(make(3).repeat(0)) == []
    assert ints(make(3).repeat(2).repeat(2)) == [0, 1, 2] * 4


@pytest.mark.parametrize("count", [None, -1])
def test_repeat_without_a_count_never_ends(make, count):
    endless = make(3).repeat(count)
    assert endless.cardinality() == INFINITE_CARDINALITY
    assert ints(endless.take(7)) == [0, 1, 2, 0, 1, 2, 0]
    assert ints(endless.skip(2).take(2)) == [2, 0]
    assert ints(endless.repeat(2).take(4)) == [0, 1, 2, 0]
    assert [b.tolist() for b in endless.batch(2).take(2)] == [[0, 1], [2, 0]]
    assert ints(endless.shard(2, 1).take(3)) == [1, 0, 2]


def test_repeating_nothing_ends(make):
    assert ints(make(0).repeat()) == []


def test_zip_ends_with_the_shortest(make):
    assert list(Dataset.zip(make(3), make(5).skip(1))) == [(0, 1), (1, 2), (2, 3)]
    assert list(Dataset.zip((make(2), make(2).repeat()))) == [(0, 0), (1, 1)]
    assert list(Dataset.zip({"a": make(1), "b": (make(2),)})) == [{"a": 0, "b": (0,)}]
    assert list(Dataset.zip(make(2))) == [0, 1]


def test_a_zipped_endless_dataset_begins_anew_in_every_pass(make):
    zipped = Dataset.zip(make(3), make(2).repeat())
    assert list(zipped.repeat(2)) == [(0, 0), (1, 1), (2, 0)] * 2


def test_concatenate_appends(make):
    assert ints(make(2).concatenate(make(3))) == [0, 1, 0, 1, 2]
    assert ints(make(0).concatenate(make(2)).concatenate(make(0))) == [0, 1]
    assert ints(make(1).concatenate(make(2).repeat()).take(4)) == [0, 0, 1, 0]
    assert ints(make(2).repeat().concatenate(make(3)).take(3)) == [0, 1, 0]
    assert ints(make(2).concatenate(make(1)).repeat(2)) == [0, 1, 0] * 2


def test_an_endless_dataset_has_no_len(make):
    with pytest.raises(TypeError, match=r"endless, so it has no len\(\). Use take"):
        len(make(3).repeat())


def test_a_mistake_is_named(make):
    dataset = make(4)
    with pytest.raises(ValueError, match="take got -2; expected 0 or more, or -1 for all"):
        dataset.take(-2)
    with pytest.raises(ValueError, match="skip got -2; expected 0 or more"):
        dataset.skip(-2)
    with pytest.raises(ValueError, match="repeat got -2; expected 0 or more"):
        dataset.repeat(-2)
    with pytest.raises(
        ValueError, match=r"shard got num_shards=2, index=2; .* 0 to num_shards - 1"
    ):
        dataset.shard(2, 2)
    with pytest.raises(ValueError, match="shard got num_shards=0, index=0"):
        dataset.shard(0, 0)
    with pytest.raises(TypeError, match=r"zip got list .*expected datasets"):
        Dataset.zip((dataset, [1, 2]))
    with pytest.raises(TypeError, match=r"zip got tuple .*expected datasets"):
        Dataset.zip(())
    with pytest.raises(TypeError, match="concatenate got list; expected a Dataset"):
        dataset.concatenate([1])


def test_lengths_are_known_where_they_can_be(make):
    known = make(5).cardinality() == 5
    lengths = [
        (make(5).take(2), 2),
        (make(5).skip(2), 3),
        (make(5).shard(2, 1), 2),
        (make(5).repeat(3), 15),
        (make(5).concatenate(make(2)), 7),
        (Dataset.zip(make(5), make(3)), 3),
        (make(5).enumerate(), 5),
        (make(5).cache().prefetch(1), 5),
    ]
    for dataset, length in lengths:
        assert dataset.cardinality() == (length if known else UNKNOWN_CARDINALITY)
        assert len(list(dataset)) == length


def test_an_unknown_length_is_no_len(make):
    with pytest.raises(TypeError, match="not known before it is read"):
        len(make(3).filter(lambda x: True))
