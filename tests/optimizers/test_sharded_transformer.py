"""A transformer over 8 replicas, its state split in three stages: results, collectives, bytes."""

import collections
import re

import jax
import numpy as np
import optax
import pytest

import replicax as rx
from tests.optimizers.problem import mirrored
from tests.optimizers.transformer import Training, batches, initial, loss

STEPS = 50


def adam():
    return optax.adam(3e-3)


@pytest.fixture(scope="module")
def one_device():
    """The parameters after the same steps of plain JAX and Optax on one device."""
    params, transformation = jax.tree.map(jax.numpy.asarray, initial()), adam()
    state = transformation.init(params)

    @jax.jit
    def step(params, state, tokens):
        value, gradients = jax.value_and_grad(loss)(params, tokens)
        gradients = jax.tree.map(lambda g: g / len(tokens), gradients)
        updates, state = transformation.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value / len(tokens)

    losses = []
    for tokens in batches(STEPS):
        params, state, value = step(params, state, tokens)
        losses.append(float(value))
    return jax.tree.map(np.asarray, params), losses


def strategy(stage):
    if stage == 0:
        return mirrored(8)
    return mirrored(8, sharding=rx.experimental.Sharding(stage=stage))


LATE = [pytest.param(stage, marks=pytest.mark.slow) for stage in (1, 2)]


@pytest.fixture(scope="module", params=[*LATE, 3])
def trained(request):
    training = Training(strategy(request.param), adam())
    return request.param, training, training.run(STEPS)


@pytest.mark.slow
def test_50_steps_over_8_replicas_give_the_parameters_of_one_device(trained, one_device):
    _, _, (params, losses) = trained
    expected, expected_losses = one_device
    assert losses[-1] < 0.9 * losses[0]
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
    for one, other in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
        error = np.abs(one - other) / np.maximum(1, np.abs(other))
        assert error.max() <= 1e-4


def collectives(compiled):
    """The operand types of each kind of collective, as ``{kind: Counter(type)}``."""
    found = collections.defaultdict(collections.Counter)
    kinds = "all-gather|reduce-scatter|all-reduce|all-to-all|collective-permute"
    pattern = rf"= (\S+|\(.*?\)) ({kinds})(?:-start)?\("
    for shape, kind in re.findall(pattern, compiled.as_text()):
        for part in re.findall(r"[a-z]+\d+\[[\d,]*\]", shape):
            found[kind][part] += 1
    return dict(found)


def filled_up(shape):
    return 8 * -(-int(np.prod(shape)) // 8)


def test_the_collectives_are_the_ones_that_the_stage_needs(trained):
    stage, training, _ = trained
    found = collectives(training.compiled())
    shapes = [value.shape for value in jax.tree.leaves(initial())]
    one_pack = sum(map(filled_up, shapes))  # every parameter is small: they travel together
    elements = sum(int(np.prod(shape)) for shape in shapes)
    of_parameters = collections.Counter(f"f32[{filled_up(shape)}]" for shape in shapes)
    packed_gather = {f"f32[8,{one_pack // 8}]": 1}
    packed_scatter = {f"f32[1,{one_pack // 8}]": 1}
    allowed = {
        1: {"all-reduce": {f"f32[{elements}]": 1}, "all-gather": packed_gather},
        2: {"reduce-scatter": packed_scatter, "all-gather": packed_gather},
        # Each parameter is gathered once, where it is first read.
        3: {"reduce-scatter": packed_scatter, "all-gather": of_parameters},
    }
    assert found == allowed[stage]


@pytest.mark.slow
def test_the_state_on_a_device_is_its_part_of_it(trained):
    stage, training, _ = trained
    whole = Training(strategy(0), adam())
    whole.run(1)
    before = whole.compiled().memory_analysis().argument_size_in_bytes
    now = training.compiled().memory_analysis().argument_size_in_bytes
    parameters = sum(value.nbytes for value in jax.tree.leaves(initial()))
    assert before >= 3 * parameters  # with the two moments of Adam
    # What is not split: the batch, two counters; parts are filled up by less than 8 elements.
    expected = {1: 1 + 2 / 8, 2: 1 + 2 / 8, 3: 3 / 8}[stage] * parameters
    assert expected <= now <= expected + 4 * 3 * len(jax.tree.leaves(initial())) + 256
    if stage == 3:
        assert now <= 0.2 * before
