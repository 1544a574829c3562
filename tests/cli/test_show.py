"""The show command: what is in a saved model or a checkpoint, and what it says of other paths."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

import replicax as rx
from replicax.checkpoint import files
from replicax.cli.show import show


def invoke(*arguments):
    return CliRunner().invoke(show, [str(each) for each in arguments], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    w = rx.Variable(np.ones((3, 2), np.float32))
    count = rx.Variable(0)

    @rx.function(input_signature=[{"x": rx.TensorSpec([None, 3])}, rx.TensorSpec([], "int32")])
    def predict(features, offset):
        count.assign_add(1)
        return [features["x"] @ w, (jnp.sum(features["x"]), offset)]

    folder = tmp_path_factory.mktemp("show")
    return rx.saved_model.save(
        {"predict": predict, "w": w, "count": count, "epoch": 3},
        folder / "model",
        platforms=["cpu", "tpu"],
    )


def test_a_saved_model_is_shown_with_signatures_shapes_and_sizes(model):
    result = invoke(model)
    assert result.exit_code == 0
    shown = result.output
    assert shown.startswith(f"saved model {model}, ")
    assert (
        "predict({x: float32[None, 3]}, int32[]) -> [float32[batch, 2], (float32[], int32[])]"
        in shown
    )
    assert "for cpu, tpu\n" in shown
    assert "uses count, w\n" in shown
    assert "assigns count\n" in shown
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines()]
    assert ["w", "(3, 2)", "float32", "24 B", ""] in rows
    assert ["count", "()", "int32", "4 B", ""] in rows
    assert "epoch: Python value" in shown


def test_json_has_the_same(model):
    found = json.loads(invoke(model, "--json").output)
    assert found["kind"] == "saved model"
    assert found["functions"]["predict"]["differentiable"] is True
    assert found["num_bytes"] > 1000
    assert {"key": "w", "shape": [3, 2], "dtype": "float32", "bytes": 24, "copies": 0} in found[
        "variables"
    ]


def test_of_a_folder_of_checkpoints_the_latest_is_shown(tmp_path):
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        total = rx.Variable(
            np.zeros(500, np.float32), synchronization=rx.VariableSynchronization.ON_READ,
            aggregation=rx.VariableAggregation.SUM,
        )  # fmt: skip
    checkpoint = rx.Checkpoint(total=total)
    checkpoint.save(tmp_path / "ckpt")
    path = checkpoint.save(tmp_path / "ckpt")
    shown = invoke(tmp_path).output
    assert shown.startswith(f"checkpoint {path}, ")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines()]
    assert ["total", "(500,)", "float32", "6.0 kB", "2"] in rows


def test_what_is_damaged_or_not_there_is_an_error_that_names_it(model, tmp_path):
    import pathlib
    import shutil

    result = invoke(tmp_path / "none")
    assert (result.exit_code, "there is no checkpoint" in result.output) == (1, True)
    result = invoke(tmp_path)
    assert (result.exit_code, f"{tmp_path} holds no checkpoint" in result.output) == (1, True)
    copy = pathlib.Path(shutil.copytree(model, tmp_path / "copy"))
    (copy / files.MANIFEST).unlink()
    assert "replicax.json is missing" in invoke(copy).output
