"""A repeated step calls its executable itself; whatever `jit` would notice is still noticed."""

import sys
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.backend import runahead
from replicax.engine.storage import COUNTS
from tests.engine.functions.steps import counting_step
from tests.engine.functions.test_traces import compilations

SUM = rx.VariableAggregation.SUM


@pytest.fixture(params=["default", 1, 2])
def strategy(request):
    if request.param == "default":
        return rx.get_strategy()
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(request.param)])


def batch_of(strategy, value):
    return strategy.distribute_batch(np.full(2 * strategy.num_replicas_in_sync, value, np.float32))


def goes_through_jit(run):
    """Whether a launch went through `jit`, after which programs look at their variables again."""
    before = COUNTS.stamp
    run()
    return COUNTS.stamp is not before


def settled(strategy, step, steps=4):
    """Runs `step` until it takes the shortcut; the sum of what it was given."""
    for i in range(steps):
        strategy.run(step, args=(batch_of(strategy, float(i)),))
    batch = batch_of(strategy, 0.0)
    assert not goes_through_jit(lambda: strategy.run(step, args=(batch,)))
    return sum(range(steps)) * strategy.num_replicas_in_sync


def test_a_repeated_step_goes_through_jit_only_to_be_compiled(strategy):
    _, step = counting_step(strategy)
    batches = [batch_of(strategy, float(i)) for i in range(6)]
    ways = [goes_through_jit(lambda b=b: strategy.run(step, args=(b,))) for b in batches]
    assert ways == [True, True, False, False, False, False]


def test_finding_the_shortcut_compiles_nothing(strategy):
    _, step = counting_step(strategy)
    batch = batch_of(strategy, 1.0)
    strategy.run(step, args=(batch,))
    with compilations() as count:
        ways = [goes_through_jit(lambda: strategy.run(step, args=(batch,))) for _ in range(3)]
    assert ways == [True, False, False]
    assert count == []


def test_a_step_that_leaves_its_variables_elsewhere_is_compiled_once_all_the_same():
    strategy = rx.experimental.CentralStorageStrategy(["CPU:1", "CPU:2"], "CPU:0")
    total, step = counting_step(strategy)
    batch = batch_of(strategy, 1.0)
    strategy.run(step, args=(batch,))
    with compilations() as count:
        ways = [goes_through_jit(lambda: strategy.run(step, args=(batch,))) for _ in range(6)]
    assert ways == [True] * 6
    assert count == []
    np.testing.assert_array_equal(total.numpy(), [14.0, 14.0])


def test_the_values_are_those_of_the_long_way(strategy):
    total, step = counting_step(strategy)
    expected = settled(strategy, step)
    result = strategy.run(step, args=(batch_of(strategy, 5.0),))
    parts = strategy.experimental_local_results(result)
    np.testing.assert_array_equal(np.concatenate(parts), [10.0] * len(parts) * 2)
    np.testing.assert_array_equal(
        total.numpy(), [expected + 5.0 * strategy.num_replicas_in_sync] * 2
    )


def test_an_assignment_between_steps_is_seen_and_the_shortcut_stays(strategy):
    total, step = counting_step(strategy)
    settled(strategy, step)
    total.assign([10.0, 20.0])
    batch = batch_of(strategy, 1.0)
    assert not goes_through_jit(lambda: strategy.run(step, args=(batch,)))
    np.testing.assert_array_equal(
        total.numpy(), np.array([10.0, 20.0]) + strategy.num_replicas_in_sync
    )


def chained_after(run):
    """How many programs are known to have used what the one before them computed."""
    run()
    return runahead.RUN_AHEAD.num_chained


