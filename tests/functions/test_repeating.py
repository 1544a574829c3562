"""The same call again is recognised, and everything that makes it another call is noticed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.core.protocols import DIFFERENT
from replicax.functions import repeating
from tests.functions.steps import counting_step


@pytest.fixture(params=[1, 2])
def strategy(request):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(request.param)])


@pytest.fixture
def repeated(monkeypatch):
    """Counts the calls that were recognised and those that were not."""
    counts = {"same": 0, "different": 0}
    make = repeating.repeat_of

    def counted(*args):
        repeat = make(*args)

        def call(strategy, args):
            result = repeat(strategy, args)
            counts["different" if result is DIFFERENT else "same"] += 1
            return result

        return call

    monkeypatch.setattr("replicax.functions.call_site.repeat_of", counted)
    return counts


def test_a_loop_over_equal_batches_takes_the_short_way_from_the_second_step_on(strategy, repeated):
    total, step = counting_step(strategy)
    count = strategy.num_replicas_in_sync
    for i in range(5):
        batch = strategy.distribute_batch(np.full(2 * count, i, np.float32))
        strategy.run(step, args=(batch,))
    assert repeated == {"same": 4, "different": 0}
    np.testing.assert_array_equal(total.numpy(), [10.0 * count] * 2)


def test_another_shape_or_dtype_is_another_call(strategy, repeated):
    step = rx.function(lambda x: x * 2)
    for value in (jnp.ones(2), jnp.ones(1), jnp.ones(2, jnp.int32), jnp.ones(2)):
        strategy.run(step, args=(value,))
    assert repeated == {"same": 0, "different": 3}
    assert step.trace_count == 3


def test_a_setting_of_jax_that_changes_traces_is_noticed_and_nothing_is_lost(strategy, repeated):
    total, step = counting_step(strategy)
    for _ in range(2):
        strategy.run(step, args=(jnp.ones(2),))
    with jax.default_matmul_precision("highest"):
        strategy.run(step, args=(jnp.ones(2),))
    assert step.trace_count == 2
    strategy.run(step, args=(jnp.ones(2),))
    assert step.trace_count == 2  # the first program is still there
    assert repeated == {"same": 1, "different": 2}
    np.testing.assert_array_equal(total.numpy(), [4.0 * strategy.num_replicas_in_sync] * 2)


def test_a_scope_is_noticed(strategy, repeated):
    _, step = counting_step(strategy)
    strategy.run(step, args=(jnp.ones(2),))
    with strategy.scope():
        strategy.run(step, args=(jnp.ones(2),))
    assert repeated == {"same": 0, "different": 1}


def test_a_captured_value_that_changed_is_noticed(strategy, repeated):
    factor = 1.0

    @rx.function
    def step(x):
        return x * factor

    assert float(strategy.reduce("MEAN", strategy.run(step, args=(jnp.ones(()),)))) == 1.0
    factor = 3.0
    assert float(strategy.reduce("MEAN", strategy.run(step, args=(jnp.ones(()),)))) == 3.0
    assert repeated == {"same": 0, "different": 1}


def test_a_value_handed_out_between_two_steps_survives_the_next(strategy):
    total, step = counting_step(strategy)
    count = strategy.num_replicas_in_sync
    strategy.run(step, args=(jnp.ones(2),))
    kept = []
    for _ in range(3):
        kept.append(total.read_value())
        strategy.run(step, args=(jnp.ones(2),))
    for i, value in enumerate(kept):
        np.testing.assert_array_equal(value, [count * (i + 1.0)] * 2)


@pytest.mark.parametrize("device", ["CPU:0", "CPU:3"])
def test_one_replica_stays_on_its_device_whatever_jax_prefers(device):
    strategy = rx.MirroredStrategy([device])
    total, step = counting_step(strategy)
    (expected,) = strategy.extended.mesh.devices
    for default in (None, 2, None, 0, 3):
        chosen = None if default is None else jax.devices()[default]
        with jax.default_device(chosen):
            result = strategy.run(step, args=(np.ones(2, np.float32),))
        assert result.devices() == {expected}
        assert not result.committed  # it mixes with arrays of any device
        assert total.read_value().devices() == {expected}
    np.testing.assert_array_equal(total.numpy(), [5.0, 5.0])
