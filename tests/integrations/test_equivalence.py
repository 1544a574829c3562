"""A model of each library trains under a strategy as by the library itself on one device."""

import functools

import numpy as np
import pytest

import replicax as rx
from tests.integrations.libraries import WITH_MODELS, models_of
from tests.integrations.problem import INPUTS, OPTIMIZERS, assert_close, batches
from tests.tiers import full_only

WRAPS = {"compiled": rx.function, "eager": lambda step: step}

libraries = pytest.mark.parametrize("library", WITH_MODELS, ids=str)
names = pytest.mark.parametrize("name", INPUTS)
optimizers = pytest.mark.parametrize("optimizer", OPTIMIZERS)
counts = pytest.mark.parametrize("count", [1, 2, 3, 8])


def strategy_of(count, **options):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(count)], **options)


@functools.cache
def expected(library, name, optimizer, steps, shares):
    return models_of(library).train_alone(name, OPTIMIZERS[optimizer], steps, shares)


def check(library, name, optimizer, steps, count, *, wrap="compiled", tolerance=1e-5, **options):
    train = models_of(library).train
    strategy = strategy_of(count, **options)
    values, losses = train(strategy, name, OPTIMIZERS[optimizer], steps, wrap=WRAPS[wrap])
    shares = count if name == "convnet" else 1  # only statistics depend on how a batch is divided
    wanted, wanted_losses = expected(library, name, optimizer, steps, shares)
    assert_close(values, wanted, tolerance)
    np.testing.assert_allclose(losses, wanted_losses, rtol=10 * tolerance)


@pytest.mark.whole
@libraries
@pytest.mark.parametrize("name", [full_only("mlp"), "convnet"])
def test_a_few_compiled_steps_equal_those_of_one_device(library, name):
    check(library, name, "sgd", 3, 2)


@pytest.mark.slow
@libraries
@names
@optimizers
@counts
def test_fifty_compiled_steps_equal_those_of_one_device(library, name, optimizer, count):
    check(library, name, optimizer, 50, count)


@pytest.mark.slow
@libraries
@names
@counts
def test_eager_steps_equal_those_of_one_device(library, name, count):
    check(library, name, "sgd", 6, count, wrap="eager")


@pytest.mark.quick
@libraries
def test_sharded_steps_equal_those_of_one_device(library):
    sharding = rx.experimental.Sharding(stage=3)
    check(library, "mlp", "adamw", 3, 2, tolerance=1e-4, sharding=sharding)


@pytest.mark.slow
@libraries
@names
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_fifty_sharded_steps_equal_those_of_one_device(library, name, stage):
    sharding = rx.experimental.Sharding(stage=stage)
    check(library, name, "schedule", 50, 3, tolerance=1e-4, sharding=sharding)


@libraries
def test_dropout_is_of_each_replica_and_the_same_in_both_executors(library):
    strategy = strategy_of(3)
    masks = []
    for wrap in WRAPS.values():
        step, _ = models_of(library).dropout(strategy)
        step = wrap(step)
        masks.append([np.stack(strategy.run(step).values) for _ in range(2)])
    for compiled, eager in zip(*masks, strict=True):
        np.testing.assert_array_equal(compiled, eager)
        assert len({mask.tobytes() for mask in compiled}) == 3
    assert masks[0][0].tobytes() != masks[0][1].tobytes()


@pytest.mark.slow
@libraries
def test_training_with_dropout_goes_on_from_a_checkpoint(library, tmp_path):
    strategy = strategy_of(2)
    train_with_dropout = models_of(library).train_with_dropout
    data = [batch for batch in batches("gpt", 12) if len(batch[0]) == 24]

    def losses(step, data):
        found = [strategy.run(step, args=strategy.distribute_batch(batch)) for batch in data]
        return [float(strategy.reduce("SUM", loss, axis=None)) for loss in found]

    step, state = train_with_dropout(strategy, 0)
    step = rx.function(step)
    losses(step, data[:2])
    path = rx.Checkpoint(**state).save(str(tmp_path / "at"))
    wanted = losses(step, data[2:])
    again, its_state = train_with_dropout(strategy, 0)
    rx.Checkpoint(**its_state).restore(path)
    assert losses(rx.function(again), data[2:]) == wanted
