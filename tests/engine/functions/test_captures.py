"""Values that a replica function of a host loop has captured, and that change from step to step."""

import functools
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from tests.engine.functions.test_host_loop import Batches


@pytest.fixture
def strategy():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


class Epoch:
    """Runs ``make(i)`` in step i of a host loop."""

    def __init__(self, strategy, make):
        self.num_traces = 0
        self.strategy = strategy

        @rx.function
        def epoch(dataset):
            return [
                strategy.run(make(i, self.note), args=(batch,)) for i, batch in enumerate(dataset)
            ]

        self._epoch = epoch

    def note(self, value):
        self.num_traces += 1
        return value

    def __call__(self, num_steps=4):
        results = self._epoch(Batches(self.strategy, sizes=(4,) * num_steps))
        return [self.strategy.experimental_local_results(result) for result in results]


def captured_float(i, note):
    scale = 0.5 * i
    return lambda x: note(x.sum() * scale)


def captured_array(i, note):
    weights = jnp.full(2, 0.5 * i)
    return lambda x: note((x * weights).sum())


def captured_host_array(i, note):
    weights = np.full(2, 0.5 * i, np.float32)
    return lambda x: note((x * weights).sum())


def captured_default(i, note):
    def fn(x, scale=0.25 * i, *, factor=2.0):
        return note(x.sum() * scale * factor)

    return fn


def captured_by_a_captured_function(i, note):
    scale = 0.5 * i

    def scaled(x):
        return x * scale

    return lambda x: note(scaled(x).sum())


def captured_by_a_partial(i, note):
    return functools.partial(lambda scale, x: note(x.sum() * scale), 0.5 * i)


@pytest.mark.parametrize(
    "make",
    [
        captured_float,
        captured_array,
        captured_host_array,
        captured_default,
        captured_by_a_captured_function,
        captured_by_a_partial,
    ],
)
def test_a_captured_number_or_array_that_changes_becomes_an_input(strategy, make):
    epoch = Epoch(strategy, make)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            assert [[float(x) for x in step] for step in epoch(16)] == [[i, i] for i in range(16)]
    assert epoch.num_traces == 2


def test_a_captured_number_that_stays_is_a_constant_that_python_may_use(strategy):
    rate, decay = 0.25, 0.999

    def make(i, note):
        def fn(x):
            return note(x * (rate if rate > 0 else 1.0) + (1 - decay))

        return fn

    epoch = Epoch(strategy, make)
    steps = epoch(3) + epoch(3)
    assert epoch.num_traces == 1
    expected = np.float32(0.25) + np.float32(1 - 0.999)
    np.testing.assert_array_equal([x for step in steps for x in step], np.full((12, 2), expected))


def test_a_captured_array_that_is_returned_is_the_same_object(strategy):
    arrays = [jnp.full(2, float(i)) for i in range(4)]

    @rx.function
    def epoch(dataset):
        results = []
        for array, batch in zip(arrays, dataset, strict=True):
            number = float(array[0])
            results.append(strategy.run(lambda x: (array, number), args=(batch,)))  # noqa: B023
        return results

    results = epoch(Batches(strategy, sizes=(4,) * 4))
    assert all(array is result[0] for array, result in zip(arrays, results, strict=True))
    assert [number for _, number in results] == [0.0, 1.0, 2.0, 3.0]


def test_a_captured_host_array_that_is_returned_is_per_replica(strategy):
    def make(i, note):
        array = np.full(3, i, np.int32)
        return lambda x: note(array)

    epoch = Epoch(strategy, make)
    for i, step in enumerate(epoch()):
        assert [x.tolist() for x in step] == [[i] * 3] * 2


def test_a_captured_number_that_python_branches_on_is_compiled_for_each_value(strategy):
    def make(i, note):
        rate, scale = 0.25 * i, 2.0 * i

        def fn(x):
            note(None)
            return x.sum() * scale if rate > 0.5 else x.sum() + scale

        return fn

    epoch = Epoch(strategy, make)
    with pytest.warns(rx.ReplicaxWarning, match="'rate' changed.*Python needs its value") as caught:
        steps = epoch(8)
    assert len(caught) == 1
    assert "make.<locals>.fn' has been traced 5 times" in str(caught[0].message)
    expected = [2.0 + 2 * i if 0.25 * i <= 0.5 else 4.0 * i for i in range(8)]
    assert [[float(x) for x in step] for step in steps] == [[x, x] for x in expected]


def test_a_captured_number_that_other_functions_have_captured_is_never_stale(strategy):
    @rx.function
    def epoch(dataset):
        results, scale = [], 0.0
        helpers = [lambda x: x * scale]

        for batch in dataset:
            scale = len(results) + 0.5
            run = strategy.run(lambda x: helpers[0](x).sum() + scale, args=(batch,))  # noqa: B023
            results.append(run)
        return [float(strategy.reduce("MEAN", result, axis=None)) for result in results]

    dataset = Batches(strategy, sizes=(4,) * 4)
    assert epoch(dataset) == [1.5, 4.5, 7.5, 10.5]


def test_a_captured_number_that_the_function_assigns_is_assigned_when_it_is_traced(strategy):
    @rx.function
    def epoch(dataset):
        count, scale = 0.0, 1.0

        def fn(x):
            nonlocal count
            count += 1.0
            return x.sum() * scale

        for i, batch in enumerate(dataset):
            scale = float(i)
            strategy.run(fn, args=(batch,))
        return count

    assert epoch(Batches(strategy, sizes=(4,) * 3)) == 3.0


def test_an_error_of_the_function_arrives_as_it_is_whatever_it_has_captured(strategy):
    def make(i, note):
        scale = 0.5 * i

        def fn(x):
            if i == 2:
                raise KeyError("mine")
            return x * scale

        return fn

    with pytest.raises(KeyError, match="mine"):
        Epoch(strategy, make)()


def test_a_function_that_is_compiled_again_and_again_in_a_loop_warns_once(strategy):
    def make(i, note):
        width = i
        return lambda x: note(x * width)

    with pytest.warns(rx.ReplicaxWarning, match="'width' changed: 4 -> 5") as caught:
        Epoch(strategy, make)(9)
    assert len(caught) == 1
