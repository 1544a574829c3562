"""batch, padded_batch, unbatch."""

import numpy as np
import pytest

from replicax.data import UNKNOWN_CARDINALITY, Dataset


def lists(dataset):
    return [batch.tolist() for batch in dataset]


def indexed(size):
    return Dataset.range(size)


def stream(size):
    return Dataset.range(size).filter(lambda x: True)


def growing(size):
    return Dataset.range(size).map(lambda n: np.full(n, n))


@pytest.mark.parametrize("make", [indexed, stream])
def test_the_last_batch_is_smaller_or_dropped(make):
    assert lists(make(5).batch(2)) == [[0, 1], [2, 3], [4]]
    assert lists(make(5).batch(2, drop_remainder=True)) == [[0, 1], [2, 3]]
    assert lists(make(0).batch(2)) == []


def test_the_number_of_batches_is_known():
    assert len(Dataset.range(5).batch(2)) == 3
    assert len(Dataset.range(5).batch(2, drop_remainder=True)) == 2


@pytest.mark.parametrize("make", [indexed, stream])
def test_batches_of_batches_have_two_dims(make):
    assert lists(make(6).batch(2).batch(2)) == [[[0, 1], [2, 3]], [[4, 5]]]


def test_nests_are_stacked_leaf_by_leaf():
    dataset = Dataset.from_tensor_slices(({"a": [[1, 2], [3, 4]]}, [5, 6])).batch(2)
    ((first, second),) = dataset
    assert first["a"].tolist() == [[1, 2], [3, 4]]
    assert second.tolist() == [5, 6]


@pytest.mark.parametrize("make", [indexed, stream])
def test_elements_of_several_shapes_need_padding(make):
    dataset = make(3).map(lambda n: np.full(n, n)).batch(3)
    with pytest.raises(ValueError, match=r"cannot be stacked.*Use padded_batch"):
        list(dataset)


def test_padding_fills_up_to_the_largest_of_the_batch():
    # Observed with TensorFlow 2.21.
    padded = growing(5).padded_batch(2, padding_values=np.int64(-1))
    assert lists(padded) == [[[-1], [1]], [[2, 2, -1], [3, 3, 3]], [[4, 4, 4, 4]]]


def test_padding_fills_up_to_a_declared_shape():
    padded = growing(3).padded_batch(3, padded_shapes=[4])
    assert lists(padded) == [[[0, 0, 0, 0], [1, 0, 0, 0], [2, 2, 0, 0]]]
    assert lists(growing(3).padded_batch(3, padded_shapes=[None])) == [[[0, 0], [1, 0], [2, 2]]]


def test_padding_of_a_nest_is_given_leaf_by_leaf():
    dataset = growing(3).map(lambda x: (x, {"n": len(x)}))
    ((rows, rest),) = dataset.padded_batch(
        3, padded_shapes=([2], {"n": []}), padding_values=(9, {"n": 0})
    )
    assert rows.tolist() == [[9, 9], [1, 9], [2, 2]]
    assert rest["n"].tolist() == [0, 1, 2]


def test_strings_are_padded_with_empty_ones():
    dataset = Dataset.range(3).map(lambda n: np.array([b"x"] * n, object))
    assert lists(dataset.padded_batch(3)) == [[[b"", b""], [b"x", b""], [b"x", b"x"]]]


def test_scalars_are_batched_without_padding():
    assert lists(Dataset.range(3).padded_batch(2)) == [[0, 1], [2]]


def test_unbatch_gives_the_rows():
    assert [int(x) for x in Dataset.range(5).batch(2).unbatch()] == [0, 1, 2, 3, 4]
    rows = list(Dataset.from_tensors({"a": [[1, 2], [3, 4]]}).unbatch())
    assert [row["a"].tolist() for row in rows] == [[1, 2], [3, 4]]


def test_unbatch_knows_its_length_if_every_batch_is_full():
    assert Dataset.range(6).batch(2).unbatch().cardinality() == 6
    assert Dataset.range(5).batch(2).unbatch().cardinality() == UNKNOWN_CARDINALITY


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Dataset.range(3).batch(0), ValueError, "batch got batch_size=0; expected 1"),
        (lambda: Dataset.range(3).batch(-2), ValueError, "batch got batch_size=-2; expected 1"),
        (lambda: Dataset.range(3).batch(2.0), TypeError, r"batch_size=2.0; expected an int"),
        (lambda: Dataset.range(3).padded_batch(0), ValueError, "padded_batch got batch_size=0"),
        (
            lambda: list(growing(3).padded_batch(3, padded_shapes=[1])),
            ValueError,
            r"cannot fill up an element of shape \(2,\) to \(1,\)",
        ),
        (
            lambda: list(Dataset.range(3).padded_batch(3, padded_shapes=[1])),
            ValueError,
            "give it one entry for every dim",
        ),
        (
            lambda: list(growing(3).padded_batch(3, padding_values=0.5)),
            ValueError,
            "padding_values has 0.5 for elements of dtype int64",
        ),
        (
            lambda: list(growing(3).padded_batch(3, padded_shapes=([1], [2]))),
            ValueError,
            "padded_shapes has 2 entries for elements with 1 leaves",
        ),
        (lambda: list(Dataset.range(3).unbatch()), ValueError, "unbatch needs elements whose"),
        (lambda: Dataset.range(3).unbatch().element_spec, ValueError, "these are scalars"),
    ],
)
def test_a_mistake_is_named(make, error, text):
    with pytest.raises(error, match=text):
        make()
