"""What a compiled training step contains and what calling it costs, counted."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.backend import placement
from tests.performance.counting import (
    SIZES,
    donated,
    mirrored,
    operands,
    perceptron,
    python_calls,
    steady_calls,
)

NUM_PARAMS = 2 * (len(SIZES) - 1)
NUM_LARGE = 2  # 784 x 512 and 512 x 512; everything else is under 16k elements


class Training:
    """The small network under an optimizer, and how often its step was traced."""

    def __init__(self, strategy, transformation):
        arrays, data = perceptron()
        with strategy.scope():
            params = rx.variables_from(arrays)
            optimizer = rx.Optimizer(transformation)
            optimizer.build(params)
        self.strategy, self.batch = strategy, strategy.distribute_batch(data)
        self.num_python_runs = 0

        @rx.function
        def step(x, y):
            self.num_python_runs += 1

            def loss():
                hidden = x
                for weights, bias in zip(params[0:-2:2], params[1:-2:2], strict=True):
                    hidden = jax.nn.relu(hidden @ weights + bias)
                logits = hidden @ params[-2] + params[-1]
                picked = jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1)
                return -picked.sum() / 16

            value, gradients = rx.value_and_grad(loss, params)
            optimizer.apply_gradients([(gradients, params)])
            return value

        self.step = step

    def run(self):
        return self.strategy.run(self.step, args=self.batch)

    def program(self):
        return self.step.lower_run(self.strategy, *self.batch).compile().as_text()


# -- collectives -----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_replicas", [2, 4])
def test_a_training_step_has_one_operand_for_each_large_gradient_and_one_for_the_rest(num_replicas):
    text = Training(mirrored(num_replicas), optax.adam(1e-3)).program()
    assert operands(text) == NUM_LARGE + 1


def test_one_replica_has_no_collective():
    assert operands(Training(mirrored(1), optax.adam(1e-3)).program()) == 0


def test_five_hundred_small_variables_travel_in_one_operand():
    strategy = mirrored(2)
    with strategy.scope():
        variables = [rx.Variable(np.ones(8, np.float32)) for _ in range(500)]

    @rx.function
    def step(x):
        gradients = [v * x.sum() for v in variables]
        total = rx.get_replica_context().all_reduce("SUM", gradients)
        rx.get_replica_context().merge_call(update, args=(total,))

    def update(strategy, gradients):
        for variable, gradient in zip(variables, gradients, strict=True):
            strategy.extended.update(variable, lambda v, g: v.assign_sub(g), args=(gradient,))

    batch = strategy.distribute_batch(np.ones(2, np.float32))
    assert step.lower_run(strategy, batch).as_text().count("stablehlo.all_reduce") == 1


# -- donation --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transformation", "num_slots"),
    [(optax.sgd(0.1), 0), (optax.sgd(0.1, 0.9), 1), (optax.adam(1e-3), 2)],
    ids=["sgd", "momentum", "adam"],
)
def test_every_variable_that_a_step_writes_is_donated(transformation, num_slots):
    training = Training(mirrored(2), transformation)
    counters = 1 + (num_slots == 2)  # the optimizer's own, and that of Adam
    assert donated(training.program()) == (1 + num_slots) * NUM_PARAMS + counters


def test_a_step_leaves_the_old_buffers_to_the_new_values():
    strategy = mirrored(2)
    with strategy.scope():
        v = rx.Variable(np.ones(1000, np.float32))

    @rx.function
    def step():
        v.assign(v + 1.0)

    step()
    assert donated(step.lower().compile().as_text()) == 1


# -- calls and copies ------------------------------------------------------------------------------


def calls_of_a_step_that_writes(num_variables):
    strategy = mirrored(2)
    with strategy.scope():
        variables = [rx.Variable(np.ones(8, np.float32)) for _ in range(num_variables)]

    @rx.function
    def step():
        for variable in variables:
            variable.assign(variable + 1.0)

    return steady_calls(step)


def test_a_step_makes_as_few_calls_for_many_variables_as_for_few():
    assert abs(calls_of_a_step_that_writes(100) - calls_of_a_step_that_writes(4)) <= 5


@pytest.mark.parametrize("size", [3, 1 << 20], ids=["small", "large"])
def test_an_eager_all_reduce_copies_only_what_the_host_adds(size, monkeypatch):
    copies = []
    own_copy = placement.own_copy
    monkeypatch.setattr(placement, "own_copy", lambda *args: copies.append(1) or own_copy(*args))
    strategy = mirrored(2)
    batch = strategy.distribute_batch(np.ones((2, size), np.float32))
    copies.clear()

    total = strategy.run(lambda x: rx.get_replica_context().all_reduce("SUM", x), args=(batch,))

    assert len(copies) == (0 if size == 3 else 2)
    for part in strategy.experimental_local_results(total):
        np.testing.assert_array_equal(part[0, -1], 2.0)


# -- traces ----------------------------------------------------------------------------------------


def test_calls_with_arguments_of_one_kind_are_one_trace():
    training = Training(mirrored(2), optax.adam(1e-3))
    training.run()
    runs, traces = training.num_python_runs, training.step.trace_count
    for _ in range(10):
        training.run()
    assert (training.num_python_runs, training.step.trace_count) == (runs, traces)
    assert traces == 1


def chain(length, weights, x):
    for _ in range(length // 2):
        x = x * weights + 1.0
    return x.sum(0)


def lowered_by_hand(length):
    mesh = jax.make_mesh((2,), ("replica",), axis_types=(jax.sharding.AxisType.Auto,))

    def replica(weights, x):
        return jax.lax.psum(chain(length, weights, x), "replica")

    specs = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("replica")
    mapped = jax.shard_map(
        replica, mesh=mesh, in_specs=specs, out_specs=specs[0], axis_names={"replica"}
    )
    step = jax.jit(mapped)
    return python_calls(lambda: step.lower(np.ones(8, np.float32), np.ones((2, 8), np.float32)))


def lowered(length):
    strategy = mirrored(2)
    with strategy.scope():
        weights = rx.Variable(np.ones(8, np.float32))
    batch = strategy.distribute_batch(np.ones((2, 8), np.float32))

    @rx.function
    def step(x):
        def replica(x):
            return rx.get_replica_context().all_reduce("SUM", chain(length, weights.value, x))

        return strategy.run(replica, args=(x,))

    return python_calls(lambda: step.lower(batch))


def test_the_trace_of_a_replica_function_is_not_evaluated_again():
    lowered_by_hand(10), lowered(10)
    by_hand = lowered_by_hand(1010) - lowered_by_hand(10)
    assert lowered(1010) - lowered(10) <= 1.3 * by_hand


@pytest.mark.parametrize("num_replicas", [1, 2, 8])
def test_the_number_of_traces_does_not_depend_on_the_replicas(num_replicas):
    training = Training(mirrored(num_replicas), optax.sgd(0.1))
    training.run()
    assert training.step.trace_count == 1


# -- Python ----------------------------------------------------------------------------------------


def small_step(num_replicas, *, num_variables=1, num_arguments=None):
    """A step over so many variables and a list of so many arguments, or one that is bare."""
    strategy = mirrored(num_replicas)
    with strategy.scope():
        variables = [rx.Variable(np.zeros(2, np.float32)) for _ in range(num_variables)]
    ones = np.ones(2 * num_replicas, np.float32)
    data = strategy.distribute_batch(ones if num_arguments is None else [ones] * num_arguments)

    @rx.function
    def step(data):
        for variable in variables:
            variable.assign(variable + 1.0)
        return strategy.run(lambda data: jax.tree.leaves(data)[0] * 2.0, args=(data,))

    return lambda: step(data)


MAX_CALLS, MAX_CALLS_WITH_A_NEST = 20, 33
"""Of Python and C functions in a repeated step of one variable and one argument.

