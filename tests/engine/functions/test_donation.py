"""Donated buffers: given to the step, kept where somebody else holds them, lost with a failure."""

import gc
import re
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.backend import runahead
from replicax.core.errors import LostVariableError
from tests.engine.functions.test_traces import compilations

SUM = rx.VariableAggregation.SUM


@pytest.fixture(params=[1, 2, 8])
def strategy(request):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(request.param)])


def buffer_of(variable):
    return variable._storage.array


def test_a_step_takes_the_old_buffer(strategy):
    with strategy.scope():
        v = rx.Variable(jnp.ones(100), aggregation=SUM)
    step = rx.function(lambda: v.assign_add(jnp.ones(100)))
    old = buffer_of(v)
    strategy.run(step)
    assert old.is_deleted()
    assert float(v[0]) == 1.0 + strategy.num_replicas_in_sync


def test_without_donation_the_old_buffer_stays(strategy):
    with strategy.scope():
        v = rx.Variable(jnp.ones(100), aggregation=SUM)
    step = rx.function(lambda: v.assign_add(jnp.ones(100)), donate=False)
    old = buffer_of(v)
    strategy.run(step)
    assert not old.is_deleted()
    assert float(v[0]) == 1.0 + strategy.num_replicas_in_sync


def test_variables_that_are_only_read_keep_their_buffer(strategy):
    with strategy.scope():
        v = rx.Variable(jnp.ones(100))
    step = rx.function(lambda: v.value.sum())
    old = buffer_of(v)
    strategy.run(step)
    assert buffer_of(v) is old
    assert not old.is_deleted()


@pytest.mark.parametrize("donate", [True, False])
def test_a_returned_value_outlives_later_steps(strategy, donate):
    with strategy.scope():
        v = rx.Variable(jnp.arange(3.0), aggregation=SUM)
    read = rx.function(lambda: v.value, donate=donate)
    add = rx.function(lambda: v.assign_add(jnp.ones(3)), donate=donate)
    both = rx.function(lambda: v.assign_add(jnp.ones(3)).value, donate=donate)
    kept = [read(), strategy.run(read), both(), read()]
    expected = [np.array(strategy.experimental_local_results(value)[0]) for value in kept]
    for _ in range(3):
        strategy.run(add)
        both()
    for value, array in zip(kept, expected, strict=True):
        np.testing.assert_array_equal(strategy.experimental_local_results(value)[0], array)
    np.testing.assert_array_equal(expected[0], [0, 1, 2])
    np.testing.assert_array_equal(expected[3], [1, 2, 3])


@pytest.mark.parametrize("hold", ["value", "copies", "checkpoint", "numpy"])
def test_a_step_is_compiled_once_whatever_is_held_of_its_variables(strategy, hold, tmp_path):
    with strategy.scope():
        v = rx.Variable(jnp.ones(100), name="v", aggregation=SUM)
    checkpoint = rx.Checkpoint(v=v)
    holding = {
        "value": lambda: v.value,
        "copies": lambda: strategy.experimental_local_results(v)[-1].read_value(),
        "checkpoint": lambda: checkpoint.save(tmp_path / "held") and None,
        "numpy": v.numpy,
    }[hold]
    step = rx.function(lambda: v.assign_add(jnp.ones(100)))
    for _ in range(3):
        strategy.run(step)
    holding()
    strategy.run(step)  # copies, which JAX may have to prepare
    n = strategy.num_replicas_in_sync
    with compilations() as count:
        for number in range(4, 8):
            held = holding()
            strategy.run(step)
            strategy.run(step)
            if held is not None:
                np.testing.assert_array_equal(held, np.full(100, 1.0 + n * (2 * number - 4)))
    assert count == []
    assert float(v[0]) == 1.0 + 12 * n


def test_two_variables_given_the_same_value_by_a_step_own_their_buffers(strategy):
    with strategy.scope():
        a, b = (rx.Variable(jnp.zeros(4), aggregation=SUM) for _ in range(2))

    @rx.function
    def tie(x):
        a.assign(x)
        b.assign(x)
        return x

    @rx.function
    def swap():
        first, second = a.value, b.value
        a.assign(second + 0.0)
        b.assign(first)

    @rx.function
    def add_to_a():
        a.assign_add(jnp.ones(4))

    x = jnp.ones(4)
    result = tie(x)
    add_to_a()
    swap()
    add_to_a()
    swap()
    assert float(a[0]) == 2.0
    assert float(b[0]) == 2.0
    np.testing.assert_array_equal(result, np.ones(4))
    np.testing.assert_array_equal(x, np.ones(4))


def test_a_variable_that_is_an_argument_and_captured_is_donated_once():
    v = rx.Variable(jnp.ones(4))
    step = rx.function(lambda w: v.assign_add(w * 1.0))
    step(v)
    step(v)
    assert float(v[0]) == 4.0


# -- failures ----------------------------------------------------------------------------------


