"""A `data.Dataset` as a source of global batches: epochs, positions, parts, files."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicax import TensorSpec
from replicax.data import AutoShardPolicy, Dataset, Options, TextLineDataset, TFRecordDataset
from replicax.input.adapters import table
from replicax.input.adapters.pipeline import source_of
from replicax.input.pipeline.readers import write_records
from replicax.input.source import INFINITE, UNKNOWN, FileSource, IndexedSource

INDEXED = {
    "batch": lambda: Dataset.range(11).batch(4),
    "drop": lambda: Dataset.range(11).batch(4, drop_remainder=True),
    "shuffled": lambda: Dataset.range(23).shuffle(23).batch(4),
    "windows": lambda: Dataset.range(23).shuffle(5, seed=3).batch(4).shuffle(3),
    "fixed": lambda: Dataset.range(23).shuffle(23, reshuffle_each_iteration=False).batch(4),
    "repeat": lambda: Dataset.range(7).shuffle(7).repeat(3).batch(4),
    "epochs": lambda: Dataset.range(7).shuffle(7).batch(4).repeat(2),
    "arrays": lambda: (
        Dataset.zip(
            {"x": Dataset.from_tensor_slices(np.arange(26).reshape(13, 2)), "y": Dataset.range(20)}
        )
        .cache()
        .shuffle(5)
        .skip(1)
        .repeat(2)
        .shard(2, 1)
        .batch(4)
        .shuffle(2)
    ),
    "map": lambda: Dataset.range(11).map(lambda x: {"x": x, "y": (x * x, [x, 1])}).batch(3),
    "map on batches": lambda: Dataset.range(11).shuffle(11).batch(4).map(lambda x: x - x.mean()),
    "zip": lambda: Dataset.zip(Dataset.range(9), Dataset.range(9).shuffle(9)).batch(2),
    "zipped batches": lambda: Dataset.zip(Dataset.range(9).batch(2), Dataset.range(9).batch(2)),
    "concatenate": lambda: Dataset.range(5).concatenate(Dataset.range(4).shuffle(4)).batch(3),
    "cached batches": lambda: Dataset.range(11).shuffle(11).batch(4).cache(),
    "cached": lambda: Dataset.range(11).cache().shuffle(11).batch(4),
    "padded": lambda: Dataset.range(9).map(lambda n: np.full(n, n)).padded_batch(4, [9]),
    "threads": lambda: (
        Dataset.range(11)
        .map(lambda x: x * 2, num_parallel_calls=3)
        .shuffle(11)
        .batch(4)
        .prefetch(2)
    ),
    "endless": lambda: Dataset.range(5).shuffle(5).repeat().batch(3).take(6),
    "strings": lambda: Dataset.from_tensor_slices(["a", "bc\0", "d"]).shuffle(3).batch(2),
    "batches of a list": lambda: Dataset.from_tensors([[1.0], [2.0]]).repeat(3),
}
STREAMS = {
    "filter": lambda: Dataset.range(30).filter(lambda x: x % 2 == 0).shuffle(6).batch(4),
    "generator": lambda: Dataset.from_generator(lambda: range(10)).batch(4),
    "repeat": lambda: Dataset.range(9).filter(lambda x: True).shuffle(9).repeat(2).batch(4),
    "unbatch": lambda: Dataset.range(9).batch(3).unbatch().batch(4),
    "batches": lambda: Dataset.from_generator(lambda: (np.arange(n) for n in (4, 2, 1))),
}
every = pytest.mark.parametrize("make", [*INDEXED.values(), *STREAMS.values()])
indexed = pytest.mark.parametrize("make", INDEXED.values(), ids=INDEXED.keys())


def as_lists(batches):
    return [jax.tree_util.tree_map(lambda leaf: leaf.tolist(), batch) for batch in batches]


@every
def test_a_pass_is_the_pass_that_iterating_gives(make):
    dataset, source = make(), source_of(make())
    for epoch in range(3):
        assert as_lists(source.open(epoch=epoch, start=0)) == as_lists(dataset)


@every
def test_a_pass_can_begin_anywhere_in_any_order(make):
    dataset, source = make(), source_of(make())
    passes = [as_lists(dataset) for _ in range(3)]
    for epoch in (2, 0, 1):
        for start in range(len(passes[epoch]) + 1):
            assert as_lists(source.open(epoch=epoch, start=start)) == passes[epoch][start:]


@indexed
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_the_parts_of_all_workers_are_the_batches(make, num_workers):
    source = source_of(make())
    assert isinstance(source, IndexedSource)

    def part_of(worker):
        return lambda size: slice(size * worker // num_workers, size * (worker + 1) // num_workers)

    for epoch in range(2):
        parts = [
            list(source.open_parts(part_of(worker), epoch=epoch, start=1))
            for worker in range(num_workers)
        ]
        joined = [
            jax.tree_util.tree_map(lambda *x: np.concatenate(x), *(p.batch for p in step))
            for step in zip(*parts, strict=True)
        ]
        assert as_lists(joined) == as_lists(source.open(epoch=epoch, start=1))
        for step, batch in zip(zip(*parts, strict=True), joined, strict=True):
            assert {p.global_size for p in step} == {len(jax.tree_util.tree_leaves(batch)[0])}


@every
def test_the_spec_fits_every_batch(make):
    source = source_of(make())
    specs, structure = jax.tree_util.tree_flatten(
        source.element_spec, is_leaf=lambda x: isinstance(x, TensorSpec)
    )
    count = 0
    for batch in source.open(epoch=0, start=0):
        count += 1
        leaves, of_batch = jax.tree_util.tree_flatten(batch)
        assert of_batch == structure
        for spec, leaf in zip(specs, leaves, strict=True):
            assert spec.is_compatible_with(leaf.shape, leaf.dtype)
    assert source.cardinality in (count, UNKNOWN)


def test_a_worker_computes_only_its_own_elements():
    seen = []
    dataset = Dataset.range(12).shuffle(12).map(lambda x: seen.append(int(x)) or x).batch(4)
    source = source_of(dataset)
    parts = list(source.open_parts(lambda size: slice(size // 2, size), epoch=0, start=0))
    assert sorted(seen) == sorted(int(x) for part in parts for x in part.batch)
    assert len(seen) == 6


@pytest.mark.parametrize(
    ("make", "batch_size", "cardinality", "dim"),
    [
        (lambda: Dataset.range(11).batch(4), 4, 3, None),
        (lambda: Dataset.range(12).batch(4), 4, 3, 4),
        (lambda: Dataset.range(11).batch(4, drop_remainder=True), 4, 2, 4),
        (lambda: Dataset.range(11).repeat().batch(4), 4, INFINITE, 4),
        (lambda: Dataset.range(11).batch(4).repeat(), 4, INFINITE, None),
        (lambda: Dataset.range(12).batch(4).map(lambda x: x + 1), 4, 3, 4),
        (lambda: Dataset.range(12).batch(4).map(lambda x: x[:2]), None, 3, None),
        (lambda: Dataset.from_tensors([[1.0], [2.0]]).repeat(), None, INFINITE, 2),
        (lambda: Dataset.range(12).filter(bool).batch(4), 4, UNKNOWN, None),
        (lambda: Dataset.range(9).concatenate(Dataset.range(9)).batch(3).take(2), 3, 2, 3),
        (lambda: Dataset.range(9).batch(3).concatenate(Dataset.range(4).batch(3)), 3, 5, None),
    ],
)
def test_sizes_are_known_where_they_can_be(make, batch_size, cardinality, dim):
    source = source_of(make())
    assert source.batch_size == batch_size
    assert source.cardinality == cardinality
    assert source.element_spec.shape[0] == dim


@pytest.mark.parametrize(
    ("make", "owns"),
    [
        (lambda: Dataset.range(8).batch(4), True),
        (lambda: Dataset.range(8).shuffle(8).batch(4).repeat(2).take(3).prefetch(1), True),
        (lambda: Dataset.range(8).batch(4).map(lambda x: x), False),
        (lambda: Dataset.range(8).map(abs).batch(4).cache(), False),
        (lambda: Dataset.from_tensors([1.0, 2.0]), False),
        (lambda: Dataset.range(8).filter(bool).batch(4), True),
        (lambda: Dataset.range(8).filter(bool).batch(4).map(lambda x: x), False),
    ],
)
def test_a_batch_is_ours_if_it_was_just_stacked(make, owns):
    source = source_of(make())
    assert source.owns_batches is owns
    if owns:
        batches = list(source.open(epoch=0, start=0))
        assert all(batch.flags.writeable for batch in batches)


UNBATCHED = {
    "scalars": lambda: Dataset.range(8),
    "vectors": lambda: Dataset.from_tensor_slices(np.zeros((4, 3))).shuffle(4),
    "unbatch": lambda: Dataset.range(8).batch(4).unbatch(),
    "enumerate": lambda: Dataset.range(8).batch(4).enumerate(),
    "lines": lambda: TextLineDataset("missing"),
}


@pytest.mark.parametrize("make", UNBATCHED.values(), ids=UNBATCHED.keys())
def test_a_pipeline_without_a_batch_step_is_refused_before_it_is_read(make):
    source = source_of(make())
    with pytest.raises(ValueError, match=r"no step of it batches. Batch the examples first"):
        source.open(epoch=0, start=0)


def test_scalars_that_a_function_makes_are_refused_when_they_come():
    source = source_of(Dataset.range(4).batch(2).map(lambda x: x.sum()))
    with pytest.raises(ValueError, match=r"a data.Dataset is a scalar.*Batch the examples first"):
        next(source.open(epoch=0, start=0))


def test_elements_that_are_no_batches_can_be_read_as_elements():
    source = source_of(Dataset.range(6).shuffle(6).map(lambda x: (x, x + 1)))
    whole = list(source.open_elements(epoch=1, start=0))
    assert all(type(leaf) is np.ndarray for pair in whole for leaf in pair)
    assert list(source.open_elements(epoch=1, start=2)) == whole[2:]
    stream = source_of(Dataset.range(6).filter(lambda x: x > 1))
    assert list(stream.open_elements(epoch=0, start=1)) == [3, 4, 5]


def test_the_policy_that_was_attached_is_reported():
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA
    dataset = Dataset.range(8).with_options(options).batch(4)
    assert source_of(dataset).auto_shard_policy is AutoShardPolicy.DATA
    assert source_of(Dataset.range(8).batch(4)).auto_shard_policy is None


def test_the_table_of_adapters_finds_datasets_and_their_subclasses(tmp_path):
    (tmp_path / "x").write_text("1\n2\n")
    for dataset in (Dataset.range(2).batch(2), TextLineDataset(tmp_path / "x").batch(2)):
        assert table.source_of(dataset).description == "a data.Dataset"


@pytest.fixture
def files(tmp_path):
    paths = [str(tmp_path / f"{i}") for i in range(4)]
    for i, path in enumerate(paths):
        write_records(path, [bytes([10 * i + k]) for k in range(i + 1)])
    return paths


def parsed(dataset):
    return dataset.map(lambda record: record[0]).shuffle(3).batch(2)


FILE_PIPELINES = {
    "list": lambda files: parsed(TFRecordDataset(files)),
    "in turns": lambda files: parsed(TFRecordDataset(files, num_parallel_reads=2)),
    "names": lambda files: parsed(TFRecordDataset(Dataset.from_tensor_slices(files))),
    "interleave": lambda files: parsed(
        Dataset.from_tensor_slices(files).shuffle(9).interleave(TFRecordDataset, cycle_length=2)
    ),
    "interleave of maps": lambda files: (
        Dataset.from_tensor_slices(files)
        .interleave(lambda name: TFRecordDataset(name).map(lambda record: record[0]))
        .cache()
        .repeat(2)
        .batch(3)
        .prefetch(1)
    ),
    "concatenate": lambda files: parsed(
        TFRecordDataset(files[:2]).concatenate(TFRecordDataset(files[2:]))
    ),
}


@pytest.mark.parametrize("make", FILE_PIPELINES.values(), ids=FILE_PIPELINES.keys())
def test_files_can_be_divided(make, files):
    source = source_of(make(files))
    assert isinstance(source, FileSource)
    assert sorted(source.files) == files

    def values(of):
        return sorted(int(x) for batch in of.open(epoch=0, start=0) for x in batch)

    divided = [source.of_files(source.files[worker::2]) for worker in range(2)]
    assert all(isinstance(part, FileSource) for part in divided)
    assert [part.files for part in divided] == [source.files[0::2], source.files[1::2]]
    assert sorted(values(divided[0]) + values(divided[1])) == values(source)
    assert values(source)  # the whole is still the whole


@pytest.mark.parametrize(
    "make",
    [
        lambda files: TFRecordDataset(files).take(3).batch(2),
        lambda files: TFRecordDataset(files).shard(2, 0).batch(2),
        lambda files: Dataset.zip(TFRecordDataset(files), Dataset.range(9)).batch(2),
        lambda files: TFRecordDataset(files).enumerate().batch(2),
        lambda files: (
            Dataset.range(2).interleave(lambda i: TFRecordDataset(files[int(i)])).batch(2)
        ),
    ],
)
def test_files_are_not_divided_where_counting_would_start_again(make, files):
    assert not isinstance(source_of(make(files)), FileSource)


@settings(deadline=None, max_examples=25, database=None)
@given(
    st.integers(0, 25),
    st.integers(1, 7),
    st.integers(1, 30),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_any_worker_resumes_any_pass_anywhere(
    size, batch_size, buffer_size, workers, drop, repeats, data
):
    def make():
        dataset = Dataset.range(size).shuffle(buffer_size, seed=size)
        dataset = dataset.repeat(2) if repeats else dataset
        return dataset.map(lambda x: x * 3).batch(batch_size, drop)

    epoch = data.draw(st.integers(0, 3))
    dataset = make()
    for _ in range(epoch):
        list(dataset)
    whole = as_lists(dataset)
    start = data.draw(st.integers(0, len(whole)))
    share = -(-batch_size // workers)
    parts = [
        source_of(make()).open_parts(
            lambda n, w=w: slice(w * share, (w + 1) * share), epoch=epoch, start=start
        )
        for w in range(workers)
    ]
    joined = [np.concatenate([p.batch for p in step]) for step in zip(*parts, strict=True)]
    assert as_lists(joined) == whole[start:]
