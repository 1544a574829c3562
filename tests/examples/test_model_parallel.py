"""The transformer of the example: two replicas of four logical devices learn what one does."""

import importlib.util

import numpy as np
import pytest

import replicax as rx
from tests.backend.fresh_process import ROOT
from tests.strategies.collectives import all_gathers_of, collectives_of

STEPS = 50


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location(
        "model_parallel", ROOT / "examples" / "model_parallel.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def trained(example):
    """The training on 8 devices, and that on one."""
    many = rx.MirroredStrategy(logical_devices=4, partition_rules=example.RULES)
    trainings = [example.Training(s) for s in (many, rx.OneDeviceStrategy("CPU:0"))]
    return [(training, training.run(STEPS)) for training in trainings]


@pytest.mark.slow
def test_it_trains_to_the_parameters_of_one_device(trained):
    (many, losses), (one, expected_losses) = trained
    expected = one.values()
    for name, value in many.values().items():
        largest = 1e-4 * np.maximum(1.0, np.abs(expected[name]))
        assert (np.abs(value - expected[name]) <= largest).all(), name
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
    assert losses[-1] < 0.5 * losses[0]


def test_its_weights_and_their_slots_are_divided_by_heads_units_and_words(trained):
    training = trained[0][0]
    block = training.model["blocks"][1]
    assert block["query"].partition_dimensions == (1, 4, 1)
    assert block["out"].partition_dimensions == (4, 1, 1)
    assert block["mlp_in"].partition_dimensions == (1, 4)
    assert block["mlp_bias"].partition_dimensions == (4,)
    assert block["mlp_out"].partition_dimensions == (4, 1)
    assert block["before_mlp"]["scale"].partition_dimensions == (1,)
    assert training.model["embedding"].partition_dimensions == (4, 1)
    for variable in (block["query"], block["mlp_out"]):
        for slot in training.optimizer.slots_of(variable).values():
            assert slot.partition_dimensions == variable.partition_dimensions


def test_no_weights_and_no_activations_are_gathered(trained):
    training = trained[0][0]
    batch = training.batch(0)
    program = training.step.lower_run(training.strategy, *batch).compile()
    assert all_gathers_of(program) == set()
    assert {c.kind for c in collectives_of(program)} == {"all-reduce"}
    whole = sum(value.nbytes for value in training.values().values())
    with_slots = 3 * whole  # the two of Adam have the size of the parameters
    assert program.memory_analysis().argument_size_in_bytes < 0.3 * with_slots
