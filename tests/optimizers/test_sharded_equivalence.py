"""An optimizer on parts of parameters, gradients and slots trains as plain Optax does.

A parameter of the problem has 6 elements: the parts of 4 replicas are filled up, and 8 replicas
have it whole. Its batches are uneven on 3 replicas.
"""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.core.errors import TraceError
from replicax.optimizers import named
from replicax.variables.sharded import ShardedVariable
from tests.optimizers.problem import Training, assert_close, initial, mirrored, train_plain

STEPS = 5
EVEN = {"num_examples": 16}


def decay_matrices_only(params):
    """A mask by the number of dims, which a part of a matrix does not have any more."""
    return {
        "hidden": {"kernel": params["hidden"]["kernel"].ndim > 1, "bias": False},
        "out": {"kernel": params["out"]["kernel"].ndim > 1},
    }


def noisy():
    return optax.chain(optax.add_noise(0.01, 0.55, key=0), optax.sgd(0.05))


OPTIMIZERS = {
    "sgd": lambda: optax.sgd(0.05),
    "sgd_momentum": lambda: optax.sgd(0.05, momentum=0.9),
    "adam": lambda: optax.adam(0.01),
    "adamw_masked": lambda: optax.adamw(0.01, weight_decay=0.1, mask=decay_matrices_only),
    "lamb": lambda: optax.lamb(0.01),
    "adafactor": lambda: optax.adafactor(0.01, min_dim_size_to_factor=2),
    "clip_by_global_norm": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.01)),
    "clip_by_block_rms": lambda: optax.chain(optax.clip_by_block_rms(0.01), optax.sgd(0.05)),
    "noise": noisy,
    "multi_steps": lambda: optax.MultiSteps(optax.adam(0.01), every_k_schedule=2),
}


def sharding(stage):
    return rx.experimental.Sharding(stage=stage)


ALL_STAGES = ["sgd_momentum", "adam", "lamb", "adafactor", "clip_by_global_norm"]
CASES = [(name, 3) for name in OPTIMIZERS] + [(name, k) for name in ALL_STAGES for k in (1, 2)]


@pytest.mark.parametrize(("name", "stage"), CASES)
def test_compiled_steps_equal_plain_optax(name, stage):
    make = OPTIMIZERS[name]
    training = Training(mirrored(4, sharding=sharding(stage)), make())
    assert_close(training.run(STEPS, **EVEN), train_plain(make(), STEPS, **EVEN))


@pytest.mark.parametrize("num_replicas", [1, 2, 3, 8])
def test_lamb_with_a_clipped_norm_equals_plain_optax_on_any_number_of_replicas(num_replicas):
    whole = optax.chain(optax.clip_by_global_norm(0.5), optax.lamb(0.01))
    training = Training(
        mirrored(num_replicas, sharding=sharding(3)), optax.lamb(0.01), clip_global_norm=0.5
    )
    assert_close(training.run(STEPS, **EVEN), train_plain(whole, STEPS, **EVEN))


@pytest.mark.parametrize("stage", [1, 3])
def test_eager_steps_equal_plain_optax(stage):
    training = Training(mirrored(2, sharding=sharding(stage)), optax.adam(0.01), compiled=False)
    assert_close(training.run(2), train_plain(optax.adam(0.01), 2))


def test_accumulated_steps_equal_those_of_mirrored_variables():
    mirrored_run = Training(mirrored(2), optax.adam(0.01), accumulate_steps=2)
    training = Training(mirrored(2, sharding=sharding(3)), optax.adam(0.01), accumulate_steps=2)
    assert_close(training.run(4, **EVEN), mirrored_run.run(4, **EVEN))


def test_a_learning_rate_that_is_a_variable_is_read_in_every_step():
    def train(strategy):
        with strategy.scope():
            params = rx.variables_from(initial())
            optimizer = named.Adam(0.01)
        step = rx.function(lambda: optimizer.apply_gradients(
            [(rx.grad(lambda: sum(jnp.sum(v * v) for v in _leaves(params)), params), params)]
        ))  # fmt: skip
        for rate in (0.01, 0.5, 0.001):
            optimizer.learning_rate = rate
            strategy.run(step)
        return rx.values_of(params)

    assert_close(train(mirrored(3, sharding=sharding(3))), train(mirrored(3)))


def _leaves(params):
    return [params["hidden"]["kernel"], params["hidden"]["bias"], params["out"]["kernel"]]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_which_variables_are_split(stage):
    training = Training(mirrored(8, sharding=sharding(stage)), optax.adam(0.01))
    training.run(1, **EVEN)
    kernel, bias = training.params["hidden"]["kernel"], training.params["hidden"]["bias"]
    slots = training.optimizer.slots_of
    assert isinstance(kernel, ShardedVariable) == (stage == 3)
    assert all(isinstance(slot, ShardedVariable) for slot in slots(kernel).values())
    assert not isinstance(bias, ShardedVariable)  # 6 elements are fewer than 8 replicas
    assert not any(isinstance(slot, ShardedVariable) for slot in slots(bias).values())
    assert not isinstance(training.optimizer.iterations, ShardedVariable)


def test_with_one_replica_everything_is_whole():
    training = Training(mirrored(1, sharding=sharding(3)), optax.adam(0.01))
    training.run(1, **EVEN)
    held = [*training.optimizer.variables, *_leaves(training.params)]
    assert not any(isinstance(variable, ShardedVariable) for variable in held)


def test_a_gradient_that_differs_between_replicas_is_refused_by_name():
    strategy = mirrored(2, sharding=sharding(3))
    with strategy.scope():
        w = rx.Variable(np.ones(4, np.float32), name="w")
        optimizer = rx.Optimizer(optax.adam(0.1))

    @rx.function
    def step():
        replica = rx.get_replica_context().replica_id_in_sync_group
        optimizer.apply_gradients([(w * (1.0 + replica), w)], aggregate=False)

    with pytest.raises(TraceError, match="the gradient of variable 'w' differs between"):
        strategy.run(step)


def test_a_reduced_gradient_of_whole_shape_is_taken_as_it_is():
    results = []
    for options in ({"sharding": sharding(3)}, {}):
        strategy = mirrored(2, **options)
        with strategy.scope():
            w = rx.Variable(np.arange(4, dtype=np.float32), name="w")
            optimizer = rx.Optimizer(optax.adam(0.1))

        @rx.function
        def step():
            total = rx.get_replica_context().all_reduce("SUM", w * 2.0)  # noqa: B023
            optimizer.apply_gradients([(total, w)])  # noqa: B023
            optimizer.apply_gradients([(total * 2.0, w)], aggregate=False)  # noqa: B023

        strategy.run(step)
        results.append(w.numpy())
    np.testing.assert_allclose(*results, rtol=1e-6)
