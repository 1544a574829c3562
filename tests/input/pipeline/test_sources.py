"""Where elements come from: arrays, one element, ranges, generators."""

import collections

import jax.numpy as jnp
import numpy as np
import pytest

from replicax import TensorSpec
from replicax.data import UNKNOWN_CARDINALITY, Dataset

Point = collections.namedtuple("Point", ["x", "y"])


def test_slices_of_an_array_are_its_rows():
    rows = list(Dataset.from_tensor_slices(np.arange(6).reshape(3, 2)))
    np.testing.assert_array_equal(rows, [[0, 1], [2, 3], [4, 5]])


def test_slices_of_a_nest_are_nests():
    dataset = Dataset.from_tensor_slices({"a": [1, 2], "b": ([3.0, 4.0], Point([5, 6], [7, 8]))})
    first, second = dataset
    assert first == {"a": 1, "b": (3.0, Point(5, 7))}
    assert second == {"a": 2, "b": (4.0, Point(6, 8))}
    assert isinstance(second["b"][1], Point)


def test_a_list_of_arrays_is_stacked():
    dataset = Dataset.from_tensor_slices([np.array([1, 2]), np.array([3, 4])])
    np.testing.assert_array_equal(list(dataset), [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2], "int64"),
        ([1.0, 2.0], "float32"),
        ([1, 2.5], "float32"),
        ([True], "bool"),
        ([], "float32"),
        (np.array([1.0]), "float64"),
        (np.array([1], np.int8), "int8"),
        ([np.float64(1.0), np.float64(2.0)], "float64"),
        (jnp.array([1.0]), "float32"),
        (jnp.array([1.0], jnp.bfloat16), "bfloat16"),
        (["a"], "object"),
        (np.array(["a", "bc"]), "object"),
    ],
    ids=str,
)
def test_python_numbers_have_the_dtypes_of_tensors_and_arrays_keep_theirs(values, dtype):
    assert Dataset.from_tensor_slices(values).element_spec.dtype.name == dtype


def test_strings_are_bytes_without_loss():
    dataset = Dataset.from_tensor_slices(["a", "é", "ends in nul\0"])
    assert list(dataset) == [b"a", "é".encode(), b"ends in nul\0"]
    (batch,) = dataset.batch(3)
    assert batch.tolist() == [b"a", "é".encode(), b"ends in nul\0"]


def test_an_element_of_an_array_cannot_be_written_to():
    array = np.zeros((2, 2))
    (row, _) = Dataset.from_tensor_slices(array)
    with pytest.raises(ValueError, match="read-only"):
        row[0] = 1


def test_an_array_mapped_from_a_file_gives_plain_arrays(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(6).reshape(3, 2))
    dataset = Dataset.from_tensor_slices(np.load(tmp_path / "x.npy", mmap_mode="r"))
    assert [type(row) for row in dataset] == [np.ndarray] * 3
    assert [batch.tolist() for batch in dataset.batch(2)] == [[[0, 1], [2, 3]], [[4, 5]]]


def test_one_element_is_kept_whole():
    (element,) = Dataset.from_tensors(([1, 2], {"a": 3}))
    np.testing.assert_array_equal(element[0], [1, 2])
    assert element[1] == {"a": 3}
    assert len(Dataset.from_tensors(5).repeat(2)) == 2


@pytest.mark.parametrize("args", [(5,), (2, 5), (2, 9, 3), (5, 2), (5, 0, -2), (0,)], ids=str)
def test_a_range_counts_as_python_does(args):
    dataset = Dataset.range(*args)
    assert list(dataset) == list(range(*args))
    assert len(dataset) == len(range(*args))


def test_a_range_has_the_dtype_it_is_asked_for():
    assert Dataset.range(2).element_spec == TensorSpec((), "int64")
    assert [x.dtype.name for x in Dataset.range(1, output_type=np.int32)] == ["int32"]


