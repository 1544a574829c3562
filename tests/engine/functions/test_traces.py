"""How often a function is traced and compiled, and what its programs take in."""

import contextlib
import gc
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import monitoring

import replicax as rx
from replicax.backend import host_memory
from replicax.backend.runahead import RUN_AHEAD
from replicax.engine.functions import launching

SUM = rx.VariableAggregation.SUM
REPLICAS = (1, 2, 3, 8)


def mirrored(num_replicas):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])


@pytest.fixture(params=REPLICAS)
def strategy(request):
    return mirrored(request.param)


@contextlib.contextmanager
def compilations():
    """Counts XLA compilations, as JAX itself reports them."""
    count = []

    def listen(event, duration, **kwargs):
        if event == "/jax/core/compile/backend_compile_duration":
            count.append(kwargs)

    monitoring.register_event_duration_secs_listener(listen)
    try:
        yield count
    finally:
        monitoring.unregister_event_duration_listener(listen)


def test_compilations_are_counted_at_all():
    with compilations() as count:
        jax.jit(lambda x: x * 12.25)(np.float32(1))
    assert len(count) == 1


# -- trace counts ------------------------------------------------------------------------------


def test_a_second_call_with_the_same_types_traces_nothing(strategy):
    calls = []

    @rx.function
    def step(x, scale, mode):
        calls.append(1)
        return strategy.run(lambda x: x * scale, args=(x,)), mode

    for i in range(4):
        batch = strategy.distribute_batch(np.full(2 * strategy.num_replicas_in_sync, i, np.float32))
        step(batch, float(i), "sum")
    assert len(calls) == 1
    assert step.trace_count == 1


def test_the_uneven_last_batch_costs_one_program_and_its_repeat_none(strategy):
    shapes = []

    @rx.function
    def step(x):
        shapes.append(x.shape)
        return x.sum()

    replicas = strategy.num_replicas_in_sync
    full = strategy.distribute_batch(np.ones(4 * replicas, np.float32))
    last = strategy.distribute_batch(np.ones(4 * replicas - 3, np.float32))
    strategy.run(step, args=(full,))
    assert shapes == [(4,)]
    with compilations() as count:
        strategy.run(step, args=(last,))
    assert len(count) == 1
    distinct = {x.shape for x in strategy.experimental_local_results(last)}
    assert len(shapes) == 1 + len(distinct)
    with compilations() as count:
        for _ in range(2):
            for batch in (full, last):
                strategy.run(step, args=(batch,))
    assert count == []
    assert len(shapes) == 1 + len(distinct)
    assert step.trace_count == 1 + len(distinct)


def test_creating_variables_costs_one_more_trace(strategy):
    kept = []

    @rx.function
    def step(x):
        if not kept:
            kept.append(rx.Variable(1.0, aggregation=SUM))
        kept[0].assign_add(x)

    for _ in range(3):
        strategy.run(step, args=(1.0,))
    assert step.trace_count == 2


def test_a_branch_on_the_replica_id_is_traced_once_per_replica():
    strategy = mirrored(3)
    calls = []

    @rx.function
    def step(x):
        calls.append(1)
        return x if rx.get_replica_context().replica_id_in_sync_group else 2 * x

    with pytest.warns(rx.ReplicaxWarning, match="traced once for each of 3 replicas"):
        strategy.run(step, args=(1.0,))
    assert step.trace_count == 3  # the trace that was given up does not count
    assert len(calls) == 1 + 3
    strategy.run(step, args=(2.0,))
    assert step.trace_count == 3


def test_creating_variables_on_every_call_is_refused():
    @rx.function
    def step():
        return rx.Variable(1.0, name="every").value

    with pytest.raises(
        ValueError, match=r"step' creates variables \['every'\] every time it is called. Create th"
    ):
        step()


def test_twenty_steps_compile_one_program(strategy):
    with strategy.scope():
        variables = [rx.Variable(np.float32(i), aggregation=SUM) for i in range(5)]

    @rx.function
    def step(x):
        for variable in variables:
            variable.assign_add(x.sum())

    batch = strategy.distribute_batch(np.ones(2 * strategy.num_replicas_in_sync, np.float32))
    with compilations() as count:
        for _ in range(20):
            strategy.run(step, args=(batch,))
    assert len(count) == 1
    assert float(variables[0]) == 20.0 * 2 * strategy.num_replicas_in_sync


