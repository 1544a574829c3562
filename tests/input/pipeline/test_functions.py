"""map, filter, interleave, enumerate, reduce, apply."""

import threading

import jax.numpy as jnp
import numpy as np
import pytest

from replicax.data import AUTOTUNE, INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, Dataset


def ints(dataset):
    return [int(x) for x in dataset]


def test_the_parts_of_a_tuple_are_the_arguments():
    dataset = Dataset.from_tensor_slices(([1, 2], [10, 20])).map(lambda a, b: a + b)
    assert ints(dataset) == [11, 22]


def test_a_dict_is_one_argument():
    assert ints(Dataset.from_tensor_slices({"a": [1, 2]}).map(lambda d: d["a"] + 1)) == [2, 3]


def test_a_function_may_use_jax_and_gives_host_arrays():
    (result, *_) = Dataset.range(2).map(lambda x: jnp.full(3, x, "float32"))
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, np.zeros(3, "float32"))


def test_a_list_that_a_function_returns_is_a_tuple_and_an_inner_one_an_array():
    (pair,) = Dataset.range(1).map(lambda x: [x, {"a": [1.0, 2.0]}])
    assert isinstance(pair, tuple)
    assert pair[1]["a"].dtype == np.float32


def test_a_function_is_not_called_before_iterating():
    calls = []
    dataset = Dataset.range(3).map(lambda x: calls.append(int(x)) or x)
    assert calls == []
    it = iter(dataset)
    next(it)
    assert calls == [0]


@pytest.mark.parametrize("source", ["indexed", "stream"])
@pytest.mark.parametrize("num_parallel_calls", [1, 4, AUTOTUNE])
def test_threads_keep_the_order(source, num_parallel_calls):
    dataset = Dataset.range(50)
    if source == "stream":
        dataset = dataset.filter(lambda x: True)
    names = set()

    def square(x):
        names.add(threading.current_thread().name)
        return x * x

    dataset = dataset.map(square, num_parallel_calls=num_parallel_calls, deterministic=False)
    assert ints(dataset) == [x * x for x in range(50)]
    assert threading.main_thread().name not in names


def test_an_error_in_a_function_reaches_the_loop():
    def fails(x):
        if x == 2:
            raise KeyError("two")
        return x

    for calls in (None, 2):
        seen = []
        with pytest.raises(KeyError, match="two"):
            for x in Dataset.range(5).map(fails, num_parallel_calls=calls):
                seen.append(int(x))
        assert seen == [0, 1]


def test_filter_keeps_what_is_true():
    dataset = Dataset.range(10).filter(lambda x: x % 3 == 0)
    assert ints(dataset) == [0, 3, 6, 9]
    assert dataset.cardinality() == UNKNOWN_CARDINALITY
    assert Dataset.range(3).repeat().filter(bool).cardinality() == INFINITE_CARDINALITY


def test_filter_after_a_parallel_map_keeps_the_order():
    dataset = Dataset.range(20).map(lambda x: x + 1, num_parallel_calls=3)
    assert ints(dataset.filter(lambda x: x % 2 == 0).map(lambda x: x // 2)) == list(range(1, 11))


def test_interleave_takes_blocks_in_turns():
    # Observed with TensorFlow 2.21.
    dataset = Dataset.range(1, 4)
    for threads in (None, 2):
        turns = dataset.interleave(
            lambda x: Dataset.from_tensors(x).repeat(3 + x),
            cycle_length=2,
            block_length=2,
            num_parallel_calls=threads,
        )
        assert ints(turns) == [1, 1, 2, 2, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3]


def test_interleave_goes_through_more_datasets_than_it_holds_open():
    dataset = Dataset.range(5).interleave(
        lambda x: Dataset.from_tensors(x).repeat(2), cycle_length=2
    )
    assert ints(dataset) == [0, 1, 0, 1, 2, 3, 2, 3, 4, 4]


def test_interleave_passes_over_empty_datasets():
    dataset = Dataset.range(4).interleave(lambda x: Dataset.range(x).take(1), cycle_length=2)
    assert ints(dataset) == [0, 0, 0]


def test_flat_map_goes_through_one_dataset_after_another():
    assert ints(Dataset.range(4).flat_map(Dataset.range)) == [0, 0, 1, 0, 1, 2]


def test_enumerate_counts_from_the_start_in_every_pass():
    dataset = Dataset.from_tensor_slices([5, 6]).enumerate(start=3)
    assert list(dataset) == [(3, 5), (4, 6)]
    assert list(dataset.repeat(2)) == [(3, 5), (4, 6)] * 2
    stream = Dataset.range(4).filter(lambda x: x > 1).enumerate()
    assert list(stream.repeat(2)) == [(0, 2), (1, 3)] * 2


def test_reduce_combines_all_elements():
    dataset = Dataset.range(5)
    assert dataset.reduce(np.int64(0), lambda total, x: total + x) == 10
    count, total = Dataset.zip(dataset, dataset).reduce(
        (0, 0), lambda state, pair: (state[0] + 1, state[1] + pair[0] * pair[1])
    )
    assert (count, total) == (5, 30)


def test_apply_gives_the_dataset_to_a_function():
    assert ints(Dataset.range(5).apply(lambda ds: ds.take(2))) == [0, 1]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Dataset.range(3).map(3), TypeError, "map got 3; expected a function"),
        (lambda: Dataset.range(3).filter(None), TypeError, "filter got None; expected a func"),
        (lambda: list(Dataset.range(3).map(lambda x: None)), ValueError, "Use filter to drop"),
        (lambda: list(Dataset.range(3).map(lambda x: object())), ValueError, "the result of <l"),
        (lambda: list(Dataset.range(3).filter(lambda x: 1)), ValueError, "expected one boolean"),
        (lambda: list(Dataset.range(3).filter(lambda x: [True])), ValueError, "one boolean"),
        (lambda: Dataset.range(3).map(abs, num_parallel_calls=0), ValueError, "data.AUTOTUNE, or"),
        (lambda: list(Dataset.range(3).interleave(abs)), TypeError, "Use map for a function"),
        (
            lambda: Dataset.range(3).interleave(Dataset.range, cycle_length=0),
            ValueError,
            "interleave got cycle_length=0; expected 1 or more",
        ),
        (lambda: Dataset.range(3).apply(len), TypeError, "returned int; expected a Dataset"),
        (
            lambda: Dataset.range(3).repeat().reduce(0, lambda s, x: s),
            ValueError,
            "would never end",
        ),
    ],
)
def test_a_mistake_is_named(make, error, text):
    with pytest.raises(error, match=text):
        make()
