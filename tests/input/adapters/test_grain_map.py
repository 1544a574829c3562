"""Grain's MapDataset in parts: exact for every pipeline, frugal where that is exact."""

import itertools

import grain
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicax.core.errors import BatchError
from replicax.core.spec import TensorSpec
from replicax.input.adapters import grain_iter, grain_map
from replicax.input.source import INFINITE, UNKNOWN
from tests.input.adapters.contract import part_for

MOST = 12  # batches looked at, some pipelines have no end


def examples(num_examples=23):
    # Not shuffled: in Grain that takes milliseconds an example when there are only a few.
    return grain.MapDataset.source(np.arange(num_examples)).seed(3)


def noisy(num_examples=23):
    return examples(num_examples).random_map(lambda x, rng: x + rng.random())


def zipped():
    pairs = noisy().map(lambda x: {"a": x, "b": np.full(3, x)}).batch(4)
    return grain.experimental.ZipMapDataset([noisy().batch(4), pairs])


FRUGAL = {
    "batch": lambda: noisy().batch(4),
    "shuffled examples": lambda: examples().shuffle().batch(4),
    "batch that drops the remainder": lambda: noisy().batch(4, drop_remainder=True),
    "repeat after batch": lambda: noisy().batch(4).repeat(2),
    "repeat before batch": lambda: noisy().repeat(2).batch(5),
    "repeat without reseeding": lambda: noisy().batch(4).repeat(2, reseed_each_epoch=False),
    "repeat for ever after batch": lambda: noisy().batch(4).repeat(),
    "repeat for ever before batch": lambda: noisy().repeat().batch(4),
    "a slice of batches": lambda: noisy().batch(4)[1:5:2],
    "a slice of examples": lambda: noisy()[3:17].batch(4),
    "shuffled batches": lambda: noisy().batch(4).seed(5).shuffle().repeat(2)[3:9],
    "zipped batches": zipped,
    "concatenated batches": lambda: grain.MapDataset.concatenate(
        [noisy().batch(4), noisy().batch(6)]
    ),
    "mixed batches": lambda: grain.MapDataset.mix([noisy().batch(4), examples().batch(4)]),
    "batches of batches": lambda: noisy().batch(2, drop_remainder=True).batch(3),
    "examples with an index": lambda: examples().map_with_index(lambda i, x: (i, x)).batch(4),
    "strings": lambda: examples().map(lambda x: "x" * int(x)).batch(4),
}
WHOLE = {
    "a function that mixes the examples": lambda: noisy().batch(4).map(lambda b: b - b.mean()),
    "a random function on batches": lambda: (
        noisy().batch(4).seed(1).random_map(lambda b, rng: rng.permutation(b))
    ),
    "an index on batches": lambda: noisy().batch(4).map_with_index(lambda i, b: b + i),
    "a filter on batches": lambda: noisy().batch(4).filter(lambda b: int(b.sum()) // 20 != 1),
    "a batch function": lambda: noisy().batch(4, batch_fn=lambda xs: np.stack(xs)[::-1]),
    "padding batches": lambda: (
        examples()
        .map(lambda x: np.ones(int(x) % 4))
        .batch(3, batch_fn=lambda xs: np.stack([np.pad(x, (0, 4 - len(x))) for x in xs]))
    ),
}


@pytest.fixture(params=[None, 3], ids=["this thread", "threads"])
def read_options(request):
    if request.param is None:
        return None
    return grain.ReadOptions(num_threads=2, prefetch_buffer_size=request.param)


def together(parts):
    return jax.tree_util.tree_map(lambda *leaves: np.concatenate(leaves), *parts)


def assert_same(one, other):
    jax.tree_util.tree_map(np.testing.assert_array_equal, one, other)
    kinds = [jax.tree_util.tree_map(lambda leaf: leaf.dtype.kind, tree) for tree in (one, other)]
    assert kinds[0] == kinds[1]


def assert_exact(source, dataset, num_workers, start):
    if isinstance(dataset, grain.MapDataset):  # by default Grain reads 500 batches ahead
        dataset = dataset.to_iter_dataset(grain.ReadOptions(prefetch_buffer_size=0))
    native = list(itertools.islice(iter(dataset), MOST))[start:]
    count = len(native)
    whole = list(itertools.islice(source.open(epoch=0, start=start), count))
    readings = [
        list(
            itertools.islice(
                source.open_parts(part_for(w, num_workers), epoch=0, start=start), count
            )
        )
        for w in range(num_workers)
    ]
    assert len(whole) == count
    for index, batch in enumerate(native):
        assert_same(whole[index], batch)
        parts = [reading[index] for reading in readings]
        assert_same(together([part.batch for part in parts]), batch)
        assert {part.global_size for part in parts} == {len(jax.tree_util.tree_leaves(batch)[0])}


@pytest.mark.parametrize("name", [*FRUGAL, *WHOLE])
def test_parts_and_whole_batches_are_what_grain_gives(name, read_options):
    dataset = (FRUGAL | WHOLE)[name]()
    source = grain_map.source_of(dataset, read_options=read_options)
    for num_workers, start in itertools.product((1, 2, 3), (0, 2)):
        assert_exact(source, dataset, num_workers, start)


@pytest.mark.parametrize("name", FRUGAL)
def test_what_only_stacks_and_chooses_is_read_in_buffers_of_its_own(name):
    assert grain_map.source_of(FRUGAL[name]()).owns_batches


@pytest.mark.parametrize("name", WHOLE)
def test_what_a_function_made_of_batches_may_be_shared(name):
    assert not grain_map.source_of(WHOLE[name]()).owns_batches


def test_a_batch_of_one_example_is_no_view_of_the_example():
    data = np.arange(6).reshape(3, 2)
    for batch in grain_map.source_of(grain.MapDataset.source(data).batch(1)).open(epoch=0, start=0):
        assert not np.shares_memory(batch, data)


@pytest.mark.parametrize(
    ("name", "cardinality", "batch_size", "first_dim"),
    [
        ("batch", 6, 4, None),
        ("batch that drops the remainder", 5, 4, 4),
        ("repeat for ever after batch", INFINITE, 4, None),
        ("repeat for ever before batch", INFINITE, 4, 4),
        ("a filter on batches", UNKNOWN, None, None),
        ("concatenated batches", 10, None, None),
        ("a function that mixes the examples", 6, None, None),
    ],
)
def test_what_is_known_before_reading(name, cardinality, batch_size, first_dim):
    source = grain_map.source_of((FRUGAL | WHOLE)[name]())
    assert source.cardinality == cardinality
    assert source.batch_size == batch_size
    assert source.element_spec.shape == (first_dim,)


def test_an_attached_policy_is_handed_on():
    from replicax.core.enums import AutoShardPolicy

    source = grain_map.source_of(noisy().batch(4), auto_shard_policy=AutoShardPolicy.OFF)
    assert source.auto_shard_policy is AutoShardPolicy.OFF


@settings(max_examples=25, deadline=None)
@given(
    num_examples=st.integers(1, 30),
    batch_size=st.integers(1, 9),
    num_workers=st.integers(1, 4),
    start=st.integers(0, 3),
    drop_remainder=st.booleans(),
    repeats=st.integers(1, 3),
    repeat_first=st.booleans(),
    as_stream=st.booleans(),
)
def test_random_pipelines_are_exact(
    num_examples, batch_size, num_workers, start, drop_remainder, repeats, repeat_first, as_stream
):
    dataset = noisy(num_examples)
    dataset = dataset.repeat(repeats) if repeat_first else dataset
    if as_stream:
        dataset = dataset.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=2))
        dataset = dataset.batch(batch_size, drop_remainder=drop_remainder)
        source = grain_iter.source_of(dataset)
    else:
        dataset = dataset.batch(batch_size, drop_remainder=drop_remainder)
        if len(dataset) and not repeat_first:
            dataset = dataset.repeat(repeats)
        source = grain_map.source_of(dataset)
    assert_exact(source, dataset, num_workers, start)


