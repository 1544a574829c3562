"""A program goes with the variables, functions and objects that it is for."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.engine.functions import call_site
from tests.backend.fresh_process import run_fresh
from tests.engine.functions.test_host_loop import Batches

SUM = rx.VariableAggregation.SUM


@pytest.fixture(params=[1, 2])
def strategy(request):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(request.param)])


@pytest.fixture
def programs(monkeypatch):
    """All programs that were made and have not gone."""
    living = weakref.WeakSet()
    make = call_site.Program

    def noted(*args, **kwargs):
        program = make(*args, **kwargs)
        living.add(program)
        return program

    monkeypatch.setattr(call_site, "Program", noted)
    return living


def variable_in(strategy):
    with strategy.scope():
        return rx.Variable(jnp.zeros(2), aggregation=SUM)


@pytest.mark.parametrize("num_calls", [1, 4])
def test_variables_passed_to_a_function_that_lives_on_take_its_programs_with_them(
    strategy, programs, num_calls
):
    @rx.function
    def step(variable, x):
        variable.assign_add(x)

    for _ in range(5):
        variable = variable_in(strategy)
        for _ in range(num_calls):
            strategy.run(step, args=(variable, jnp.ones(2)))
        np.testing.assert_array_equal(
            variable.numpy(), [num_calls * strategy.num_replicas_in_sync] * 2
        )
        assert len(programs) == 1
        del variable
        gc.collect()
        assert len(programs) == 0


@pytest.mark.parametrize("num_calls", [1, 4])
def test_captured_variables_take_programs_with_them(strategy, programs, num_calls):
    variable = variable_in(strategy)
    step = rx.function(lambda x: len([variable.assign_add(x)]))
    for _ in range(4):
        for _ in range(num_calls):
            strategy.run(step, args=(jnp.ones(2),))
        gc.collect()
        assert len(programs) == 1
        variable = variable_in(strategy)


def test_a_variable_found_in_an_object_takes_programs_with_it(strategy, programs):
    model = {"w": variable_in(strategy)}
    step = rx.function(lambda x: len([model["w"].assign_add(x)]))
    for _ in range(3):
        for _ in range(4):
            strategy.run(step, args=(jnp.ones(2),))
        assert len(programs) == 1
        model["w"] = variable_in(strategy)
        gc.collect()
        assert len(programs) == 0


def test_one_of_many_variables_is_enough(strategy, programs):
    variables = [variable_in(strategy) for _ in range(40)]

    @rx.function
    def step(x):
        for variable in variables:
            variable.assign_add(x)

    for _ in range(4):
        strategy.run(step, args=(jnp.ones(2),))
    assert len(programs) == 1
    del variables[7]
    gc.collect()
    assert len(programs) == 0
    for _ in range(2):
        strategy.run(step, args=(jnp.ones(2),))
    np.testing.assert_array_equal(variables[0].numpy(), [6.0 * strategy.num_replicas_in_sync] * 2)


def test_objects_that_a_key_knows_take_programs_with_them(strategy, programs):
    class Mode:
        pass

    step = rx.function(lambda x, mode: x * 2)
    for _ in range(5):
        mode = Mode()
        strategy.run(step, args=(jnp.ones(2), mode))
        del mode
        gc.collect()
        assert len(programs) == 0


def test_a_host_loop_drops_programs_too(strategy, programs):
    @rx.function
    def epoch(dataset, variable):
        for batch in dataset:
            strategy.run(lambda x: len([variable.assign_add(jnp.ones(2))]), args=(batch,))

    for _ in range(4):
        epoch(Batches(strategy, sizes=(4,)), variable_in(strategy))
        gc.collect()
        assert len(programs) == 0


def test_programs_of_one_function_do_not_go_with_variables_of_others(strategy, programs):
    step = rx.function(lambda variable, x: len([variable.assign_add(x)]))
    kept, other = variable_in(strategy), variable_in(strategy)
    for variable in (kept, other, kept):
        strategy.run(step, args=(variable, jnp.ones(2)))
    del other, variable
    gc.collect()
    assert len(programs) == 1
    strategy.run(step, args=(kept, jnp.ones(2)))
    assert step.trace_count == 2


def test_the_memory_of_a_program_goes_with_it(strategy):
    client = jax.devices()[0].client
    step = rx.function(lambda variable, x: len([variable.assign_add(jnp.tanh(x) * 1.25)]))

    def trial():
        variable = variable_in(strategy)
        for _ in range(3):
            strategy.run(step, args=(variable, jnp.ones(2)))
        del variable
        gc.collect()
        return len(client.live_executables())

    first = [trial() for _ in range(2)][-1]
    assert [trial() for _ in range(2)][-1] <= first


def test_a_program_may_go_in_the_middle_of_any_operation():
    run_fresh(
        """
        import gc

        import jax.numpy as jnp

        import replicax as rx

        rx.set_virtual_devices(2)
        strategy = rx.MirroredStrategy()
        x = jnp.ones(3)
        step = rx.function(lambda variable: len([variable.assign_add(1.0)]))

        def deep(depth, fn):
            return fn() if depth == 0 else deep(depth - 1, fn)

        for number in range(20):
            with strategy.scope():
                v = rx.Variable(1.0)
            step(v)
            step(v)
            cycle = [v]
            cycle.append(cycle)  # so that only the collector finds it
            gc.disable()
            add = lambda: x + 1
            gc.set_threshold(gc.get_count()[0] + 2 * number % 40)
            del v, cycle
            gc.enable()
            deep(20, add)  # each frame that JAX looks at may start the collector
            gc.set_threshold(700)
            gc.collect()
            assert len(step._site._programs) == 0
        """
    )
