"""Metrics of the user's own: what replicas count is added up, and it is checked that it may be."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import replicax as rx
from tests.integrations.keras.problem import FIT, X, Y, mirrored, mlp, require_equal
from tests.tiers import full_only


class Own(keras.metrics.Metric):
    """A metric with one variable and an update that a test gives."""

    def __init__(self, update: Callable[[Any, Any], None], shape: tuple[int, ...] = ()) -> None:
        super().__init__(name="own")
        self.update = update
        self.state = self.add_variable(shape, initializer="zeros", name="state")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.update(self.state, ops.abs(y_true - y_pred))

    def result(self) -> Any:
        return ops.sum(self.state)


def _adds(state: Any, error: Any) -> None:
    state.assign_add(ops.sum(error))


def _assigns_a_sum(state: Any, error: Any) -> None:
    state.assign(ops.cast(ops.cast(ops.sum(error), "float32") + state, "float32"))


def _adds_under_a_condition(state: Any, error: Any) -> None:
    total = ops.sum(error)
    state.assign(ops.cond(total > 1.0, lambda: state + total, lambda: state - 0.0))


def _adds_where(state: Any, error: Any) -> None:
    state.assign(ops.where(ops.max(error) > 0.1, state + ops.sum(error), state.value))


def _adds_in_a_loop(state: Any, error: Any) -> None:
    state.assign(ops.scan(lambda carry, row: (carry + ops.sum(row), row), state.value, error)[0])


def _adds_twice(state: Any, error: Any) -> None:
    state.assign_add(ops.sum(error))
    state.assign_sub(2.0 * ops.sum(error))


ADDITIVE = [_adds, _assigns_a_sum, _adds_under_a_condition, _adds_where, _adds_in_a_loop]


@pytest.mark.parametrize("update", [_adds_twice, *(full_only(update) for update in ADDITIVE)])
def test_what_is_added_is_that_of_one_device(update: Callable[[Any, Any], None]) -> None:
    def program() -> Any:
        model = mlp()
        model.compile("sgd", "mse", metrics=[Own(update)])
        return model, model.fit(X, Y, **FIT).history

    require_equal(program, mirrored(3))


def _keeps_the_largest(state: Any, error: Any) -> None:
    state.assign(ops.maximum(state, ops.max(error)))


def _keeps_the_last(state: Any, error: Any) -> None:
    state.assign(ops.mean(error))


def _forgets(state: Any, error: Any) -> None:
    state.assign(0.9 * state + ops.mean(error))


def _doubles_in_a_loop(state: Any, error: Any) -> None:
    state.assign(ops.scan(lambda carry, row: (carry * 2.0, row), state.value, error)[0])


def _chooses_by_itself(state: Any, error: Any) -> None:
    state.assign(ops.where(state > 1.0, state.value, state + ops.sum(error)))


OTHERS = [_keeps_the_largest, _keeps_the_last, _forgets, _doubles_in_a_loop, _chooses_by_itself]
MESSAGE = (
    "update_state of metric 'own', a Own, assigns variable 'state' something else than its value "
    r"plus what the batch adds.*context.all_gather\(.*aggregation='only_first_replica'"
)


@pytest.mark.parametrize("update", OTHERS)
def test_what_is_not_added_is_an_error(update: Callable[[Any, Any], None]) -> None:
    with mirrored(2).scope():
        model = mlp()
        model.compile("sgd", "mse", metrics=[Own(update)])
    before = model.get_weights()
    with pytest.raises(ValueError, match=MESSAGE):
        model.fit(X, Y, **FIT)
    for weight, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, old)


def test_a_metric_made_outside_of_the_scope_is_checked() -> None:
    metric = Own(_keeps_the_largest)
    with mirrored(2).scope():
        model = mlp()
        model.compile("sgd", "mse", metrics=[metric])
    with pytest.raises(ValueError, match=MESSAGE):
        model.evaluate(X, Y, verbose=0)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_a_metric_of_a_custom_loop_is_checked(compiled: bool) -> None:
    strategy = mirrored(2)
    with strategy.scope():
        metric, good = Own(_keeps_the_largest), Own(_adds)

    def step(metric: Any, x: Any) -> None:
        metric.update_state(x, 0.0 * x)

    batch = strategy.distribute_batch(np.arange(3, dtype="float32"))
    for each in (good, metric):
        run = lambda x, each=each: step(each, x)  # noqa: E731
        run = rx.function(run) if compiled else run
        if each is good:
            strategy.run(run, args=(batch,))
            assert float(each.result()) == 3.0
            continue
        with pytest.raises(ValueError, match=MESSAGE):
            strategy.run(run, args=(batch,))


class Largest(keras.metrics.Metric):
    """A maximum as the error says: over the replicas in the update, then replica 0's is read."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.state = self.add_variable(
            (), initializer="zeros", aggregation="only_first_replica", name="state"
        )
        self.count = self.add_variable((), initializer="zeros", name="count")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        errors = ops.abs(y_true - y_pred)
        self.count.assign_add(ops.cast(ops.size(errors), "float32"))
        if (context := rx.get_replica_context()) is not None:
            errors = context.all_gather(errors, axis=0)
        self.state.assign(ops.maximum(self.state, ops.max(errors)))

    def result(self) -> Any:
        return self.state + 0.0


@pytest.mark.parametrize("count", [2, full_only(8)])
@pytest.mark.parametrize("eager", [False, full_only(True)])
def test_a_maximum_that_is_combined_in_the_update_is_that_of_one_device(
    count: int, eager: bool
) -> None:
    def program() -> Any:
        model = mlp()
        model.compile("sgd", "mse", metrics=[Largest()], run_eagerly=eager)
        return model, model.fit(X, Y, **FIT).history

    require_equal(program, mirrored(count))
