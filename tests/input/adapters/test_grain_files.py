"""Pipelines over files: which they are, and the same pipeline over some of them."""

import struct

import array_record.python.array_record_module as array_record
import grain
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from replicax.core.enums import AutoShardPolicy
from replicax.core.errors import BatchError, ShardingError
from replicax.input.adapters import grain_iter, grain_map
from replicax.input.sharding import plan_shards
from replicax.input.source import FileSource, IndexedSource
from tests.input.pipelines import topologies

NUM_FILES = 3
PER_FILE = (4, 5, 3)


def write_array_record(path, numbers):
    writer = array_record.ArrayRecordWriter(str(path), "group_size:1")
    for number in numbers:
        writer.write(struct.pack("<q", number))
    writer.close()


def write_tfrecord(path, numbers):
    """Length, its checksum, the record, its checksum; Grain does not look at the checksums."""
    with open(path, "wb") as file:
        for number in numbers:
            record = struct.pack("<q", number)
            file.write(struct.pack("<QI", len(record), 0) + record + struct.pack("<I", 0))


def write_parquet(path, numbers):
    pyarrow.parquet.write_table(pyarrow.table({"x": list(numbers)}), str(path))


def written(tmp_path, write):
    """Three files, whose numbers tell the file: 0.., 100.., 200.."""
    paths = [str(tmp_path / f"file{i}") for i in range(NUM_FILES)]
    for i, path in enumerate(paths):
        write(path, range(100 * i, 100 * i + PER_FILE[i]))
    return paths


def number_of(record):
    return np.int64(struct.unpack("<q", record)[0])


def tfrecords_interleaved(paths):
    files = grain.MapDataset.source(paths).map(grain.experimental.TFRecordIterDataset)
    stream = grain.experimental.InterleaveIterDataset(files, cycle_length=2)
    return stream.map(number_of).batch(2)


def tfrecords_listed(paths):
    files = [grain.experimental.TFRecordIterDataset(path).map(number_of) for path in paths]
    return grain.experimental.InterleaveIterDataset(files, cycle_length=2).batch(2)


def parquet(paths):
    return grain.experimental.ParquetIterDataset(paths).map(lambda row: row["x"]).batch(2)


PIPELINES = {
    "TFRecord from a MapDataset": (tfrecords_interleaved, write_tfrecord),
    "TFRecord from a list": (tfrecords_listed, write_tfrecord),
    "Parquet": (parquet, write_parquet),
}


@pytest.fixture(params=PIPELINES.values(), ids=PIPELINES)
def pipeline(request):
    return request.param


def source_of(dataset):
    adapter = grain_map if isinstance(dataset, grain.MapDataset) else grain_iter
    return adapter.source_of(dataset)


def numbers(source):
    return sorted(x for batch in source.open(epoch=0, start=0) for x in batch.tolist())


def test_the_files_are_known_in_the_order_in_which_they_were_given(pipeline, tmp_path):
    make, write = pipeline
    paths = written(tmp_path, write)[::-1]
    source = source_of(make(paths))
    assert isinstance(source, FileSource)
    assert source.files == tuple(paths)


def test_some_files_give_what_a_pipeline_over_only_them_gives(pipeline, tmp_path):
    make, write = pipeline
    paths = written(tmp_path, write)
    some = source_of(make(paths)).of_files((paths[0], paths[2]))
    alone = source_of(make([paths[0], paths[2]]))
    for start in (0, 1):
        readings = [source.open(epoch=0, start=start) for source in (some, alone)]
        assert [b.tolist() for b in readings[0]] == [b.tolist() for b in readings[1]]
    assert some.files == alone.files
    assert some.cardinality == alone.cardinality


def test_each_file_alone_and_all_together_give_every_record_once(pipeline, tmp_path):
    make, write = pipeline
    paths = written(tmp_path, write)
    source = source_of(make(paths))
    each = [numbers(source.of_files((path,))) for path in paths]
    assert sorted(x for of_file in each for x in of_file) == numbers(source)
    assert all({x // 100 for x in each[i]} == {i} for i in range(NUM_FILES))


def test_files_that_are_not_read_are_refused(pipeline, tmp_path):
    make, write = pipeline
    source = source_of(make(written(tmp_path, write)))
    for files in ((), ("elsewhere",)):
        with pytest.raises(BatchError, match=r"expected at least one of its own files"):
            source.of_files(files)


def array_records(paths):
    return grain.MapDataset.source(grain.sources.ArrayRecordDataSource(paths)).map(number_of)


@pytest.mark.parametrize(
    "make",
    [
        lambda ds: ds.batch(2),
        lambda ds: ds.to_iter_dataset().batch(2),
        lambda ds: ds.to_iter_dataset().filter(lambda x: x % 100 != 1).batch(2),
    ],
    ids=["by index", "a stream of batches", "a stream"],
)
def test_array_record_files_are_divided_by_record(make, tmp_path):
    source = source_of(make(array_records(written(tmp_path, write_array_record))))
    assert not isinstance(source, FileSource)
    with pytest.raises(
        ShardingError, match=r"Grain \w+Dataset is not read file by file\. Use .*DATA"
    ):
        plan_shards(AutoShardPolicy.FILE, source, topologies(2)[1])
    if isinstance(source, IndexedSource):
        part = next(source.open_parts(lambda size: slice(1, 2), epoch=0, start=1))
        assert part.batch.tolist() == [3]


@pytest.mark.parametrize(
    ("why", "make"),
    [
        (
            "a limit counts batches",
            lambda ds: grain.experimental.LimitIterDataset(ds.batch(2), 3),
        ),
        ("a mixture has two sources", lambda ds: grain.IterDataset.mix([ds, ds]).batch(2)),
    ],
)
def test_a_pipeline_that_means_something_else_over_fewer_files_has_none(why, make, tmp_path):
    dataset = grain.experimental.ParquetIterDataset(written(tmp_path, write_parquet))
    assert isinstance(source_of(dataset.map(lambda row: row["x"]).batch(2)), FileSource)
    assert not isinstance(source_of(make(dataset)), FileSource)


def test_a_file_that_is_read_twice_cannot_be_given_away(tmp_path):
    path = written(tmp_path, write_tfrecord)[0]
    assert not isinstance(source_of(tfrecords_listed([path, path])), FileSource)


def test_a_list_that_holds_no_file_names_is_no_list_of_files():
    streams = grain.MapDataset.range(3).map(lambda n: grain.MapDataset.range(n).to_iter_dataset())
    stream = grain.experimental.InterleaveIterDataset(streams, cycle_length=2).batch(2)
    assert not isinstance(source_of(stream), FileSource)