def test_repeated_steps_are_known_to_use_each_other_until_something_comes_between(strategy):
    v, step = counting_step(strategy)
    settled(strategy, step)
    batch = batch_of(strategy, 1.0)

    def run():
        strategy.run(step, args=(batch,))

    first = chained_after(run)
    assert [chained_after(run) for _ in range(3)] == [first + 1, first + 2, first + 3]
    v.assign(np.zeros(2))  # the next step does not wait for those before it
    assert [chained_after(run) for _ in range(2)] == [1, 2]
    chained_after(lambda: runahead.launch(jax.jit(lambda: (jnp.zeros(()), ()))))
    assert [chained_after(run) for _ in range(2)] == [1, 2]


def test_steps_that_do_not_use_what_they_wrote_are_not_known_to_follow_each_other(strategy):
    with strategy.scope():
        last = rx.Variable(np.float32(0.0), aggregation=SUM)

    @rx.function
    def keep(x):
        last.assign(x.sum())

    batch = batch_of(strategy, 1.0)
    counts = [chained_after(lambda: strategy.run(keep, args=(batch,))) for _ in range(6)]
    assert counts == [0] * 6


def test_steps_in_turns_do_not_count_for_each_other(strategy):
    _, one = counting_step(strategy)
    _, other = counting_step(strategy)
    batch = batch_of(strategy, 1.0)
    for step in (one, other):
        settled(strategy, step)
    runs = [lambda step=step: strategy.run(step, args=(batch,)) for step in (one, other) * 4]
    assert [chained_after(run) for run in runs][2:] == [1] * 6


def test_a_value_that_was_handed_out_is_not_donated(strategy):
    total, step = counting_step(strategy)
    expected = settled(strategy, step)
    kept = total.read_value()
    for _ in range(3):
        strategy.run(step, args=(batch_of(strategy, 1.0),))
    np.testing.assert_array_equal(kept, [expected] * 2)
    np.testing.assert_array_equal(total.numpy(), [expected + 3 * strategy.num_replicas_in_sync] * 2)


def test_two_steps_on_one_variable_take_turns(strategy):
    total, add = counting_step(strategy)

    @rx.function
    def grow(factor):
        total.assign_add(total * factor)

    count = strategy.num_replicas_in_sync
    expected = 0.0
    for _ in range(5):
        strategy.run(add, args=(batch_of(strategy, 1.0),))
        strategy.run(grow, args=(jnp.float32(0.5),))
        expected = (expected + count) * (1 + 0.5 * count)
    np.testing.assert_allclose(total.numpy(), [expected] * 2, rtol=1e-6)


@pytest.mark.parametrize("make", [np.float32, float, jnp.float32])
def test_arguments_from_the_host_and_from_the_device_take_turns(make):
    total = rx.Variable(0.0)

    @rx.function
    def step(x):
        total.assign_add(x)

    for _ in range(4):
        step(jnp.float32(1.0))
    step(make(2.0))
    for _ in range(3):
        step(jnp.float32(1.0))
    assert float(total) == 9.0


def test_an_argument_on_another_device_is_moved_as_before():
    total = rx.Variable(jnp.zeros(2))

    @rx.function
    def step(x):
        total.assign_add(x)

    for _ in range(4):
        step(jnp.ones(2))
    step(jax.device_put(np.ones(2, np.float32), jax.devices()[3]))
    step(jnp.ones(2))
    np.testing.assert_array_equal(total.numpy(), [6.0, 6.0])


def test_another_default_device_is_noticed_in_both_directions():
    total = rx.Variable(jnp.zeros(2))

    @rx.function
    def step():
        total.assign_add(jnp.ones(2))

    for _ in range(4):
        step()
    for _ in range(3):
        with jax.default_device(jax.devices()[2]):
            for _ in range(3):
                step()
        step()
    np.testing.assert_array_equal(total.numpy(), [16.0, 16.0])


def test_a_check_for_nan_that_is_turned_on_later_sees_the_step(strategy):
    _, step = counting_step(strategy)
    settled(strategy, step)
    batch = batch_of(strategy, 1.0)
    with jax.debug_nans(True):
        assert goes_through_jit(lambda: strategy.run(step, args=(batch,)))
    assert not goes_through_jit(lambda: strategy.run(step, args=(batch,)))


