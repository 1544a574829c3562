"""The arithmetic of dividing a batch, and what may be a leaf of one."""

import jax.numpy as jnp
import numpy as np
import pytest

from replicax.input.splitting import BatchSplit, leaves_of

EVEN = {
    "divisible": (8, 2, (4, 4)),
    "one short": (7, 2, (4, 3)),
    "one empty": (4, 3, (2, 2, 0)),
    "more replicas than examples": (1, 3, (1, 0, 0)),
    "nothing": (0, 3, (0, 0, 0)),
    "one replica": (5, 1, (5,)),
}

FILLING = {
    "a full batch": (8, 8, 2, (4, 4)),
    "a short batch fills the first replicas": (6, 8, 2, (4, 2)),
    "one example": (1, 8, 2, (1, 0)),
    "a full batch that does not divide": (4, 4, 3, (2, 1, 1)),
    "a short batch that does not divide": (2, 4, 3, (2, 0, 0)),
    "nothing": (0, 4, 3, (0, 0, 0)),
    "more than a full batch": (10, 8, 2, (5, 5)),
    "fewer examples than replicas": (2, 2, 3, (1, 1, 0)),
}


@pytest.mark.parametrize("case", EVEN)
def test_chunks_are_as_large_as_a_replica_needs_at_most(case):
    size, count, expected = EVEN[case]
    split = BatchSplit.of(size, num_replicas=count)
    assert split.sizes == expected
    assert sum(split.sizes) == size


@pytest.mark.parametrize("case", FILLING)
def test_filling_keeps_the_sizes_of_a_full_batch(case):
    size, full_size, count, expected = FILLING[case]
    split = BatchSplit.filling(size, full_size=full_size, num_replicas=count)
    assert split.sizes == expected
    assert sum(split.sizes) == size


def test_consecutive_replicas_have_consecutive_examples():
    split = BatchSplit((3, 3, 1, 0))
    assert split.offsets == (0, 3, 6, 7)
    assert [split.slice_of(range(0, 2)), split.slice_of(range(2, 4))] == [slice(0, 6), slice(6, 7)]
    assert split.slice_of(range(3, 4)) == slice(7, 7)


def test_leaves_are_arrays_in_the_types_of_jax():
    leaves, _ = leaves_of({"a": np.arange(3), "b": [1.0, 2.0], "c": jnp.ones(2), "d": ["x", "y"]})
    assert [leaf.dtype.name for leaf in leaves[:3]] == ["int32", "float32", "float32"]
    assert leaves[3].tolist() == ["x", "y"]


def test_leaves_may_have_different_batch_dims():
    leaves, _ = leaves_of((np.ones(4), np.ones(3)))
    assert [leaf.shape for leaf in leaves] == [(4,), (3,)]


BAD = {
    "scalar": ({"x": np.ones(2), "n": 3}, r"leaf \['n'\] of the batch is a scalar.*Batch the ex"),
    "too large": ({"x": np.array([2**40])}, r"leaf \['x'\] of the batch.*does not fit.*x64"),
    "objects": ({"x": np.array([object()])}, r"leaf \['x'\] of the batch is .* no array"),
    "ragged": ({"x": [[1], [2, 3]]}, r"leaf \['x'\] of the batch is .* no array of one shape"),
    "nothing": ({}, "has no arrays in it"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_batch_is_named(case):
    batch, text = BAD[case]
    with pytest.raises(ValueError, match=text):
        leaves_of(batch)


def test_scalars_pass_where_they_are_expected():
    leaves, _ = leaves_of({"n": 3}, may_be_scalars=True)
    assert leaves[0].shape == ()
