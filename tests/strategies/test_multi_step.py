"""`experimental_run_steps_on_iterator`: many steps in one call, and one program if it can be."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.backend.runahead import RunAhead
from replicax.core import notices
from replicax.engine.functions import launching
from replicax.engine.functions.launching import Launcher
from replicax.engine.functions.shortcut import direct_launcher
from tests.contracts.strategies import mirrored

SUM, MEAN = rx.ReduceOp.SUM, rx.ReduceOp.MEAN
CALL = "extended.experimental_run_steps_on_iterator"
Context = rx.experimental.MultiStepContext


@pytest.fixture(autouse=True)
def warned_before(request):
    """The warning has been shown before, except in the test of the warning."""
    notices.forget(("deprecated", CALL))
    if "deprecated" not in request.node.name:
        with pytest.warns(DeprecationWarning, match=CALL):
            notices.deprecate(CALL, "another")


@pytest.fixture
def launches(monkeypatch):
    """Counts what is put on the devices: compiled functions, and reductions beside them."""
    seen = []

    def counted(launch):
        def call(*args):
            outputs = launch(*args)
            if outputs is not None:  # else only `jit` can launch it
                seen.append(launch)
            return outputs

        return call

    monkeypatch.setattr(
        launching, "direct_launcher", lambda *a, **k: counted(direct_launcher(*a, **k))
    )
    monkeypatch.setattr(Launcher, "launch_jitted", counted(Launcher.launch_jitted))
    monkeypatch.setattr(RunAhead, "launch", counted(RunAhead.launch))
    return seen


def batches(strategy, size=lambda step: 3):
    """For ever: ones times step + replica, `size(step)` of them on each replica."""
    for step in itertools.count():
        yield strategy.experimental_distribute_values_from_function(
            lambda ctx, step=step: np.full(
                size(step), step + ctx.replica_id_in_sync_group, np.float32
            )
        )


class Training:
    """A step with a mirrored and a sync-on-read variable."""

    def __init__(self, strategy):
        self.strategy = strategy
        with strategy.scope():
            self.total = rx.Variable(0.0, aggregation=rx.VariableAggregation.SUM)
            self.seen = rx.Variable(
                0,
                synchronization=rx.VariableSynchronization.ON_READ,
                aggregation=rx.VariableAggregation.SUM,
            )
        self.calls = 0

    def step(self, context, inputs):
        assert rx.in_cross_replica_context()
        assert rx.get_strategy() is self.strategy
        self.calls += 1

        def replica_fn(x):
            self.total.assign_add(x.sum())
            self.seen.assign_add(len(x))
            return x.sum()

        sums = self.strategy.extended.call_for_each_replica(replica_fn, args=(inputs,))
        context.set_last_step_output("sum", sums, SUM)
        context.set_last_step_output("mean", sums, "mean")
        context.set_last_step_output("own", sums)
        context.set_non_tensor_output("name", "training")

    def check(self, context, steps, first=0, size=3):
        n = self.strategy.num_replicas_in_sync
        last = [size * (first + steps - 1 + i) for i in range(n)]
        outputs = context.last_step_outputs
        assert set(outputs) == {"sum", "mean", "own"}
        assert float(outputs["sum"]) == sum(last)
        assert float(outputs["mean"]) == sum(last) / n
        own = self.strategy.experimental_local_results(outputs["own"])
        assert [float(x) for x in own] == last
        assert isinstance(outputs["own"], rx.PerReplica) == (n > 1)
        assert context.non_tensor_outputs == {"name": "training"}
        assert context.run_op is None


def test_100_steps_over_equal_shapes_are_one_launch(strategy, launches):
    training = Training(strategy)
    data = batches(strategy)
    run = strategy.extended.experimental_run_steps_on_iterator
    n = strategy.num_replicas_in_sync
    for first in (0, 100, 200):
        launches.clear()
        context = run(training.step, data, iterations=100)
        assert len(launches) == 1
        training.check(context, 100, first)
    assert training.calls == 2  # the first step and the loop over the others
    assert int(training.seen) == 300 * 3 * n
    expected = sum(3.0 * (step + i) for step in range(300) for i in range(n))
    assert float(training.total) == expected


def test_one_step_is_the_default(strategy, launches):
    training = Training(strategy)
    run = strategy.extended.experimental_run_steps_on_iterator
    training.check(run(training.step, batches(strategy)), 1)
    assert len(launches) == 1
    assert training.calls == 1


def test_steps_over_other_shapes_run_one_by_one_with_one_notice(strategy):
    training = Training(strategy)
    data = batches(strategy, size=lambda step: 3 + step % 2)
    run = strategy.extended.experimental_run_steps_on_iterator
    with pytest.warns(rx.ReplicaxWarning, match="one by one.*not the same in step 0 and step 1"):
        context = run(training.step, data, iterations=4)
    training.check(context, 4, size=4)
    training.check(run(training.step, data, iterations=4), 4, first=4, size=4)  # no second notice
    assert training.calls == 8
    assert int(training.seen) == 28 * strategy.num_replicas_in_sync


def test_uneven_components_of_one_kind_are_still_one_launch(many, launches):
    training = Training(many)
    n = many.num_replicas_in_sync
    data = (many.distribute_batch(np.full(2 * n - 1, float(i))) for i in itertools.count())
    context = many.extended.experimental_run_steps_on_iterator(training.step, data, 5)
    assert len(launches) == 1
    assert float(context.last_step_outputs["sum"]) == 4.0 * (2 * n - 1)
    assert int(training.seen) == 5 * (2 * n - 1)


def test_both_ways_give_the_same(many):
    results = []
    for size in (lambda step: 3, lambda step: 3 if step < 5 else 4):
        training = Training(many)
        data = itertools.islice(batches(many, size), 5) if not results else batches(many, size)
        rx.run_functions_eagerly(bool(results))
        try:
            context = many.extended.experimental_run_steps_on_iterator(training.step, data, 5)
        finally:
            rx.run_functions_eagerly(False)
        results.append((context.last_step_outputs, float(training.total), int(training.seen)))
    (one, *state), (other, *other_state) = results
    assert state == other_state
    assert float(one["sum"]) == float(other["sum"])


def test_an_iterator_that_ends_early_raises_with_the_count(strategy):
    training = Training(strategy)
    data = itertools.islice(batches(strategy), 3)
    expected = "ended after 3 of 10 steps. Those have run"
    with pytest.raises(IndexError, match=expected) as raised:
        strategy.extended.experimental_run_steps_on_iterator(training.step, data, 10)
    assert isinstance(raised.value, rx.ReplicaxError)
    assert int(training.seen) == 3 * 3 * strategy.num_replicas_in_sync
    with pytest.raises(IndexError, match="ended after 0 of 1 steps"):
        strategy.extended.experimental_run_steps_on_iterator(training.step, data)


def test_initial_loop_values_are_what_the_first_step_finds(strategy, launches):
    def step(context, inputs):
        context.set_last_step_output("sum", context.last_step_outputs["sum"] + inputs)

    run = strategy.extended.experimental_run_steps_on_iterator
    context = run(step, iter(np.arange(10.0, dtype=np.float32)), 10, {"sum": 5.0, "kept": "text"})
    assert len(launches) == 1
    assert float(context.last_step_outputs["sum"]) == 50.0
    assert context.last_step_outputs["kept"] == "text"
    context = run(step, iter([1.0, 2.0]), 1, initial_loop_values={"sum": jnp.ones(2)})
    np.testing.assert_array_equal(context.last_step_outputs["sum"], [2, 2])


INPUTS = {
    "floats": [0.0, 1.0, 2.0],
    "ints that differ": [0, 1, 2],
    "numpy arrays": list(np.arange(3.0, dtype=np.float32)),
    "arrays": [jnp.float32(i) for i in range(3)],
}


@pytest.mark.parametrize("case", INPUTS)
def test_the_inputs_may_be_bare_values(two, launches, case):
    def step(context, x):
        before = context.last_step_outputs.get("all", jnp.float32(0))
        context.set_last_step_output("all", 10.0 * before + x)

    context = two.extended.experimental_run_steps_on_iterator(step, iter(INPUTS[case]), 3)
    assert len(launches) == 1
    assert float(context.last_step_outputs["all"]) == 12.0


def test_the_inputs_may_be_nests_with_objects_in_them(two, launches):
    def step(context, inputs):
        assert inputs["mode"] == "train"
        (x, y) = inputs["pair"]
        total = two.run(lambda x, y: x.sum() + y, args=(x, y))
        context.set_last_step_output("total", total, SUM)

    data = ({"mode": "train", "pair": (x, 1.0), "none": None} for x in batches(two))
    context = two.extended.experimental_run_steps_on_iterator(step, data, 7)
    assert len(launches) == 1
    assert float(context.last_step_outputs["total"]) == 3 * (6 + 7) + 2


@pytest.mark.parametrize("iterations", [1, 3])
def test_inputs_of_strings_run_one_by_one_with_one_notice(strategy, iterations):
    texts, numbers = np.array([["a", "b"], ["c", "d"]]), np.ones((2, 2), np.float32)
    data = [(strategy.distribute_batch(texts), strategy.distribute_batch(numbers))] * iterations
    seen = []

    def step(context, inputs):
        text, number = inputs
        assert sorted({str(t) for part in strategy.experimental_local_results(text)
                       for t in np.ravel(part)}) == ["a", "b", "c", "d"]  # fmt: skip
        seen.append(strategy.reduce(SUM, number, axis=(0, 1)))

    with pytest.warns(notices.ReplicaxWarning, match=r"one by one.*\[0\] has no numbers"):
        strategy.extended.experimental_run_steps_on_iterator(step, iter(data), iterations)
    assert [float(total) for total in seen] == [4.0] * iterations


class OddlyEqual:
    """Answers a comparison as arrays do."""

    def __eq__(self, other):
        return np.array([True, True])

    __hash__ = object.__hash__


def test_inputs_that_compare_to_no_bool_run_one_by_one(two):
    data = [(OddlyEqual(), np.ones(2, np.float32)) for _ in range(2)]
    with pytest.warns(notices.ReplicaxWarning, match=r"not the same in step 0 and step 1"):
        two.extended.experimental_run_steps_on_iterator(lambda context, _: None, iter(data), 2)


def test_a_mirrored_input_and_a_mirrored_output(two, launches):
    def step(context, x):
        total = two.run(lambda x: rx.get_replica_context().all_reduce(SUM, x), args=(x,))
        context.set_last_step_output("total", total)

    data = (two.extended.broadcast_to(float(i), ["CPU:0", "CPU:1"]) for i in itertools.count())
    launches.clear()
    context = two.extended.experimental_run_steps_on_iterator(step, data, 4)
    assert isinstance(context.last_step_outputs["total"], rx.Mirrored)
    assert float(context.last_step_outputs["total"]) == 6.0


def test_outputs_that_change_their_type_run_one_by_one(two):
    def step(context, x):
        before = context.last_step_outputs.get("list", [])
        context.set_last_step_output("list", [*before, x])

    with pytest.warns(rx.ReplicaxWarning, match="outputs are not of one type in all steps"):
        context = two.extended.experimental_run_steps_on_iterator(step, iter([1.0, 2.0]), 2)
    assert context.last_step_outputs["list"] == [1.0, 2.0]


def test_outputs_set_in_replica_context(strategy):
    def replica_fn(context, x):
        context.set_last_step_output("loss", x.sum(), reduce_op=MEAN)
        context.set_non_tensor_output("id", rx.get_replica_context().replica_id_in_sync_group)

    def step(context, inputs):
        strategy.extended.call_for_each_replica(replica_fn, args=(context, inputs))

    n = strategy.num_replicas_in_sync
    with pytest.warns(rx.ReplicaxWarning, match="the replica function calls set_last_step_output"):
        context = strategy.extended.experimental_run_steps_on_iterator(step, batches(strategy), 2)
    assert float(context.last_step_outputs["loss"]) == 3 * (1 + (n - 1) / 2)
    assert context.non_tensor_outputs["id"] == tuple(range(n))


def test_outputs_set_in_replica_context_of_uneven_components(two):
    def step(context, inputs):
        two.run(lambda x: context.set_last_step_output("n", len(x), SUM), args=(inputs,))

    data = iter([two.distribute_batch(np.ones(3, np.float32))] * 2)
    with pytest.warns(rx.ReplicaxWarning, match="the replica function calls set_last_step_output"):
        context = two.extended.experimental_run_steps_on_iterator(step, data, 2)
    assert int(context.last_step_outputs["n"]) == 3


def test_a_compiled_replica_function_cannot_set_outputs(two):
    @rx.function
    def replica_fn(x):
        held[0].set_last_step_output("loss", x.sum(), reduce_op=MEAN)

    held = []

    def step(context, inputs):
        held[:] = [context]
        two.run(replica_fn, args=(inputs,))

    with (
        pytest.warns(rx.ReplicaxWarning, match="one by one"),
        pytest.raises(
            RuntimeError, match="return the value from it, and call set_last_step_output"
        ),
    ):
        two.extended.experimental_run_steps_on_iterator(step, batches(two), 2)


def test_an_output_of_a_replica_needs_a_reduction(two):
    context = Context()
    with pytest.raises(RuntimeError, match=r"set_last_step_output\('loss'\).*without reduce_op"):
        two.run(lambda: context.set_last_step_output("loss", 1.0))


def test_an_array_of_a_compiled_step_is_no_object(two):
    def step(context, x):
        context.set_non_tensor_output("x", {"deep": x})

    with pytest.raises(TypeError, match=r"set_non_tensor_output\('x'\) got PerReplica"):
        two.extended.experimental_run_steps_on_iterator(step, batches(two), 2)


def test_variables_may_be_created_in_the_first_step(many, launches):
    made = []

    def step(context, x):
        def replica_fn(x):
            if not made:
                made.append(rx.Variable(x.sum() * 0, aggregation=rx.VariableAggregation.SUM))
            made[0].assign_add(1.0)

        many.run(replica_fn, args=(x,))

    many.extended.experimental_run_steps_on_iterator(step, batches(many), 10)
    assert float(made[0]) == 10.0 * many.num_replicas_in_sync


def test_inside_a_function_it_makes_the_function_a_host_loop(two):
    training = Training(two)
    data = batches(two)

    @rx.function
    def epoch():
        run = two.extended.experimental_run_steps_on_iterator
        return run(training.step, data, 5).last_step_outputs["sum"]

    assert float(epoch()) == 3 * (4 + 5)
    assert float(epoch()) == 3 * (9 + 10)
    assert int(training.seen) == 2 * 5 * 3 * 2


MISTAKES = {
    "a list": ([1.0], 1, None, TypeError, r"needs an iterator; got \[1.0\]. Pass iter"),
    "no steps": (iter([1.0]), 0, None, ValueError, "iterations .* is 0; expected 1 or more"),
    "half steps": (iter([1.0]), 1.5, None, TypeError, "iterations .* is 1.5; expected an int"),
    "initial values": (iter([1.0]), 1, [0.0], TypeError, r"initial_loop_values is \[0.0\]"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_refused(two, case):
    iterator, iterations, initial, error, says = MISTAKES[case]
    with pytest.raises(error, match=says):
        two.extended.experimental_run_steps_on_iterator(
            lambda context, x: None, iterator, iterations, initial
        )


def test_it_is_refused_in_replica_context(two):
    with pytest.raises(RuntimeError, match=rf"{CALL} was called inside strategy\.run\(\)"):
        two.run(lambda: two.extended.experimental_run_steps_on_iterator(print, iter([1.0])))


def test_it_is_deprecated_and_says_so_once():
    strategy = mirrored(1)
    run = strategy.extended.experimental_run_steps_on_iterator
    with pytest.warns(
        DeprecationWarning, match=rf"{CALL} is deprecated. Use Strategy\.run"
    ) as seen:
        run(lambda context, x: None, iter([1.0]))
    assert len(seen) == 1
    run(lambda context, x: None, iter([1.0]))


def test_an_error_of_a_step_arrives_unchanged(two):
    def step(context, x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        two.extended.experimental_run_steps_on_iterator(step, batches(two), 3)
