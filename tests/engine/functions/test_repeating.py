"""The same call again is recognised, and everything that makes it another call is noticed."""

import gc
import weakref
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.core.errors import StaleReadError
from replicax.engine.functions import repeating
from replicax.engine.protocols import DIFFERENT
from tests.engine.functions.steps import counting_step


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

        def call(strategy, args, kwargs):
            result = repeat(strategy, args, kwargs)
            counts["different" if result is DIFFERENT else "same"] += 1
            return result

        return call

    monkeypatch.setattr("replicax.engine.functions.call_site.repeat_of", counted)
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


def test_a_loop_inside_a_scope_takes_the_short_way_too(strategy, repeated):
    total, step = counting_step(strategy)
    for _ in range(2):
        with strategy.scope():
            for _ in range(3):
                strategy.run(step, args=(jnp.ones(2),))
    assert repeated == {"same": 5, "different": 0}
    np.testing.assert_array_equal(total.numpy(), [6.0 * strategy.num_replicas_in_sync] * 2)


def test_the_scope_of_another_strategy_is_noticed(repeated):
    strategies = [rx.MirroredStrategy(["CPU:0", "CPU:1"]), rx.OneDeviceStrategy("CPU:0")]
    seen = []

    @rx.function
    def step(x):
        seen.append(rx.get_strategy())
        return x * rx.get_strategy().num_replicas_in_sync

    for strategy in (*strategies, *strategies):
        with strategy.scope():
            assert float(step(jnp.ones(()))) == strategy.num_replicas_in_sync
    with rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"]).scope():
        assert float(step(jnp.ones(()))) == 3.0
    assert float(step(jnp.ones(()))) == 1.0
    assert repeated == {"same": 0, "different": 5}
    assert step.trace_count == 4


def test_a_run_inside_a_run_is_refused_after_any_number_of_repeats(strategy):
    _, step = counting_step(strategy)
    with strategy.scope():
        for _ in range(4):
            strategy.run(step, args=(jnp.ones(2),))
        with pytest.raises(RuntimeError, match=r"Strategy\.run"):
            strategy.run(lambda: strategy.run(step, args=(jnp.ones(2),)))


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


def test_a_nest_of_equal_structure_takes_the_short_way(strategy, repeated):
    total, step = counting_step(strategy)
    count = strategy.num_replicas_in_sync

    @rx.function
    def nested(batch, *, scale):
        step.python_function(batch["x"] * scale["factors"][0])

    for i in range(4):
        x = strategy.distribute_batch(np.full(2 * count, i, np.float32))
        strategy.run(nested, args=({"x": x},), kwargs={"scale": {"factors": [jnp.asarray(2.0)]}})
    assert repeated == {"same": 3, "different": 0}
    np.testing.assert_array_equal(total.numpy(), [12.0 * count] * 2)


def test_another_structure_is_another_call(strategy, repeated):
    step = rx.function(lambda batch: jax.tree.leaves(batch)[0] * 2)
    for batch in ({"x": jnp.ones(2)}, {"y": jnp.ones(2)}, [jnp.ones(2)], jnp.ones(2)):
        strategy.run(step, args=(batch,))
    assert repeated == {"same": 0, "different": 3}
    assert step.trace_count == 4


@pytest.mark.parametrize(
    ("seen", "other"), [(True, False), (1, 2), (1, True), ("relu", "tanh"), (True, 1)]
)
def test_a_static_argument_is_compared_by_type_and_value(strategy, repeated, seen, other):
    step = rx.function(lambda x, mode: x * len(repr(mode)))
    for mode in (seen, seen, other):
        result = strategy.run(step, args=(jnp.ones(2),), kwargs={"mode": mode})
        first = strategy.experimental_local_results(result)[0]
        np.testing.assert_array_equal(first, [len(repr(mode))] * 2)
    assert repeated == {"same": 1, "different": 1}
    assert step.trace_count == 2


@pytest.mark.parametrize(
    "value",
    [np.ones(2, np.float32), 1.5, np.float32(1.5), jax.random.key(0)],
    ids=["NumPy", "float", "scalar", "random key"],
)
def test_arguments_that_only_jit_can_take_are_recognised_too(repeated, value):
    step = rx.function(lambda x: (x, 1)[0])
    results = [step(value) for _ in range(4)]
    assert repeated == {"same": 3, "different": 0}
    assert all(result.dtype == results[0].dtype for result in results)
    assert step.trace_count == 1


def test_a_packed_array_is_not_taken_for_the_value_it_is_of(repeated):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    step = rx.function(lambda x: x.shape)
    value = strategy.distribute_batch(np.ones(4, np.float32))
    assert strategy.run(step, args=(value,)) == (2,)
    assert strategy.run(step, args=(value._as_packed(),)) == value._as_packed().shape
    assert repeated == {"same": 0, "different": 1}