One of them stores the new values of all variables, however many there are.
"""


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_a_repeated_step_makes_few_calls(num_replicas):
    assert steady_calls(small_step(num_replicas)) <= MAX_CALLS


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_a_repeated_step_of_a_nest_makes_few_calls(num_replicas):
    assert steady_calls(small_step(num_replicas, num_arguments=1)) <= MAX_CALLS_WITH_A_NEST


def test_the_calls_of_a_step_do_not_depend_on_the_replicas():
    few, many = (steady_calls(small_step(num_replicas)) for num_replicas in (2, 8))
    assert many <= few + 5


def test_the_calls_of_a_step_grow_at_most_linearly_with_its_variables():
    ten, thirty = (steady_calls(small_step(2, num_variables=n)) for n in (10, 30))
    assert (thirty - ten) / 20 <= 1


def test_the_calls_of_a_step_do_not_depend_on_the_number_of_many_small_variables():
    few, many = (steady_calls(small_step(2, num_variables=n)) for n in (64, 256))
    assert many <= few + 5


def test_the_calls_of_a_step_grow_at_most_linearly_with_its_arguments():
    ten, hundred = (steady_calls(small_step(2, num_arguments=n)) for n in (10, 100))
    assert (hundred - ten) / 90 <= 5


def test_a_variable_that_a_step_does_not_touch_costs_it_nothing():
    strategy = mirrored(2)
    with strategy.scope():
        touched = rx.Variable(np.zeros(2, np.float32))

    @rx.function
    def step():
        touched.assign(touched + 1.0)

    alone = steady_calls(step)
    with strategy.scope():
        others = [rx.Variable(np.zeros(2, np.float32)) for _ in range(50)]
    assert steady_calls(step) == alone
    assert len(others) == 50


def test_the_counter_sees_calls_of_python_and_of_c():
    assert python_calls(lambda: None) == 1
    assert python_calls(lambda: [len(()) for _ in range(10)]) >= 11