def test_twenty_steps_of_a_whole_program_function_compile_one_program(strategy):
    with strategy.scope():
        total = rx.Variable(0.0, aggregation=SUM)

    @rx.function
    def step(x):
        total.assign_add(strategy.reduce("SUM", strategy.run(jnp.sum, args=(x,)), axis=None))
        return total * 2

    batch = strategy.distribute_batch(np.ones(2 * strategy.num_replicas_in_sync, np.float32))
    with compilations() as count:
        for _ in range(20):
            result = step(batch)
    assert len(count) == 1
    assert float(result) == 2 * 20.0 * 2 * strategy.num_replicas_in_sync


# -- what a program takes in -------------------------------------------------------------------


def num_inputs(lowered):
    return len(jax.tree.leaves(lowered.in_avals))


def test_unused_variables_are_no_inputs_of_the_program():
    strategy = mirrored(2)
    with strategy.scope():
        unused = [rx.Variable(0.0) for _ in range(3000)]
        used = [rx.Variable(0.0, aggregation=SUM) for _ in range(3)]
    plain = rx.Variable(1.0)

    @rx.function
    def step(x):
        used[0].assign_add(x.sum() * plain)
        used[1].assign_add(used[2] * 1.0)

    batch = strategy.distribute_batch(np.ones(4, np.float32))
    strategy.run(step, args=(batch,))
    assert num_inputs(step.lower_run(strategy, batch)) == 4 + 1  # used, plain; the batch
    assert float(used[0]) == 4.0
    assert len(unused) == 3000


def test_read_variables_are_inputs_and_written_ones_are_donated():
    read, written = rx.Variable(jnp.ones(3)), rx.Variable(jnp.ones(5))

    @rx.function
    def step():
        written.assign_add(jnp.full(5, read.value.sum()))

    donated = {
        info.aval.shape if hasattr(info, "aval") else info.shape: info.donated
        for info in jax.tree.leaves(step.lower().args_info)
    }
    assert donated == {(3,): False, (5,): True}


# -- the retrace warning -----------------------------------------------------------------------


def retrace_warnings(step, calls):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for args, kwargs in calls:
            step(*args, **kwargs)
    return [str(warning.message) for warning in caught]


def test_after_five_retraces_one_warning_names_the_argument():
    def train(x, width):
        return x * width

    step = rx.function(train)
    assert retrace_warnings(step, [((1.0, width), {}) for width in range(5)]) == []
    messages = retrace_warnings(step, [((1.0, 5), {})])
    assert len(messages) == 1
    assert "train' has been traced 5 times" in messages[0]
    assert "argument 'width' changed: 4 -> 5" in messages[0]
    assert "Pass values that change as arrays" in messages[0]
    assert retrace_warnings(step, [((1.0, width), {}) for width in range(6, 12)]) == []


def test_the_retrace_warning_shows_shapes():
    step = rx.function(lambda batch: batch["image"].sum())
    messages = retrace_warnings(step, [(({"image": jnp.ones(n)},), {}) for n in range(1, 8)])
    assert len(messages) == 1
    assert "argument 'batch'['image'] changed: array of shape (5,)" in messages[0]
    assert "dtype float32 -> array of shape (6,)" in messages[0]


def test_the_retrace_warning_names_keyword_arguments():
    step = rx.function(lambda x, *, mode="a", depth: x * depth)
    messages = retrace_warnings(step, [((1.0,), {"depth": n}) for n in range(8)])
    assert len(messages) == 1
    assert "argument 'depth' changed: 4 -> 5" in messages[0]


