"""A Keras model on two workers is fitted as on one device; one of them writes its file."""

import json

import numpy as np
import pytest

import replicax as rx
from tests.integrations.keras import models
from tests.multiprocess import keras_programs
from tests.multiprocess.clusters import require_success, run_workers

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def found_by_two_workers(folder, *arguments):
    """What each worker has found, and all that it has printed."""
    shared = folder / "shared"
    shared.mkdir()
    command = ["-m", "tests.multiprocess.keras_programs", str(shared), *arguments]
    ended = run_workers(command, 2, 1, folder, seconds=500)
    require_success(ended)
    found = []
    for worker in ended:
        (line,) = [line for line in worker.output.splitlines() if line.startswith("found ")]
        found.append(json.loads(line.removeprefix("found ")))
    return found, [worker.output for worker in ended]


@pytest.mark.slow
def test_two_workers_train_every_model_to_the_weights_of_one_device(tmp_path):
    found, _ = found_by_two_workers(tmp_path, "models")
    for task in models.TASKS:
        for optimizer in models.OPTIMIZERS:
            expected = models.trained(task, optimizer)
            for worker in found:
                models.require_near(worker[f"{task} {optimizer}"], expected)


def test_two_workers_fit_a_keras_model_as_one_device_does(tmp_path):
    found, printed = found_by_two_workers(tmp_path)
    alone = rx.OneDeviceStrategy("CPU:0")
    for shuffle in (False, True):
        expected = keras_programs.train(alone, tmp_path, shuffle=shuffle)
        for worker in found:
            own = worker[str(shuffle)]
            for name, values in expected["history"].items():
                np.testing.assert_allclose(own["history"][name], values, rtol=1e-5, err_msg=name)
            for weight, other in zip(own["weights"], expected["weights"], strict=True):
                np.testing.assert_allclose(weight, other, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(own["predicted"], expected["predicted"], atol=1e-5)
    assert sorted(map(len, (worker["files"] for worker in found))) == [0, 2]
    assert sum("1/3" in output or "3/3" in output for output in printed) == 1
    for worker in found:
        first, rest = worker["backup"]
        assert (first["kept"], rest["kept"]) == (True, False)
        assert (len(first["loss"]), len(rest["loss"])) == (1, 2)  # it went on where it had stopped
        for own, weight in zip(rest["loaded"], rest["weights"], strict=True):
            np.testing.assert_allclose(own, weight, rtol=1e-6)