class Failure:
    """A step that writes variables and fails on the device when it is told to."""

    def __init__(self, strategy, *, donate):
        with strategy.scope():
            self.weights = rx.Variable(jnp.ones(4), name="weights", aggregation=SUM)
            self.bias = rx.Variable(jnp.ones(2), name="bias", aggregation=SUM)
            self.constant = rx.Variable(jnp.full(3, 7.0), name="constant")
        self.strategy = strategy
        self.step = rx.function(self._step, donate=donate)

    def _step(self, fails):
        x = self.constant.value
        y = jax.pure_callback(_callback, jax.ShapeDtypeStruct(x.shape, x.dtype), x, fails)
        self.weights.assign_add(jnp.ones(4) * y[0])
        self.bias.assign_add(jnp.ones(2) * y[1])

    def run(self):
        self.strategy.run(self.step, args=(0.0,))

    def fail(self):
        """Fails on every replica: if some went on alone they would wait for the others."""
        with pytest.raises(Exception, match="callback failed on purpose"):
            self.strategy.run(self.step, args=(1.0,))
            runahead.wait()


def _callback(x, fails):
    if fails:
        raise ValueError("the callback failed on purpose")
    return np.asarray(x)


@pytest.fixture
def quiet_callbacks(caplog):
    """JAX logs the traceback of a callback that raises."""
    yield
    caplog.clear()


def test_variables_donated_to_a_failed_step_are_named_as_lost(strategy, quiet_callbacks):
    failure = Failure(strategy, donate=True)
    failure.run()
    gain = 7.0 * strategy.num_replicas_in_sync
    assert float(failure.weights[0]) == 1.0 + gain
    failure.run()  # this one donates again: the read above has kept the other buffer
    failure.fail()
    for name in ("weights", "bias"):
        text = (
            f"variable '{name}' was donated to an execution that failed on the device, and its "
            "value is lost. Restore it with assign or from a checkpoint"
        )
        with pytest.raises(LostVariableError, match=re.escape(text)):
            getattr(failure, name).numpy()
    with pytest.raises(LostVariableError, match="variable 'weights' was donated"):
        failure.run()
    assert float(failure.constant[0]) == 7.0


def test_assign_restores_lost_variables(strategy, quiet_callbacks):
    failure = Failure(strategy, donate=True)
    failure.run()
    failure.fail()
    failure.weights.assign(jnp.zeros(4))
    with pytest.raises(LostVariableError, match="variable 'bias' was donated"):
        failure.run()
    failure.bias.assign(jnp.zeros(2))
    failure.run()
    gain = 7.0 * strategy.num_replicas_in_sync
    assert (float(failure.weights[0]), float(failure.bias[0])) == (gain, gain)


def test_without_donation_a_failed_step_keeps_the_values(strategy, quiet_callbacks):
    failure = Failure(strategy, donate=False)
    failure.run()
    gain = 7.0 * strategy.num_replicas_in_sync
    failure.fail()
    assert (float(failure.weights[0]), float(failure.bias[0])) == (1.0 + gain, 1.0 + gain)
    failure.run()
    assert float(failure.weights[0]) == 1.0 + 2 * gain


def test_a_value_that_was_handed_out_survives_a_failure(strategy, quiet_callbacks):
    failure = Failure(strategy, donate=True)
    kept = [failure.weights.value, failure.bias.value]
    failure.fail()
    np.testing.assert_array_equal(kept[0], np.ones(4))
    np.testing.assert_array_equal(kept[1], np.ones(2))
    failure.weights.assign(kept[0])
    failure.bias.assign(kept[1])
    failure.run()
    assert float(failure.weights[0]) == 1.0 + 7.0 * strategy.num_replicas_in_sync


def test_lost_variables_can_go_away(strategy, quiet_callbacks):
    failure = Failure(strategy, donate=True)
    failure.run()
    failure.fail()
    del failure
    gc.collect()
    with strategy.scope():
        v = rx.Variable(1.0, aggregation=SUM)
    strategy.run(rx.function(lambda: v.assign_add(1.0)))
    assert float(v) == 1.0 + strategy.num_replicas_in_sync


def test_an_error_while_tracing_loses_nothing(strategy):
    with strategy.scope():
        v = rx.Variable(1.0, aggregation=SUM)

    @rx.function
    def step(x):
        v.assign_add(x)
        raise KeyError("in the user's code")

    with pytest.raises(KeyError, match="in the user's code"):
        strategy.run(step, args=(1.0,))
    assert float(v) == 1.0


def outputs_of(step, x):
    """The number of results of the compiled step, with what tells that it is done."""
    return len(jax.tree.leaves(step.lower(x).out_info))


def test_the_smallest_result_tells_that_a_step_is_done():
    @rx.function
    def step(x):
        return jnp.cos(x), jnp.sum(x), jnp.sin(x)

    x = jnp.arange(8.0)
    step(x)
    assert outputs_of(step, x) == 3
    assert runahead.RUN_AHEAD.tokens[-1].shape == ()


def test_large_results_are_not_kept_until_later_steps_are_done():
    @rx.function
    def step(x):
        return jnp.cos(x)

    x = jnp.arange(2.0**20 + 1)  # a little more than 4 MB
    gone = weakref.ref(step(x))
    gc.collect()
    assert outputs_of(step, x) == 2
    assert gone() is None
