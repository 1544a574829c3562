"""cache, prefetch, options, and what a dataset is called."""

import numpy as np
import pytest

from replicax.data import AUTOTUNE, AutoShardPolicy, Dataset, DistributeOptions, Options
from replicax.input.pipeline.missing import INSTEAD


def counted(make):
    calls = []
    return calls, make.map(lambda x: calls.append(int(x)) or x * 10)


@pytest.mark.parametrize("make", [lambda d: d, lambda d: d.filter(lambda x: True)])
def test_cache_computes_every_element_once(make):
    calls, dataset = counted(make(Dataset.range(4)))
    cached = dataset.cache()
    assert calls == []
    assert list(cached) == list(cached) == list(cached.repeat(2))[4:] == [0, 10, 20, 30]
    assert calls == [0, 1, 2, 3]


@pytest.mark.parametrize("make", [lambda d: d, lambda d: d.filter(lambda x: True)])
def test_cache_keeps_the_order_of_the_first_pass(make):
    dataset = make(Dataset.range(30)).shuffle(30).cache()
    first = [int(x) for x in dataset]
    assert first != list(range(30))
    assert [int(x) for x in dataset] == first


def test_a_shuffle_after_cache_still_reshuffles():
    dataset = Dataset.range(30).cache().shuffle(30)
    assert [int(x) for x in dataset] != [int(x) for x in dataset]


def test_a_pass_that_is_given_up_leaves_no_half_cache():
    _calls, dataset = counted(Dataset.range(4).filter(lambda x: True))
    cached = dataset.cache()
    next(iter(cached))
    assert list(cached) == [0, 10, 20, 30]


def test_a_cached_element_cannot_be_written_to():
    cached = Dataset.range(2).map(lambda x: np.zeros(2)).cache()
    list(cached)
    with pytest.raises(ValueError, match="read-only"):
        next(iter(cached))[0] = 1


def test_cache_does_not_write_files():
    with pytest.raises(ValueError, match=r"cached in memory only. Call cache\(\) without it"):
        Dataset.range(3).cache("elements")


@pytest.mark.parametrize("buffer_size", [0, 1, 7, AUTOTUNE])
@pytest.mark.parametrize("make", [lambda d: d, lambda d: d.filter(lambda x: True)])
def test_prefetch_changes_nothing_but_the_time(make, buffer_size):
    assert list(make(Dataset.range(5)).prefetch(buffer_size)) == [0, 1, 2, 3, 4]


def test_a_prefetch_buffer_is_not_negative():
    with pytest.raises(ValueError, match="prefetch got -3; expected 0 or more"):
        Dataset.range(3).prefetch(-3)


def test_options_are_copied_when_they_are_attached():
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA
    dataset = Dataset.range(3).with_options(options)
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.OFF
    attached = dataset.batch(2).options()
    assert attached.experimental_distribute.auto_shard_policy is AutoShardPolicy.DATA
    assert list(dataset) == [0, 1, 2]


def test_later_options_replace_only_what_they_set():
    first, second = Options(), Options()
    first.experimental_distribute = DistributeOptions()
    first.experimental_distribute.auto_shard_policy = AutoShardPolicy.FILE
    second.deterministic = True
    merged = Dataset.range(3).with_options(first).with_options(second).options()
    assert merged.experimental_distribute.auto_shard_policy is AutoShardPolicy.FILE
    assert merged.deterministic is True


def test_options_of_zipped_datasets_come_together():
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.OFF
    zipped = Dataset.zip(Dataset.range(2), Dataset.range(2).with_options(options))
    assert zipped.options().experimental_distribute.auto_shard_policy is AutoShardPolicy.OFF


def test_a_policy_that_was_not_set_reads_as_auto_and_counts_as_none():
    options = Dataset.range(3).options()
    assert options.experimental_distribute.auto_shard_policy is AutoShardPolicy.AUTO
    assert options._auto_shard_policy is None
    assert options == Options()


def test_an_option_that_does_not_exist_is_refused():
    with pytest.raises(AttributeError, match="Options has no 'threading'; it has deterministic"):
        Options().threading = 1
    with pytest.raises(AttributeError, match="DistributeOptions has no 'policy'; it has auto"):
        _ = DistributeOptions().policy
    with pytest.raises(TypeError, match="auto_shard_policy is 'DATA'; expected one of"):
        Options().experimental_distribute.auto_shard_policy = "DATA"
    with pytest.raises(TypeError, match="experimental_distribute is 1; expected a Distribute"):
        Options().experimental_distribute = 1
    with pytest.raises(TypeError, match=r"with_options got \{\}; expected data.Options"):
        Dataset.range(3).with_options({})


@pytest.mark.parametrize("name", sorted(INSTEAD))
def test_a_method_that_is_not_here_says_what_to_use(name):
    with pytest.raises(AttributeError, match=f"Dataset has no '{name}'. Use "):
        getattr(Dataset.range(3), name)
    with pytest.raises(AttributeError, match=f"Dataset has no '{name}'. Use "):
        getattr(Dataset, name)


def test_an_unknown_attribute_points_to_grain():
    with pytest.raises(AttributeError, match="Grain has more transformations"):
        _ = Dataset.range(3).no_such_thing


def test_a_repr_shows_the_last_step_and_the_length():
    assert repr(Dataset.range(6).batch(2)) == "<Dataset Batch, 3 elements>"
    assert repr(Dataset.range(6).repeat()) == "<Dataset Repeat, endless>"
    assert repr(Dataset.range(6).filter(bool)) == "<Dataset Filter, of unknown length>"


def test_a_dataset_is_true_even_if_it_is_empty_or_endless():
    assert Dataset.range(0)
    assert Dataset.range(3).repeat()


def test_a_dataset_can_be_extended_twice():
    base = Dataset.range(4)
    assert (list(base.take(1)), list(base.skip(3)), list(base)) == ([0], [3], [0, 1, 2, 3])
