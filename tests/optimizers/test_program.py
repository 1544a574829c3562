"""What the compiled step of an optimizer contains, and where its state is."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.core import notices
from replicax.optimizers.optimizer import Optimizer
from tests.optimizers.problem import Training, assert_close, central, mirrored, train_plain
from tests.performance.counting import operands

NUM_VARIABLES = 100


def program_of(strategy, **options):
    """The compiled step of 100 gradients of different sizes, all under 16k elements."""
    with strategy.scope():
        variables = [rx.Variable(np.ones(1 + i, np.float32)) for i in range(NUM_VARIABLES)]
        optimizer = Optimizer(optax.adam(1e-3), **options)
        optimizer.build(variables)

    @rx.function
    def step(x):
        gradients = rx.grad(lambda: sum((v * x[0]).sum() for v in variables), variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    batch = strategy.distribute_batch(np.ones(strategy.num_replicas_in_sync, np.float32))
    return step.lower_run(strategy, batch).compile().as_text()


@pytest.mark.slow
def test_a_hundred_small_gradients_travel_in_at_most_4_operands():
    assert 1 <= operands(program_of(mirrored(2))) <= 4


@pytest.mark.slow
def test_without_packing_every_gradient_is_an_operand():
    notices.forget(("cross device ops", "NcclAllReduce"))
    with pytest.warns(rx.ReplicaxWarning, match="NcclAllReduce is the default all-reduce"):
        strategy = mirrored(2, cross_device_ops=rx.NcclAllReduce(num_packs=0))
        text = program_of(strategy)
    assert operands(text) >= NUM_VARIABLES


@pytest.mark.slow
def test_accumulated_gradients_travel_packed_and_only_in_the_branch_of_the_last_step():
    text = program_of(mirrored(2), accumulate_steps=4)
    assert " conditional(" in text
    assert 1 <= operands(text) <= 4
    entry = text[text.index("ENTRY ") :]
    assert " all-reduce" not in entry[: entry.index("\n}")]


# -- state ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [lambda: mirrored(2), lambda: central(2)], ids=["mirrored", "central"]
)
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_slots_are_where_their_variable_is_and_the_rest_on_the_non_slot_devices(make, compiled):
    strategy = make()
    training = Training(strategy, optax.adam(0.01), compiled=compiled)
    training.run(1)
    optimizer = training.optimizer
    kernel = training.params["hidden"]["kernel"]
    slots = optimizer.slots_of(kernel)
    assert {slot: v.name for slot, v in slots.items()} == {
        "0/mu": "Optimizer/0/mu/hidden/kernel",
        "0/nu": "Optimizer/0/nu/hidden/kernel",
    }
    for slot in slots.values():
        assert slot.devices() == kernel.devices()
        assert not slot.trainable
        assert strategy.extended.variable_created_in_scope(slot)
    count = optimizer.state[0].count
    assert count.name == "Optimizer/0/count"
    assert len(count.devices()) == len(strategy.extended.non_slot_devices([kernel]))
    assert optimizer.iterations.name == "Optimizer/iterations"
    assert optimizer.iterations.dtype == np.int32
    assert len(optimizer.variables) == 1 + 1 + 2 * 3


def test_factored_state_is_a_slot_although_its_shape_is_another():
    training = Training(mirrored(2), optax.adafactor(0.01, min_dim_size_to_factor=2))
    training.run(1)
    kernel = training.params["hidden"]["kernel"]
    shapes = {slot: v.shape for slot, v in training.optimizer.slots_of(kernel).items()}
    assert shapes == {"0/v_row": (4,), "0/v_col": (6,), "0/v": (1,)}


def test_the_state_of_a_tree_and_of_pairs_has_the_tree_that_was_passed():
    with mirrored(2).scope():
        variables = [rx.Variable(1.0, name="a"), rx.Variable([1.0, 2.0], name="b")]
        optimizer = Optimizer(optax.sgd(0.1, momentum=0.9), name="Momentum")
        assert optimizer.state is None
        assert optimizer.slots_of(variables[0]) == {}
        gradients = [jnp.ones(()), jnp.ones(2)]
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        optimizer.apply_gradients(zip(gradients[::-1], variables[::-1], strict=True))
    trace = optimizer.state[0].trace
    assert [v.name for v in trace] == ["Momentum/0/trace/a", "Momentum/0/trace/b"]
    np.testing.assert_allclose(trace[1], [1.9, 1.9], rtol=1e-6)


def test_the_state_is_created_once_for_uneven_batches_that_are_traced_in_variants():
    training = Training(mirrored(3), optax.adam(0.01))  # 8 examples: 3, 3, 2
    training.run(2)
    names = [v.name for v in training.optimizer.variables]
    assert len(names) == len(set(names)) == 8


def test_an_optimizer_without_a_strategy_trains_ordinary_variables():
    training = Training(rx.get_strategy(), optax.adam(0.01))
    assert_close(training.run(6), train_plain(optax.adam(0.01), 6))
    w = rx.Variable(1.0)
    optimizer = Optimizer(optax.sgd(0.5))
    optimizer.apply_gradients([(1.0, w)])
    assert float(w) == 0.5
