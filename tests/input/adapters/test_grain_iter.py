"""Grain's IterDataset and DataLoader: streams, and what is a MapDataset in other words."""

import multiprocessing

import grain
import numpy as np
import pytest
from absl import flags

from replicax.core.enums import AutoShardPolicy
from replicax.core.errors import BatchError
from replicax.input.adapters import grain_iter, grain_loader
from replicax.input.source import INFINITE, UNKNOWN, IndexedSource
from tests.input.adapters.contract import wait_until


def stream(num_examples=10):
    return grain.MapDataset.range(num_examples).to_iter_dataset()


@pytest.mark.parametrize(
    ("name", "dataset", "is_indexed"),
    [
        ("batches", lambda: stream().batch(3), True),
        ("mapped batches", lambda: stream().batch(3).map(lambda b: b + 1), True),
        ("seeded", lambda: stream().seed(1).batch(3), True),
        (
            "read ahead",
            lambda: grain.experimental.ThreadPrefetchIterDataset(
                stream().batch(3), prefetch_buffer_size=2
            ),
            True,
        ),
        ("filtered", lambda: stream().filter(lambda x: x > 2).batch(3), False),
        ("random", lambda: stream().seed(1).random_map(lambda x, r: x).batch(3), False),
        ("repeated", lambda: grain.experimental.RepeatIterDataset(stream().batch(3), 2), False),
        ("by processes", lambda: stream().batch(3).mp_prefetch(), False),
    ],
)
def test_a_stream_is_indexed_where_it_is_a_map_dataset_in_other_words(name, dataset, is_indexed):
    assert isinstance(grain_iter.source_of(dataset()), IndexedSource) == is_indexed


def test_a_filter_before_the_batch_is_exact_from_any_start():
    source = grain_iter.source_of(stream(20).filter(lambda x: x % 3 == 0).batch(2))
    assert [b.tolist() for b in source.open(epoch=0, start=0)] == [[0, 3], [6, 9], [12, 15], [18]]
    assert [b.tolist() for b in source.open(epoch=0, start=2)] == [[12, 15], [18]]


def test_random_functions_of_a_stream_are_the_same_in_each_pass_and_from_any_start():
    noisy = stream(9).seed(7).random_map(lambda x, rng: x + rng.random()).batch(2)
    source = grain_iter.source_of(noisy)
    once = [b.tolist() for b in source.open(epoch=0, start=0)]
    assert once == [b.tolist() for b in source.open(epoch=1, start=0)]
    assert once[2:] == [b.tolist() for b in source.open(epoch=0, start=2)]


@pytest.mark.parametrize(
    ("dataset", "cardinality", "batch_size"),
    [
        (lambda: grain.experimental.RepeatIterDataset(stream().batch(3)), INFINITE, 3),
        (lambda: stream().filter(bool).batch(3), UNKNOWN, 3),
        (lambda: stream().seed(1).random_map(lambda x, r: x).batch(3).filter(bool), UNKNOWN, 3),
        (
            lambda: grain.experimental.LimitIterDataset(
                grain.experimental.RepeatIterDataset(stream().batch(3)), 2
            ),
            UNKNOWN,
            3,
        ),
        (
            lambda: grain.experimental.RebatchIterDataset(stream().filter(bool).batch(2), 5),
            UNKNOWN,
            5,
        ),
        (lambda: stream().filter(bool).batch(3).map(lambda b: b[:2]), UNKNOWN, None),
    ],
)
def test_what_is_known_of_a_stream(dataset, cardinality, batch_size):
    source = grain_iter.source_of(dataset())
    assert (source.cardinality, source.batch_size) == (cardinality, batch_size)


def test_the_spec_of_a_stream_is_what_grain_declares():
    source = grain_iter.source_of(stream().filter(bool).batch(3, drop_remainder=True))
    assert source.element_spec.shape == (3,)
    assert source.element_spec.dtype == np.int64


def test_a_stream_without_a_batch_step_is_refused():
    with pytest.raises(BatchError, match=r"a Grain IterDataset has no batch step.*batch\("):
        grain_iter.source_of(stream().filter(bool)).open(epoch=0, start=0)
    with pytest.raises(BatchError, match=r"a Grain IterDataset has no batch step.*batch\("):
        grain_iter.source_of(stream()).open(epoch=0, start=0)


def test_a_stream_of_examples_can_be_read_where_they_need_not_be_batches():
    for dataset in (stream(3), stream(3).filter(lambda x: True)):
        elements = grain_iter.source_of(dataset).open_elements(epoch=0, start=1)
        assert [int(x) for x in elements] == [1, 2]


def test_scalars_of_a_stream_are_refused():
    source = grain_iter.source_of(stream().map(lambda x: {"n": x}))
    with pytest.raises(BatchError, match=r"leaf \['n'\] of a Grain IterDataset is a scalar, 0"):
        next(source.open(epoch=0, start=0))


def loader(operations, *, shards=1, num_epochs=1):
    return grain.DataLoader(
        data_source=grain.sources.RangeDataSource(0, 10, 1),
        sampler=grain.samplers.IndexSampler(10, num_epochs=num_epochs, seed=1),
        operations=operations,
        shard_options=grain.sharding.ShardOptions(shard_index=0, shard_count=shards),
    )


def test_a_loader_with_shards_of_its_own_is_divided_already():
    batch = [grain.transforms.Batch(2)]
    assert grain_loader.source_of(loader(batch, shards=2)).auto_shard_policy is AutoShardPolicy.HINT
    assert grain_loader.source_of(loader(batch)).auto_shard_policy is None


def test_a_loader_without_end_is_infinite():
    source = grain_loader.source_of(loader([grain.transforms.Batch(2)], num_epochs=None))
    assert source.cardinality == INFINITE


def test_a_loader_without_operations_is_refused():
    with pytest.raises(BatchError, match=r"without operations gives single records.*Batch"):
        grain_loader.source_of(loader([])).open(epoch=0, start=0)
    assert len(list(grain_loader.source_of(loader([])).open_elements(epoch=0, start=4))) == 6


@pytest.fixture
def parsed_flags():
    """Grain starts processes only in a program that has parsed its absl flags."""
    were_parsed = flags.FLAGS.is_parsed()
    flags.FLAGS.mark_as_parsed()
    yield
    if not were_parsed:
        flags.FLAGS.unparse_flags()


@pytest.mark.usefixtures("parsed_flags")
@pytest.mark.parametrize("ending", ["closed", "dropped"])
def test_processes_that_read_ahead_end_with_the_pass(ending):
    options = grain.MultiprocessingOptions(num_workers=1)
    source = grain_iter.source_of(stream().batch(3).mp_prefetch(options))
    reading = source.open(epoch=0, start=1)
    assert next(reading).tolist() == [3, 4, 5]
    assert len(multiprocessing.active_children()) == 1
    if ending == "closed":
        reading.close()
    del reading
    assert wait_until(lambda: not multiprocessing.active_children())
