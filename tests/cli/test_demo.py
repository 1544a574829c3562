"""The demo: the same training on any number of replicas, what it prints, draws and exits with."""

import pathlib

import numpy as np
import pytest
from click.testing import CliRunner

import replicax as rx
from replicax.cli import demo, digits
from tests.backend.fresh_process import run_fresh

COMMAND = """
from replicax.cli import demo

demo.TOLERANCE = {tolerance}
try:
    demo.demo(["--replicas", "{replicas}", "--epochs", "1", "--output", {output!r}])
except SystemExit as end:
    print("exit code", end.code)
"""


@pytest.fixture(scope="module")
def examples() -> tuple[digits.Examples, digits.Examples]:
    train_set, test_set = digits.load_examples()
    return digits.Examples(train_set.images[:70], train_set.labels[:70]), test_set


def _result(**parameters: list[float]) -> digits.TrainingResult:
    arrays = {name: np.array(values, np.float32) for name, values in parameters.items()}
    return digits.TrainingResult(np.array([2.0, 1.0]), 0.5, 100.0, arrays)


def _run_command(*, replicas: int, output: pathlib.Path, tolerance: float = 1e-4) -> str:
    source = COMMAND.format(replicas=replicas, tolerance=tolerance, output=str(output))
    return run_fresh(source, timeout=300, COLUMNS="80")


def test_the_training_and_test_sets_are_all_digits_once():
    train_set, test_set = digits.load_examples(num_test_images=97)
    assert (len(train_set), len(test_set)) == (1700, 97)
    assert train_set.images.shape == (1700, 8, 8, 1)
    assert train_set.images.min() == 0.0
    assert train_set.images.max() == 1.0
    assert set(test_set.labels.tolist()) == set(range(10))
    assert np.bincount(np.concatenate([train_set.labels, test_set.labels])).sum() == 1797


def test_an_epoch_has_every_example_once_and_a_smaller_last_batch():
    examples = digits.Examples(np.arange(10.0), np.arange(10))
    batches = list(examples.batches(4, seed=1))
    assert [len(labels) for _, labels in batches] == [4, 4, 2]
    assert sorted(np.concatenate([labels for _, labels in batches]).tolist()) == list(range(10))
    assert all(np.array_equal(images, labels) for images, labels in batches)


@pytest.mark.parametrize("num_replicas", [3, 8])
def test_training_gives_the_parameters_of_one_device(num_replicas: int, examples):
    # 70 images in batches of 32: the last one is 6, on 8 replicas 1,1,1,1,1,1,0,0.
    train_set, test_set = examples
    many = rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    one = rx.OneDeviceStrategy("CPU:0")
    results = [
        digits.train(strategy, train_set, test_set, epochs=2, batch_size=32)
        for strategy in (many, one)
    ]
    assert digits.largest_difference(*results) < 1e-6
    np.testing.assert_allclose(results[0].losses, results[1].losses, rtol=1e-5)
    assert results[0].accuracy == pytest.approx(results[1].accuracy)


def test_a_training_reports_every_step_and_the_loss_falls(examples):
    train_set, test_set = examples
    steps = []
    result = digits.train(
        rx.MirroredStrategy(["CPU:0", "CPU:1"]),
        train_set,
        test_set,
        epochs=5,
        batch_size=32,
        on_step=lambda: steps.append(None),
    )
    assert len(steps) == len(result.losses) == 5 * 3
    assert result.losses[-3:].mean() < result.losses[:3].mean()
    assert result.images_per_second > 0
    assert list(result.parameters)[:2] == ["conv1/kernel", "conv1/bias"]


def test_the_loss_of_a_step_is_the_mean_over_the_global_batch(examples):
    train_set, _ = examples
    images, labels = train_set.images[:11], train_set.labels[:11]
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2", "CPU:3"])
    trainer = digits.Trainer(strategy, seed=3)
    logits = np.asarray(trainer.model(images), np.float64)
    log_sums = np.log(np.exp(logits).sum(axis=1))
    expected = (log_sums - logits[np.arange(11), labels]).mean()
    np.testing.assert_allclose(trainer.train_on(images, labels), expected, rtol=1e-5)


def test_the_step_adds_all_small_values_in_one_operand(examples):
    train_set, _ = examples
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    trainer = digits.Trainer(strategy, seed=0)
    batch = strategy.distribute_batch((train_set.images[:8], train_set.labels[:8]))
    text = trainer._step.lower(*batch).as_text()
    # 'dense1/kernel' is too large to be packed and travels by itself.
    assert text.count("stablehlo.all_reduce") == 2


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"a": [1.0, 2.0], "b": [0.0]}, {"a": [1.0, 2.0], "b": [0.0]}, 0.0),
        ({"a": [1.0, 2.0], "b": [0.0]}, {"a": [1.5, 2.0], "b": [-2.0]}, 2.0),
        ({"a": [float("nan"), 2.0], "b": [0.0]}, {"a": [1.0, 2.0], "b": [5.0]}, float("nan")),
    ],
    ids=["equal", "the largest one counts", "a NaN is never hidden"],
)
def test_the_largest_difference_is_over_all_parameters(one, other, expected: float):
    difference = digits.largest_difference(_result(**one), _result(**other))
    assert difference == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("difference", "same"),
    [(0.0, True), (1e-4, True), (1.01e-4, False), (float("inf"), False), (float("nan"), False)],
)
def test_runs_are_the_same_up_to_the_tolerance(difference: float, same: bool):
    assert demo.is_same_training(difference) is same


def test_the_plot_is_a_png_of_both_curves(tmp_path: pathlib.Path):
    path = tmp_path / "curves.png"
    demo.save_loss_curves(path, ["2 replicas", "one device"], [_result(a=[1.0]), _result(a=[1.0])])
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.slow
def test_the_command_trains_compares_and_saves_the_plot(tmp_path: pathlib.Path):
    path = tmp_path / "demo.png"
    output = _run_command(replicas=2, output=path)
    assert "MirroredStrategy, 2 replicas" in output
    assert "test accuracy" in output
    assert "images per second" in output
    assert "the same training" in output
    assert output.splitlines()[-1] == "exit code 0"
    assert path.stat().st_size > 10_000


@pytest.mark.slow
def test_the_command_exits_1_when_the_runs_differ_too_much(tmp_path: pathlib.Path):
    output = _run_command(replicas=1, output=tmp_path / "demo.png", tolerance=-1.0)
    assert "not the same training" in output
    assert output.splitlines()[-1] == "exit code 1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replicas", "0"], "0 is not in the range x>=1"),
        (["--epochs", "none"], "'none' is not a valid integer"),
        (["--output", "no-such-folder/demo.png"], "no-such-folder does not exist"),
    ],
)
def test_a_wrong_option_is_a_usage_error_before_anything_runs(arguments, message: str):
    result = CliRunner().invoke(demo.demo, arguments)
    assert result.exit_code == 2
    assert message in result.output