def test_a_generator_is_called_once_for_every_pass():
    calls = []

    def numbers(stop):
        calls.append(stop)
        yield from range(stop)

    dataset = Dataset.from_generator(numbers, args=(3,))
    assert calls == []
    assert list(dataset) == list(dataset) == [0, 1, 2]
    assert calls == [3, 3]
    assert dataset.cardinality() == UNKNOWN_CARDINALITY


def test_a_signature_gives_dtypes_and_needs_no_reading():
    def fails():
        raise AssertionError("read")
        yield

    signature = (TensorSpec((None,), "float32"), {"n": TensorSpec((), "int8")})
    dataset = Dataset.from_generator(fails, output_signature=signature)
    assert dataset.element_spec == signature

    dataset = Dataset.from_generator(lambda: [([1, 2], {"n": 3})], output_signature=signature)
    ((array, rest),) = dataset
    assert (array.dtype, rest["n"].dtype) == (np.float32, np.int8)


def test_types_and_shapes_are_the_older_signature():
    dataset = Dataset.from_generator(
        lambda: [(1, [2, 3])], output_types=(np.int32, np.float32), output_shapes=((), (2,))
    )
    assert dataset.element_spec == (TensorSpec((), "int32"), TensorSpec((2,), "float32"))
    unknown = Dataset.from_generator(lambda: [1], output_types=np.int32)
    assert unknown.element_spec == TensorSpec(None, "int32")


def test_without_a_signature_one_element_is_read_for_the_spec():
    read = []

    def numbers():
        for i in range(10):
            read.append(i)
            yield np.float32(i)

    assert Dataset.from_generator(numbers).element_spec == TensorSpec((), "float32")
    assert read == [0]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Dataset.from_tensor_slices(3), ValueError, "what it got is the scalar"),
        (lambda: Dataset.from_tensor_slices(([1, 2], 3)), ValueError, r"\[1\] is the scalar"),
        (
            lambda: Dataset.from_tensor_slices({"a": [1, 2], "b": [3]}),
            ValueError,
            r"one length in dim 0; got \['a'\]: 2, \['b'\]: 1",
        ),
        (lambda: Dataset.from_tensor_slices(()), ValueError, "has no arrays in it"),
        (lambda: Dataset.from_tensor_slices([[1], [2, 3]]), ValueError, "write a tuple or a dict"),
        (lambda: Dataset.from_tensor_slices([object()]), ValueError, "no array of numbers"),
        (lambda: Dataset.from_tensors(object()), ValueError, "no array of numbers or strings"),
        (lambda: Dataset.from_generator(iter([1])), TypeError, "pass lambda: my_iterator"),
        (
            lambda: Dataset.from_generator(list, output_signature=np.int32),
            TypeError,
            "expected TensorSpec, or a tuple or dict",
        ),
        (
            lambda: Dataset.from_generator(list, np.int32, output_signature=TensorSpec(())),
            TypeError,
            "give output_signature alone",
        ),
        (lambda: Dataset.from_generator(list, None, ()), TypeError, "without output_types"),
        (lambda: Dataset.from_generator(list).element_spec, ValueError, "yielded nothing"),
        (lambda: Dataset([1, 2]), TypeError, "make one with Dataset.from_tensor_slices"),
    ],
)
def test_a_mistake_is_named(make, error, text):
    with pytest.raises(error, match=text):
        make()


@pytest.mark.parametrize(
    ("values", "signature", "text"),
    [
        ([[1, 2], [3]], TensorSpec((2,), "int32"), r"shape \(1,\), but \(2,\) was declared"),
        ([1], (TensorSpec(()),), "does not have the declared structure"),
        ([{"a": 1}], {"b": TensorSpec(())}, "does not have the declared structure"),
        (["text"], TensorSpec((), "int32"), "dtype object, but int32 was declared"),
        ([None], None, "yielded None"),
    ],
)
def test_a_generator_that_does_not_keep_its_word_is_stopped(values, signature, text):
    dataset = Dataset.from_generator(lambda: values, output_signature=signature)
    with pytest.raises(ValueError, match=text):
        list(dataset)
