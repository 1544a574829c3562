"""Jitted functions that ask where they are: JAX must not answer for another context."""

import threading

import jax
import pytest

import replicax as rx
from tests.contracts.strategies import mirrored

pytestmark = pytest.mark.filterwarnings("ignore:variable .* is read inside jax.jit")


class Counted:
    """A jitted function that multiplies by what `ask` answers, and counts its traces."""

    def __init__(self, ask):
        self.num_traces = 0
        self._ask = ask
        self.jitted = jax.jit(self._multiply)

    def _multiply(self, x):
        self.num_traces += 1
        return x * self._ask()

    def __call__(self):
        return float(self.jitted(1.0))


def num_replicas():
    return rx.get_replica_context().num_replicas_in_sync


def num_in_strategy():
    return rx.get_strategy().num_replicas_in_sync


def place():
    """A number for each of the contexts."""
    return 4 * rx.has_strategy() + 2 * rx.in_cross_replica_context() + 1


def in_thread(call):
    results = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.parametrize("ask", [num_replicas, num_in_strategy])
def test_each_strategy_has_the_count_of_its_own_replicas(execute, ask):
    helper = jax.jit(lambda x: x / ask())
    strategies = [mirrored(count) for count in (2, 3, 1)]
    for _ in range(2):
        for strategy in strategies:
            result = execute(strategy, lambda: helper(1.0))
            values = [float(x) for x in strategy.experimental_local_results(result)]
            assert values == pytest.approx(
                [1 / strategy.num_replicas_in_sync] * strategy.num_replicas_in_sync
            )
        assert float(helper(1.0)) == 1.0


def test_each_scope_has_its_own_strategy():
    helper = Counted(num_in_strategy)
    for _ in range(3):
        for strategy in (mirrored(2), mirrored(3), mirrored(1)):
            with strategy.scope():
                assert helper() == strategy.num_replicas_in_sync
            assert helper() == 1


def test_a_strategy_set_for_the_process_is_seen_until_it_is_unset():
    helper, strategy = Counted(num_in_strategy), mirrored(2)
    assert helper() == 1
    for _ in range(2):
        rx.experimental_set_strategy(strategy)
        try:
            assert helper() == 2
            assert in_thread(helper) == 2
        finally:
            rx.experimental_set_strategy(None)
        assert helper() == 1


def test_replica_merge_and_update_are_told_apart(many, execute):
    helper = jax.jit(lambda x: x * place())
    with many.scope():
        seen = [rx.Variable(0.0, name=f"seen_{i}") for i in range(3)]
        v = rx.Variable(0.0)

    def update(v):
        v.assign(helper(1.0))

    def merge_fn(strategy):
        seen[1].assign(helper(1.0))
        strategy.extended.update(v, update)

    def replica_fn():
        first = helper(1.0)
        rx.get_replica_context().merge_call(merge_fn)
        return first, helper(1.0)

    for _ in range(2):
        with many.scope():
            seen[0].assign(helper(1.0))
        before, after = execute(many, replica_fn)
        for result in (before, after):
            assert {float(x) for x in many.experimental_local_results(result)} == {5.0}
        assert [float(seen[0]), float(seen[1]), float(v)] == [7.0, 7.0, 7.0]
        assert float(helper(1.0)) == 1.0


def test_a_run_inside_a_run_of_the_default_strategy_is_told_apart():
    helper, strategy = Counted(num_replicas), mirrored(2)
    seen = []

    def outer():
        seen.append(helper())
        strategy.run(lambda: seen.append(helper()))
        seen.append(helper())

    rx.get_strategy().run(outer)
    assert seen == [1, 2, 2, 1]


def test_an_outer_run_sees_what_an_inner_one_wrote():
    strategy = mirrored(2)
    with strategy.scope():
        v = rx.Variable(1.0, aggregation=rx.VariableAggregation.SUM)
    helper = jax.jit(lambda x: x * v.value)
    seen = []

    def outer():
        seen.append(float(helper(1.0)))
        strategy.run(lambda: [v.assign_add(1.0), None][1])
        seen.append(float(helper(1.0)))

    rx.get_strategy().run(outer)
    assert seen == [1.0, 3.0]


def test_what_has_asked_is_not_traced_again_and_again():
    helper, strategy = Counted(num_in_strategy), mirrored(2)
    scope = strategy.scope()
    for _ in range(2):  # the first time without a place
        helper()
        with scope:
            helper()
        strategy.run(helper)
    traces = helper.num_traces
    for _ in range(3):
        helper()
        with scope:
            helper()
            helper()
        strategy.run(helper)
    assert helper.num_traces == traces


def test_what_has_not_asked_is_not_traced_for_another_strategy():
    helper = Counted(lambda: 2)

    def everywhere(strategy):
        with strategy.scope():
            helper()
        strategy.run(helper)
        return helper.num_traces

    assert everywhere(mirrored(2)) == everywhere(mirrored(2))


def test_threads_in_different_scopes_are_told_apart():
    helper, may_ask, has_entered = Counted(num_in_strategy), threading.Event(), threading.Event()
    results = []

    def other():
        with mirrored(3).scope():
            has_entered.set()
            may_ask.wait(20)
            results.append(helper())

    thread = threading.Thread(target=other)
    thread.start()
    has_entered.wait(20)
    with mirrored(2).scope():
        results.append(helper())
        may_ask.set()
        thread.join()
        results.append(helper())
    assert results == [2.0, 3.0, 2.0]


@pytest.mark.parametrize("count", [1, 2])
def test_an_assign_of_another_thread_is_seen_by_a_jitted_read(count):
    v = rx.Variable(1.0)
    helper = jax.jit(lambda x: x * v.value)

    def replica_fn():
        before = float(helper(1.0))
        in_thread(lambda: v.assign(before + 4.0))
        return before, float(helper(1.0))

    strategy = mirrored(count)
    results = strategy.experimental_local_results(strategy.run(replica_fn))
    assert list(results) == [(1.0, 5.0), (5.0, 9.0)][:count]


def test_a_compiled_step_of_another_thread_is_seen_by_a_jitted_read():
    v = rx.Variable(1.0)
    helper, step = jax.jit(lambda x: x * v.value), rx.function(lambda: [v.assign_add(1.0), None][1])
    step()
    seen = []

    def replica_fn():
        for _ in range(3):
            seen.append(float(helper(1.0)))
            in_thread(step)

    mirrored(1).run(replica_fn)
    assert seen == [2.0, 3.0, 4.0]


def test_a_jitted_read_of_a_variable_of_another_strategy_is_refused():
    first, second = mirrored(2), mirrored(3)
    with first.scope():
        v = rx.Variable(1.0)
    helper = jax.jit(lambda x: x * v.value)
    first.run(lambda: helper(1.0))
    with pytest.raises(ValueError, match=r"was created under .*2 replicas.* is used inside"):
        second.run(lambda: helper(1.0))


def test_a_jitted_read_sees_each_value_that_an_update_has_written():
    strategy, seen = mirrored(1), []
    with strategy.scope():
        v = rx.Variable(1.0)
    helper = jax.jit(lambda x: x * v.value)

    def update(v):
        for value in (2.0, 3.0):
            v.assign(value)
            seen.append(float(helper(1.0)))

    strategy.run(lambda: strategy.extended.update(v, update))
    assert seen == [2.0, 3.0]
