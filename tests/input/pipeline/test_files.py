"""TFRecordDataset and TextLineDataset."""

import google_crc32c
import numpy as np
import pytest

from replicax.core.spec import TensorSpec
from replicax.data import AUTOTUNE, Dataset, TextLineDataset, TFRecordDataset
from replicax.input.pipeline.crc32c import crc32c
from replicax.input.pipeline.readers import DamagedFileError, write_records


@pytest.fixture
def records(tmp_path):
    """Three files of unequal length; records are named by file and place."""
    paths = []
    for name, count in (("a", 3), ("b", 1), ("c", 2)):
        paths.append(str(tmp_path / f"{name}.tfrecord"))
        write_records(paths[-1], [f"{name}{i}".encode() for i in range(count)])
    return paths


def test_records_come_file_after_file(records):
    expected = [b"a0", b"a1", b"a2", b"b0", b"c0", b"c1"]
    assert list(TFRecordDataset(records)) == expected
    assert list(TFRecordDataset(np.array(records))) == expected
    assert list(TFRecordDataset(Dataset.from_tensor_slices(records))) == expected
    assert list(TFRecordDataset(records[0])) == expected[:3]


def test_a_path_is_a_file_name(tmp_path):
    write_records(tmp_path / "x", [b"1"])
    assert list(TFRecordDataset(tmp_path / "x")) == [b"1"]


@pytest.mark.parametrize("reads", [2, AUTOTUNE])
def test_parallel_reads_take_records_in_turns(records, reads):
    expected = {
        2: [b"a0", b"b0", b"a1", b"a2", b"c0", b"c1"],
        AUTOTUNE: [b"a0", b"b0", b"c0", b"a1", b"c1", b"a2"],
    }
    assert list(TFRecordDataset(records, num_parallel_reads=reads)) == expected[reads]
    names = Dataset.from_tensor_slices(records)
    assert list(TFRecordDataset(names, num_parallel_reads=reads)) == expected[reads]


def test_the_documented_way_to_interleave_files(records):
    dataset = Dataset.from_tensor_slices(records).interleave(
        TFRecordDataset, cycle_length=2, num_parallel_calls=AUTOTUNE
    )
    assert sorted(dataset) == [b"a0", b"a1", b"a2", b"b0", b"c0", b"c1"]


def test_binary_records_survive(tmp_path):
    data = [b"", b"\0\0", b"ends in nul\0", bytes(range(256)) * 20]
    write_records(tmp_path / "x", data)
    assert list(TFRecordDataset(tmp_path / "x")) == data
    (batch,) = TFRecordDataset(tmp_path / "x").batch(4)
    assert batch.tolist() == data


def test_records_are_parsed_by_a_map_function(tmp_path):
    write_records(tmp_path / "x", [np.float32([i, i + 1]).tobytes() for i in range(4)])
    dataset = TFRecordDataset(tmp_path / "x").map(lambda record: np.frombuffer(record, np.float32))
    assert [b.tolist() for b in dataset.batch(2)] == [[[0, 1], [1, 2]], [[2, 3], [3, 4]]]


@pytest.mark.parametrize("way", ["names", "interleave", "interleave and map"])
def test_the_types_are_learned_from_the_first_file_that_has_a_record(tmp_path, way):
    for name, records in (("a", []), ("b", [b"12", b"34"])):
        write_records(tmp_path / name, records)
    names = Dataset.from_tensor_slices([str(tmp_path / name) for name in "ab"])
    if way == "interleave and map":
        numbers = names.interleave(lambda name: TFRecordDataset(name).map(int))
    else:
        numbers = TFRecordDataset(names) if way == "names" else names.interleave(TFRecordDataset)
        numbers = numbers.map(int)
    assert numbers.element_spec == TensorSpec((), np.int64)
    assert list(numbers) == [12, 34]


def test_a_file_that_tensorflow_wrote_is_read(tmp_path):
    # Written by TFRecordWriter of TensorFlow 2.21.
    (tmp_path / "x").write_bytes(
        bytes.fromhex("0500000000000000eab2043e68656c6c6fbb1f1c19000000000000000029039807d8ea82a2")
        + bytes.fromhex("3c00000000000000c8b7a352" + 30 * "0001" + "24f78293")
    )
    records = [b"hello", b"", 30 * b"\0\1"]
    assert list(TFRecordDataset(tmp_path / "x")) == records
    write_records(tmp_path / "y", records)
    assert (tmp_path / "y").read_bytes() == (tmp_path / "x").read_bytes()


@pytest.mark.parametrize("size", [0, 1, 3, 4, 31, 32, 33, 1023, 1024, 1025, 1026, 1027, 5000])
def test_the_checksum_of_any_length_is_that_of_its_definition(size):
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    assert crc32c(data) == google_crc32c.value(data) == state ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda b: b[:14] + b"X" + b[15:], "record 0 of .* does not fit its checksum"),
        (lambda b: b"\x09" + b[1:], "record 0 of .* has a length that does not fit"),
        (lambda b: b[:-1], "record 1 of .* is cut off"),
        (lambda b: b + b"\0\0", "record 2 of .* is cut off"),
        (lambda b: b"\x1f\x8b" + b[2:], "compressed with gzip; decompress the file first"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, change, text):
    path = tmp_path / "x"
    write_records(path, [b"hello", b"world"])
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DamagedFileError, match=text):
        list(TFRecordDataset(path))


def test_lines_come_without_their_ends(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\n\nlast")
    (tmp_path / "b.txt").write_bytes(b"")
    dataset = TextLineDataset([tmp_path / "a.txt", tmp_path / "b.txt"])
    assert list(dataset) == [b"one", b"two", b"", b"last"]


def test_nothing_is_opened_before_iterating(tmp_path):
    dataset = TextLineDataset(str(tmp_path / "missing")).map(int).batch(2)
    with pytest.raises(FileNotFoundError, match="missing"):
        list(dataset)


@pytest.mark.parametrize("reader", [TFRecordDataset, TextLineDataset])
def test_compressed_files_are_refused(reader):
    with pytest.raises(ValueError, match=f"{reader.__name__} got compression_type='GZIP'; only"):
        reader("x", compression_type="GZIP")
    assert isinstance(reader("x", compression_type=""), Dataset)


@pytest.mark.parametrize("names", [5, [1, 2], None])
def test_what_is_no_file_name_is_refused(names):
    with pytest.raises(ValueError, match="expected the name of a file, a list of names"):
        TFRecordDataset(names)
