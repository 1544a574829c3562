"""An NNX model made in a scope trains as it does on one device without Replicax."""

import functools

import numpy as np
import pytest
from flax import nnx

import replicax as rx
from tests.integrations.flax.models import (
    CASES,
    GPT,
    OPTIMIZERS,
    assert_close,
    batches,
    make_step,
    numbers,
    reference,
)


def strategy_of(count, **options):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(count)], **options)


def train(case, make_optimizer, steps, strategy, *, compiled):
    with strategy.scope():
        model = case.make(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, make_optimizer(), wrt=nnx.Param)
    step_for = {}
    losses = []
    for x, y in batches(case, steps):
        if len(x) not in step_for:
            step = make_step(model, optimizer, len(x))
            step_for[len(x)] = rx.function(step) if compiled else step
        loss = strategy.run(step_for[len(x)], args=strategy.distribute_batch((x, y)))
        losses.append(float(strategy.reduce("SUM", loss, axis=None)))
    assert int(optimizer.step[...]) == steps
    return model, losses


@functools.cache
def expected(name, optimizer, steps, shares):
    model, losses = reference(CASES[name], OPTIMIZERS[optimizer], steps, shares)
    return numbers(model), losses


def check(name, optimizer, steps, count, *, compiled, tolerance=1e-5, **options):
    strategy = strategy_of(count, **options)
    case, make = CASES[name], OPTIMIZERS[optimizer]
    model, losses = train(case, make, steps, strategy, compiled=compiled)
    values, wanted = expected(name, optimizer, steps, count if name == "convnet" else 1)
    assert_close(numbers(model), values, tolerance)
    np.testing.assert_allclose(losses, wanted, rtol=10 * tolerance)


@pytest.mark.parametrize("name", ["mlp", "convnet"])
def test_a_few_compiled_steps_equal_those_of_one_device(name):
    check(name, "sgd", 3, 2, compiled=True)


@pytest.mark.slow
def test_a_few_eager_steps_equal_those_of_one_device():
    check("mlp", "sgd", 2, 2, compiled=False)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", CASES)
def test_fifty_compiled_steps_equal_those_of_one_device(name, optimizer, count):
    check(name, optimizer, 50, count, compiled=True)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("name", CASES)
def test_eager_steps_equal_those_of_one_device(name, count):
    check(name, "sgd", 6, count, compiled=False)


@pytest.mark.parametrize("stage", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_sharded_steps_equal_those_of_one_device(stage):
    sharding = rx.experimental.Sharding(stage=stage)
    check("mlp", "adamw", 3, 2, compiled=True, tolerance=1e-4, sharding=sharding)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_fifty_sharded_steps_equal_those_of_one_device(name, stage):
    sharding = rx.experimental.Sharding(stage=stage)
    check(name, "schedule", 50, 3, compiled=True, tolerance=1e-4, sharding=sharding)


def test_dropout_is_of_each_replica_and_the_same_in_both_executors():
    strategy = strategy_of(3)
    masks = []
    for compiled in (True, False):
        with strategy.scope():
            dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
        step = lambda dropout=dropout: dropout(np.ones(64, np.float32))  # noqa: E731
        step = rx.function(step) if compiled else step
        masks.append([np.stack(strategy.run(step).values) for _ in range(2)])
        assert int(dropout.rngs.count[...]) == 2
    for compiled, eager in zip(*masks, strict=True):
        np.testing.assert_array_equal(compiled, eager)
        assert len({mask.tobytes() for mask in compiled}) == 3
    assert masks[0][0].tobytes() != masks[0][1].tobytes()
    alone = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(masks[0][0][0], alone(np.ones(64, np.float32)))


@pytest.mark.slow
def test_training_with_dropout_goes_on_from_a_checkpoint(tmp_path):
    strategy = strategy_of(2)

    def made(seed):
        with strategy.scope():
            model = GPT(nnx.Rngs(seed), rate=0.3)
            return model, nnx.Optimizer(model, OPTIMIZERS["adamw"](), wrt=nnx.Param)

    def steps(model, optimizer, data):
        step = rx.function(make_step(model, optimizer, 24))
        return [
            float(strategy.reduce("SUM", loss, axis=None))
            for loss in [strategy.run(step, args=strategy.distribute_batch(b)) for b in data]
        ]

    data = [batch for batch in batches(CASES["gpt"], 8) if len(batch[0]) == 24]
    model, optimizer = made(0)
    steps(model, optimizer, data[:2])
    path = rx.Checkpoint(model=model, optimizer=optimizer).save(str(tmp_path / "at"))
    wanted = steps(model, optimizer, data[2:])
    again, its_optimizer = made(1)
    rx.Checkpoint(model=again, optimizer=its_optimizer).restore(path)
    assert steps(again, its_optimizer, data[2:]) == wanted
    assert_close(numbers(again), numbers(model), 0)
