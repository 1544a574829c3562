"""element_spec: what elements look like, without reading more than one."""

import numpy as np
import pytest

from replicax import TensorSpec
from replicax.data import Dataset, TextLineDataset

SCALAR = TensorSpec((), "int64")


def spec(*shape, dtype="int64"):
    return TensorSpec(shape, dtype)


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (Dataset.range(4).batch(2), spec(None)),
        (Dataset.range(4).batch(2, drop_remainder=True), spec(2)),
        (Dataset.range(4).batch(2).batch(3, drop_remainder=True), spec(3, None)),
        (Dataset.range(4).batch(2).map(lambda x: x + 1), spec(None)),
        (Dataset.range(4).batch(2).map(lambda x: (x, x.sum())), (spec(None), SCALAR)),
        (Dataset.range(4).batch(2, True).map(lambda x: x[:, None] * 1.5), None),
        (Dataset.range(4).batch(2).unbatch(), SCALAR),
        (Dataset.range(4).shuffle(2).repeat().take(3).skip(1).cache().prefetch(1), SCALAR),
        (Dataset.range(4).enumerate(), (SCALAR, SCALAR)),
        (Dataset.range(4).padded_batch(2), spec(None)),
        (Dataset.range(4).padded_batch(2, drop_remainder=True), spec(2)),
        (Dataset.range(4).map(lambda n: np.full(n, n)).padded_batch(2), spec(None, None)),
        (Dataset.range(4).map(lambda n: np.full(n, n)).padded_batch(2, [5]), spec(None, 5)),
        (Dataset.zip({"a": Dataset.range(2)}), {"a": SCALAR}),
        (Dataset.range(2).interleave(lambda x: Dataset.range(3).batch(2)), spec(None)),
        (Dataset.from_tensor_slices(np.zeros((2, 3))), spec(3, dtype="float64")),
        (Dataset.from_tensor_slices(np.zeros((0, 3))).map(lambda x: x), spec(3, dtype="float64")),
        (
            Dataset.from_tensors([1, 2]).concatenate(Dataset.from_tensors([1, 2, 3])),
            spec(None),
        ),
    ],
)
def test_the_spec_is_known(dataset, expected):
    expected = spec(2, 1, dtype="float64") if expected is None else expected
    assert dataset.element_spec == expected


def test_a_function_is_called_on_one_element_once():
    calls = []
    dataset = Dataset.range(100).shuffle(100).map(lambda x: calls.append(1) or x)
    dataset = dataset.map(lambda x: calls.append(2) or x).batch(10).map(lambda x: x + 1.5)
    assert dataset.element_spec == dataset.element_spec == spec(None, dtype="float64")
    assert calls == [1, 2]


def test_a_shuffle_of_a_stream_is_not_filled_for_the_spec():
    read = []

    def numbers():
        for i in range(1000):
            read.append(i)
            yield i

    assert Dataset.from_generator(numbers).shuffle(1000).batch(5).element_spec == spec(None)
    assert read == [0]


def test_a_function_after_filter_sees_only_what_passes():
    dataset = Dataset.range(5).filter(lambda x: x > 2).map(lambda x: 6 // int(x - 2))
    assert dataset.element_spec == SCALAR


def test_a_text_file_is_not_opened_for_its_spec():
    assert TextLineDataset("missing").batch(2).element_spec == TensorSpec((None,), object)


def test_datasets_of_other_elements_cannot_be_concatenated():
    dataset = Dataset.range(2).concatenate(Dataset.range(2, output_type=np.int32))
    with pytest.raises(ValueError, match="concatenate needs elements of one structure and type"):
        _ = dataset.element_spec
    with pytest.raises(ValueError, match="concatenate needs elements of one structure and type"):
        _ = Dataset.range(2).concatenate(Dataset.range(2).enumerate()).element_spec


def test_an_attribute_error_of_a_function_is_shown_as_it_is():
    dataset = Dataset.range(2).map(lambda x: x.no_such_thing)
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = dataset.element_spec