def test_the_retrace_warning_names_per_replica_shapes():
    strategy = mirrored(2)
    step = rx.function(lambda x: x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(1, 8):
            strategy.run(step, args=(strategy.distribute_batch(np.ones(2 * n, np.float32)),))
    (warning,) = caught
    assert "((5,), (5,))" in str(warning.message)
    assert "((6,), (6,))" in str(warning.message)


def test_the_retrace_warning_tells_of_changed_structures():
    step = rx.function(lambda tree: len(tree))
    messages = retrace_warnings(step, [(((1.0,) * n,), {}) for n in range(1, 8)])
    assert len(messages) == 1
    assert "the structure of its arguments changed from" in messages[0]


def test_another_function_warns_for_itself():
    for _ in range(2):
        step = rx.function(lambda n: n)
        assert len(retrace_warnings(step, [((n,), {}) for n in range(7)])) == 1


# -- what the key knows ------------------------------------------------------------------------


def test_a_rebound_captured_number_is_noticed():
    factor = 2.0

    @rx.function
    def scale(x):
        return factor * x

    assert float(scale(1.0)) == 2.0
    factor = 3.0
    assert float(scale(1.0)) == 3.0
    factor = 2.0
    assert float(scale(1.0)) == 2.0
    assert scale.trace_count == 2


def test_a_rebound_captured_variable_is_noticed():
    first = variable = rx.Variable(1.0)

    @rx.function
    def add(x):
        variable.assign_add(x)

    add(1.0)
    variable = rx.Variable(10.0)
    add(1.0)
    assert (float(first), float(variable)) == (2.0, 11.0)
    assert add.trace_count == 2


def test_a_rebound_variable_captured_by_a_method_is_noticed():
    variable = rx.Variable(1.0)

    class Model:
        @rx.function
        def read(self):
            return variable * 1.0

    model = Model()
    first = variable
    assert float(model.read()) == 1.0
    variable = rx.Variable(10.0)
    assert float(model.read()) == 10.0
    assert float(first) == 1.0


def test_a_number_captured_by_a_captured_function_is_noticed():
    factor = 2.0

    def scaled(x):
        return factor * x

    @rx.function
    def step(x):
        return scaled(x)

    assert float(step(1.0)) == 2.0
    factor = 3.0
    assert float(step(1.0)) == 3.0


def test_a_dead_variable_leads_to_a_retrace_not_to_an_error():
    holder = {"v": rx.Variable(1.0)}

    @rx.function
    def add(x):
        holder["v"].assign_add(x)
        return holder["v"] * 1.0

    assert float(add(1.0)) == 2.0
    holder["v"] = rx.Variable(10.0)
    gc.collect()
    assert float(add(1.0)) == 11.0
    assert add.trace_count == 2


def test_programs_do_not_keep_variables_alive():
    holder = {"v": rx.Variable(jnp.ones(10))}
    step = rx.function(lambda: len([holder["v"].assign_add(jnp.ones(10))]))
    step()
    gone = weakref.ref(holder.pop("v"))
    gc.collect()
    assert gone() is None


def test_a_function_that_is_gone_takes_its_programs_with_it():
    class Big:
        pass

    big = Big()
    gone = weakref.ref(big)
    step = rx.function(lambda x, big=big: x * 2)
    step(1.0)
    del step, big
    gc.collect()
    assert gone() is None


def test_the_strategy_scope_around_a_call_is_part_of_the_key():
    one, two = mirrored(1), mirrored(2)
    step = rx.function(lambda: rx.get_strategy().num_replicas_in_sync)
    assert step() == 1
    with two.scope():
        assert step() == 2
    with one.scope():
        assert step() == 1
    with two.scope():
        assert step() == 2
    assert step.trace_count == 3


def test_jax_settings_are_part_of_the_key():
    step = rx.function(lambda: jnp.ones((), "float64").dtype.name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert step() == "float32"
        with jax.enable_x64(True):
            assert step() == "float64"
        assert step() == "float32"
    assert step.trace_count == 2


def test_one_function_under_two_strategies_has_a_program_for_each():
    step = rx.function(lambda x: x + rx.get_replica_context().num_replicas_in_sync)
    for _ in range(2):
        for count in (2, 3):
            strategy = mirrored(count)
            result = strategy.experimental_local_results(strategy.run(step, args=(1.0,)))
            assert [float(x) for x in result] == [1.0 + count] * count


@pytest.mark.parametrize(("long_seconds", "expected"), [(0.0, 1), (1000.0, 0)])
def test_memory_is_given_back_once_between_a_long_compilation_and_the_first_launch(
    monkeypatch, long_seconds, expected
):
    strategy = mirrored(2)
    with strategy.scope():
        v = rx.Variable(0.0, aggregation=SUM)
    given_back = []
    monkeypatch.setattr(launching, "LONG_SECONDS", long_seconds)
    monkeypatch.setattr(
        host_memory, "give_back_free", lambda: given_back.append(RUN_AHEAD.num_in_flight)
    )

    @rx.function
    def step():
        v.assign_add(1.0)

    RUN_AHEAD.wait()
    with compilations() as count:
        for _ in range(3):
            strategy.run(step)
    assert len(count) == 1
    assert given_back == [0] * expected  # nothing had been launched yet
    assert float(v) == 6.0
