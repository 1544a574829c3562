"""Every script in examples runs as its docstring says, and computes what it claims."""

import importlib.util
import pathlib
import types

import numpy as np
import pytest

import replicax as rx
from tests.backend.fresh_process import ROOT, run_fresh

LONG = {"model_parallel", "sharded_training"}  # what they compute has quick tests, too
EXAMPLES = [
    pytest.param(path, marks=[pytest.mark.slow] if path.stem in LONG else [])
    for path in sorted((ROOT / "examples").glob("*.py"))
]


def _example(name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_as_a_script_without_a_warning(path: pathlib.Path):
    output = run_fresh(
        f"import runpy, warnings; warnings.simplefilter('error')\n"
        f"runpy.run_path({str(path)!r}, run_name='__main__')",
    )
    assert output


@pytest.mark.parametrize("num_replicas", [1, 4])
def test_the_training_loop_finds_the_weights(num_replicas: int):
    example = _example("custom_training_loop")
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    weights, bias, history = example.train(strategy)
    np.testing.assert_allclose(weights, example.TRUE_WEIGHTS, atol=1e-3)
    np.testing.assert_allclose(bias, 1.0, atol=1e-3)
    assert history[-1] < 1e-5 < history[0]


@pytest.mark.parametrize("num_replicas", [2, 3, 8])
@pytest.mark.parametrize("batch_size", [24, 30, 5])
def test_synchronised_batch_norm_is_that_of_the_whole_batch(num_replicas: int, batch_size: int):
    example = _example("sync_batch_norm")
    batch = np.random.default_rng(1).normal(3.0, 2.0, size=(batch_size, 4)).astype(np.float32)
    many = rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    outputs, gradients, mean = example.normalise(many, batch)
    expected = (batch - batch.mean(axis=0)) / np.sqrt(batch.var(axis=0) + 1e-5)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    np.testing.assert_allclose(mean, 0.1 * batch.mean(axis=0), rtol=1e-5)
    _, one_gradients, _ = example.normalise(rx.OneDeviceStrategy("CPU:0"), batch)
    np.testing.assert_allclose(gradients, one_gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_sharded_training_computes_what_whole_training_does_with_less(stage: int):
    example = _example("sharded_training")
    whole, losses, all_bytes = example.train(rx.MirroredStrategy(), steps=8)
    sharding = rx.experimental.Sharding(stage=stage)
    params, split_losses, some_bytes = example.train(
        rx.MirroredStrategy(sharding=sharding), steps=8
    )
    assert example.difference(params, whole) < 1e-4
    np.testing.assert_allclose(split_losses, losses, rtol=1e-4)
    assert some_bytes < (0.6 if stage < 3 else 0.3) * all_bytes


@pytest.mark.parametrize("sizes", [(8, 4), (2, 3), (1, 8)])
@pytest.mark.parametrize("stop_after", [9, 7])
def test_a_run_continued_in_mid_epoch_is_the_uninterrupted_one(sizes, stop_after, monkeypatch):
    example = _example("datasets")
    monkeypatch.setattr(example, "EPOCHS", 3)
    first, second = (rx.MirroredStrategy([f"CPU:{i}" for i in range(n)]) for n in sizes)
    continued, losses, saved = example.train((first, second), stop_after=stop_after)
    whole = example.Training(first)
    np.testing.assert_allclose(losses, whole.run(len(losses)), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(continued.weights, whole.weights, rtol=1e-4, atol=1e-6)
    assert len(saved) < 300
    predicted, labels = continued.predict()
    assert predicted.shape == labels.shape == (200,)