def test_a_call_inside_a_transformation_is_part_of_it(repeated):
    w = rx.Variable(2.0)
    step = rx.function(lambda: w * 3.0)
    for _ in range(3):
        step()
    with pytest.raises(StaleReadError, match=r"is read inside jax\.jit"):
        jax.jit(lambda: step() + 1.0)()
    assert repeated == {"same": 2, "different": 1}


def test_a_call_inside_another_function_is_part_of_its_program():
    w = rx.Variable(2.0)
    inner = rx.function(lambda: w * 3.0)
    for _ in range(3):
        inner()
    outer = rx.function(lambda: inner() + 1.0)
    assert float(outer()) == 7.0
    w.assign(3.0)
    assert float(outer()) == 10.0


def test_a_repeated_call_keeps_none_of_its_arguments(strategy):
    step = rx.function(lambda batch: {"y": batch["x"] * 2.0})
    references = []
    for _ in range(3):
        array = jnp.ones(3) + 1.0
        strategy.run(step, args=({"x": array},))
        references.append(weakref.ref(array))
        del array
    gc.collect()
    assert [reference() for reference in references] == [None] * 3


def loop_of(strategy):
    """Three steps in one program that returns the last of their results."""
    with strategy.scope():
        w = rx.Variable(jnp.ones(2))

    @rx.function
    def steps(x):
        def body(carry, _):
            total = strategy.run(
                lambda: rx.get_replica_context().all_reduce("MEAN", jnp.sum(w * x))
            )
            w.assign_add(total * jnp.ones(2))
            return carry, total

        return jax.lax.scan(body, None, length=3)[1][-1]

    return steps


def test_one_replica_needs_no_devices_inside_a_loop_either():
    steps = loop_of(rx.MirroredStrategy(["CPU:0"]))
    shardings = steps.lower(jnp.ones(2)).compile().output_shardings
    assert [type(sharding) for sharding in shardings] == [jax.sharding.SingleDeviceSharding] * 2
    assert float(steps(jnp.ones(2))) == 18.0


def test_a_small_result_that_was_computed_after_a_loop_tells_when_a_step_is_done(strategy):
    steps = loop_of(strategy)
    outputs = steps.lower(jnp.ones(2)).compile().output_shardings
    assert len(outputs) == 2  # the variable and the result: none besides
    for _ in range(20):
        last = steps(jnp.ones(2))
    assert float(last) == pytest.approx(2 * 3.0**59, rel=1e-5)


class Pair(NamedTuple):
    x: Any


@pytest.mark.parametrize(
    "make",
    [lambda x: {"x": x}, lambda x: [x], lambda x: (x,), Pair],
    ids=["dict", "list", "tuple", "NamedTuple"],
)
@pytest.mark.parametrize("num_calls", [1, 4])
def test_a_nest_after_an_array_is_another_call(strategy, make, num_calls):
    step = rx.function(lambda batch: jax.tree.leaves(batch)[0].sum())
    for _ in range(2):
        for batch in (jnp.ones(2), make(jnp.ones(2)), jnp.ones(2)):
            for _ in range(num_calls):
                assert float(step(batch)) == 2.0
                result = strategy.run(step, args=(batch,))
                assert float(strategy.reduce("MEAN", result, axis=None)) == 2.0


@pytest.mark.parametrize("num_calls", [0, 1, 4])
def test_an_error_names_the_argument_after_any_number_of_calls(strategy, num_calls):
    step = rx.function(lambda x, batch: x + batch["y"].sum())
    fits = {"y": np.zeros(2, np.int64)}
    for _ in range(num_calls):
        strategy.run(step, args=(jnp.ones(2), fits))
    with pytest.raises(ValueError, match=r"the argument at \[0\]\[1\]\['y'\] has dtype int64"):
        strategy.run(step, args=(jnp.ones(2), {"y": np.full(2, 2**40)}))


@pytest.mark.parametrize("num_calls", [0, 1, 4])
def test_an_error_names_a_per_replica_argument_after_any_number_of_calls(num_calls):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    step = rx.function(lambda x: x + 1)
    make = strategy.experimental_distribute_values_from_function
    for _ in range(num_calls):
        strategy.run(step, args=(make(lambda context: np.zeros(2, np.int64)),))
    large = make(lambda context: np.full(2, 2**40))
    with pytest.raises(ValueError, match=r"the argument at \[0\]\[0\] has dtype int64"):
        strategy.run(step, args=(large,))
