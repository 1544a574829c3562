"""The simulate command: a script with a step, and scripts, machines and numbers that are wrong."""

import json
import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import replicax as rx
from replicax.cli.simulate import simulate, simulation_of

DEVICES = ["CPU:0", "CPU:1"]

SCRIPT = """
import jax.numpy as jnp
import numpy as np

import replicax as rx


def step_to_simulate(strategy):
    with strategy.scope():
        w = rx.Variable(np.ones((32, 8), np.float32), aggregation=rx.VariableAggregation.SUM)

    @rx.function
    def step(x):
        w.assign_sub(rx.grad(lambda: jnp.sum((x @ w) ** 2), w))

    rows = 4 * strategy.num_replicas_in_sync
    return step, (strategy.distribute_batch(np.ones((rows, 32), np.float32)),)


if __name__ == "__main__":
    raise SystemExit("the script ran as a program")
"""


def invoke(*arguments):
    return CliRunner().invoke(simulate, list(map(str, arguments)), env={"COLUMNS": "200"})


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "training.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


@pytest.mark.slow  # a process that starts JAX
def test_a_script_is_simulated_for_each_number_of_hosts(script, tmp_path):
    plot, machine = tmp_path / "plot.svg", tmp_path / "mine.json"
    text = rx.costs.MACHINES["tpu-v5e"].to_json().replace('"tpu-v5e"', '"mine"')
    rx.costs.Machine.from_json(text).save(machine)
    code = "from replicax.cli.main import main; main()"
    command = [sys.executable, "-c", code, "simulate", str(script), "--hosts", "1,8,1024"]
    command += ["--machine", str(machine), "--plot", str(plot)]
    result = subprocess.run(
        command, env=os.environ | {"COLUMNS": "200"}, capture_output=True, text=True, timeout=200
    )
    assert result.returncode == 0, result.stderr
    rows = [line.split("│")[1:-1] for line in result.stdout.splitlines() if "│" in line]
    assert [row[0].strip() for row in rows] == ["1", "8", "1,024"]
    assert [row[1].strip() for row in rows] == ["8", "64", "8,192"]
    assert "on hosts of type mine" in result.stdout
    assert plot.read_text("utf-8").startswith("<svg")


def test_the_step_is_made_under_the_layout_that_was_asked_for(script):
    topology = rx.costs.ClusterTopology(hosts=2, machine="dgx-h100", stage=3)
    found = simulation_of(script, topology, hosts=(2,), batch="global", devices=DEVICES)
    (row,) = json.loads(found.to_json())["predictions"]
    assert (row["stage"], row["replicas"], row["batch_per_replica"]) == (3, 16, 1)
    assert not row["is_estimated"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--machine", "dgx-h10"], "there is no machine 'dgx-h10'. Did you mean 'dgx-h100'?"),
        (["--machine", "missing.json"], "cannot read missing.json"),
        (["--hosts", "1,x"], "'1,x' is no list of numbers. Write them as 1,8,64,1024."),
        (["--hosts", "0"], "'0' is no list of numbers"),
        (["--logical-devices", "3"], "8 devices do not divide into replicas of 3 logical devices"),
        (["--stage", "4"], "4 is not in the range 0<=x<=3"),
    ],
)
def test_wrong_options_are_answered_with_what_would_be_right(script, options, expected):
    result = invoke(script, *options)
    assert result.exit_code == 2
    assert expected in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1", r"has no function step_to_simulate\(strategy\)"),
        ("def step_to_simulate(strategy): return 3", "returned 3; expected a step and a tuple"),
    ],
)
def test_a_script_without_a_step_is_shown_how_to_give_one(tmp_path, text, expected):
    path = tmp_path / "other.py"
    path.write_text(text, encoding="utf-8")
    topology = rx.costs.ClusterTopology(hosts=1, machine="dgx-h100")
    with pytest.raises(click.ClickException, match=expected) as caught:
        simulation_of(path, topology, hosts=(1,), batch="global", devices=DEVICES)
    assert "return train_step, (strategy.distribute_batch(first_batch),)" in caught.value.message


def test_help_says_what_a_script_must_have():
    result = CliRunner().invoke(simulate, ["--help"])
    assert "a function step_to_simulate(strategy)" in result.output
    assert "dgx-h100" in result.output and "replicax.calibrate()" in " ".join(result.output.split())