@pytest.mark.parametrize(
    "end",
    [lambda x: x.delete(), jax.jit(lambda x: x + 1, donate_argnums=0)],
    ids=["delete", "donate"],
)
def test_a_batch_that_was_given_away_is_refused_and_the_process_goes_on(strategy, end):
    total, step = counting_step(strategy)
    expected = settled(strategy, step)
    batch = batch_of(strategy, 1.0)
    strategy.run(step, args=(batch,))
    end(batch._as_packed() if isinstance(batch, rx.PerReplica) else batch)
    with pytest.raises(RuntimeError, match="Array has been deleted"):
        strategy.run(step, args=(batch,))
    np.testing.assert_array_equal(total.numpy(), [expected + strategy.num_replicas_in_sync] * 2)


def test_a_variable_that_was_handed_out_and_deleted_is_refused_and_the_process_goes_on(strategy):
    with strategy.scope():
        rate = rx.Variable(jnp.ones(2))
        total = rx.Variable(jnp.zeros(2), aggregation=SUM)

    @rx.function
    def step(x):
        total.assign_add(x * rate)

    batch = batch_of(strategy, 1.0)
    for _ in range(4):
        strategy.run(step, args=(batch,))
    exposed = rate._storage.hand_out()
    assert not goes_through_jit(lambda: strategy.run(step, args=(batch,)))
    exposed.delete()
    with pytest.raises(RuntimeError, match="Array has been deleted"):
        strategy.run(step, args=(batch,))
    rate.assign([2.0, 2.0])
    strategy.run(step, args=(batch,))
    np.testing.assert_array_equal(total.numpy(), [7.0 * strategy.num_replicas_in_sync] * 2)


def test_an_argument_that_the_step_does_not_use_may_change_freely(strategy):
    with strategy.scope():
        total = rx.Variable(0.0, aggregation=SUM)

    @rx.function
    def step(unused, x):
        total.assign_add(x.sum())

    for i in range(6):
        strategy.run(step, args=(batch_of(strategy, float(i)), batch_of(strategy, 1.0)))
    assert float(total) == 6 * 2 * strategy.num_replicas_in_sync


def test_a_step_with_a_host_callback_always_goes_through_jit(strategy):
    total, _ = counting_step(strategy)

    @rx.function
    def step(x):
        doubled = jax.pure_callback(lambda x: np.asarray(x) * 2, jax.typeof(x), x)
        total.assign_add(doubled)

    for _ in range(4):
        batch = batch_of(strategy, 1.0)
        assert goes_through_jit(lambda: strategy.run(step, args=(batch,)))  # noqa: B023
    np.testing.assert_array_equal(total.numpy(), [8.0 * strategy.num_replicas_in_sync] * 2)


def python_calls(run):
    """How often Python code was entered in a second `run`, by function."""
    run()
    calls = Counter()

    def note(frame, event, argument):
        if event == "call":
            calls[frame.f_code.co_qualname] += 1

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    calls.pop(run.__qualname__, None)
    return calls


@pytest.mark.parametrize("num_variables", [1, 20])
def test_a_repeated_step_enters_python_code_few_times(strategy, num_variables):
    with strategy.scope():
        variables = [rx.Variable(jnp.zeros(2), aggregation=SUM) for _ in range(num_variables)]

    @rx.function
    def step(x):
        for variable in variables:
            variable.assign_add(x)
        return x * 2

    batch = batch_of(strategy, 1.0)

    def run():
        strategy.run(step, args=(batch,))

    for _ in range(3):
        run()
    runahead.wait()  # or some step would wait for those before
    calls = python_calls(run)
    # run, repeat, _packed_if_like, launch and its list, what makes the result of the output.
    assert sum(calls.values()) <= 8, calls
