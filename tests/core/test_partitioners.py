"""The documented partitioners, and which variables a `Sharding` splits."""

import numpy as np
import pytest

from replicax.core.partitioners import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
)
from replicax.core.sharding import Sharding

CASES = [
    (FixedShardsPartitioner(2), (10, 3), np.float32, [2, 1]),
    (FixedShardsPartitioner(8), (3, 4), np.float32, [3, 1]),  # no more than there are rows
    (FixedShardsPartitioner(8), (), np.float32, []),
    (FixedShardsPartitioner(8), (0, 4), np.float32, [1, 1]),
    (MinSizePartitioner(min_shard_bytes=4, max_shards=2), (6, 1), np.float32, [2, 1]),
    (MinSizePartitioner(min_shard_bytes=4, max_shards=10), (6, 1), np.float32, [6, 1]),
    (MinSizePartitioner(min_shard_bytes=12, max_shards=10), (10, 1), np.float32, [3, 1]),
    (MinSizePartitioner(min_shard_bytes=12, max_shards=10), (10, 1), np.float64, [5, 1]),
    (MinSizePartitioner(), (1 << 20, 8), np.float32, [1, 1]),  # at most one by default
    (MinSizePartitioner(max_shards=4), (1, 1 << 20), np.float32, [1, 1]),  # one row
    (MaxSizePartitioner(max_shard_bytes=4), (6, 1), np.float32, [6, 1]),
    (MaxSizePartitioner(max_shard_bytes=4, max_shards=2), (6, 1), np.float32, [2, 1]),
    (MaxSizePartitioner(max_shard_bytes=1024), (6, 1), np.float32, [1, 1]),
    (MaxSizePartitioner(max_shard_bytes=9), (5, 1), np.float32, [3, 1]),  # two rows each
    (MaxSizePartitioner(max_shard_bytes=32), (6, 1), np.dtype("U7"), [3, 1]),  # strings: 16 bytes
    (MaxSizePartitioner(32, bytes_per_string=32), (6, 1), np.dtype(object), [6, 1]),
]


@pytest.mark.parametrize(("partitioner", "shape", "dtype", "expected"), CASES)
def test_partitions_along_each_dim(partitioner, shape, dtype, expected):
    assert partitioner(shape, dtype) == expected


def test_another_dim_can_be_cut():
    assert FixedShardsPartitioner(2)((10, 3), np.float32, axis=1) == [1, 2]
    with pytest.raises(ValueError, match=r"axis is 2; a variable of shape \(10, 3\) has no such"):
        FixedShardsPartitioner(2)((10, 3), np.float32, axis=2)


MISTAKES = [
    (lambda: FixedShardsPartitioner(0), "num_shards is 0; expected an int of 1 or more"),
    (lambda: FixedShardsPartitioner(True), "num_shards is True; expected an int"),
    (lambda: MinSizePartitioner(-1), "min_shard_bytes is -1; expected an int"),
    (lambda: MinSizePartitioner(max_shards=0), "max_shards is 0; expected an int"),
    (lambda: MinSizePartitioner(bytes_per_string=0), "bytes_per_string is 0; expected"),
    (lambda: MaxSizePartitioner(1.5), "max_shard_bytes is 1.5; expected an int"),
    (lambda: MaxSizePartitioner(8, max_shards=0), "max_shards is 0; expected an int"),
    (lambda: Sharding(stage=4), "stage is 4; expected 1 .* 2 .* or 3"),
    (lambda: Sharding(stage=True), "stage is True; expected 1"),
]


@pytest.mark.parametrize(("make", "message"), MISTAKES)
def test_arguments_that_mean_nothing_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_partitioner_must_be_callable():
    with pytest.raises(TypeError, match="partitioner is 8; expected a callable of a shape"):
        Sharding(partitioner=8)


@pytest.mark.parametrize("partitions", [None, [2], [2, 0], [1.5, 1], "ab"])
def test_a_partitioner_must_give_one_number_for_each_dim(partitions):
    sharding = Sharding(partitioner=lambda shape, dtype: partitions)
    with pytest.raises(ValueError, match=r"gave .* for shape \(4, 3\) .* list of 2 ints"):
        sharding._splits((4, 3), np.float32, 2)


SPLIT = [
    (None, (8,), 8, True),
    (None, (7,), 8, False),  # fewer elements than replicas
    (None, (3, 3), 8, True),
    (None, (), 2, False),
    (None, (0, 4), 2, False),
    (None, (100,), 1, False),  # one replica has everything
    (FixedShardsPartitioner(2), (2,), 8, True),
    (FixedShardsPartitioner(2), (1, 100), 8, False),
    (MinSizePartitioner(1024, max_shards=8), (511,), 2, False),
    (MinSizePartitioner(1024, max_shards=8), (512,), 2, True),
    (MaxSizePartitioner(1024), (256,), 2, False),
    (MaxSizePartitioner(1024), (257,), 2, True),
]


@pytest.mark.parametrize(("partitioner", "shape", "num_replicas", "expected"), SPLIT)
def test_a_variable_is_split_if_it_has_more_than_one_partition(
    partitioner, shape, num_replicas, expected
):
    assert Sharding(partitioner=partitioner)._splits(shape, np.float32, num_replicas) is expected