class TestErrors:
    def test_examples_without_a_batch_step_are_refused(self):
        source = grain_map.source_of(examples())
        with pytest.raises(BatchError, match=r"of 23 examples has no batch step.*batch\("):
            source.open(epoch=0, start=0)
        with pytest.raises(BatchError, match=r"has no batch step"):
            source.open_parts(slice, epoch=0, start=0)

    @pytest.mark.parametrize("dataset", [examples(3), noisy(3).map(int)])
    def test_examples_can_be_read_where_they_need_not_be_batches(self, dataset):
        source = grain_map.source_of(dataset)
        assert [int(x) for x in source.open_elements(epoch=0, start=1)] == [1, 2]
        assert source.element_spec == TensorSpec((), "int64")

    def test_scalars_that_a_function_makes_are_refused(self):
        source = grain_map.source_of(noisy())
        with pytest.raises(BatchError, match=r"the element of a Grain MapDataset is a scalar"):
            next(source.open(epoch=0, start=0))

    def test_ragged_examples_are_named(self):
        dataset = grain.MapDataset.range(1, 4).map(lambda n: {"a": 0, "b": np.ones(n)}).batch(3)
        with pytest.raises(BatchError, match=r"leaf \['b'\] has the shapes \(1,\), \(2,\), \(3,\)"):
            next(grain_map.source_of(dataset).open(epoch=0, start=0))

    def test_a_function_that_gives_none_is_refused(self):
        dataset = grain.MapDataset.range(6).map(lambda x: x if x != 4 else None)
        with pytest.raises(BatchError, match=r"gave None.*filter\(\) after to_iter_dataset"):
            list(grain_map.source_of(dataset.batch(3)).open(epoch=0, start=0))
        with pytest.raises(BatchError, match=r"gave None"):
            list(grain_iter.source_of(dataset.to_iter_dataset().batch(3)).open(epoch=0, start=0))
        batches = grain.MapDataset.range(6).batch(3).map(lambda b: None)
        with pytest.raises(BatchError, match=r"gave None"):
            list(grain_map.source_of(batches).open(epoch=0, start=0))

    def test_zipped_batches_of_different_sizes_are_refused(self):
        dataset = grain.experimental.ZipMapDataset([examples(8).batch(4), examples(6).batch(3)])
        with pytest.raises(BatchError, match=r"different sizes, \[3, 4\]"):
            next(grain_map.source_of(dataset).open(epoch=0, start=0))
