"""A Keras model on two workers is fitted as on one device; one of them writes its file."""

import json

import numpy as np
import pytest

import replicax as rx
from tests.multiprocess import keras_programs
from tests.multiprocess.clusters import require_success, run_workers

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_two_workers_fit_a_keras_model_as_one_device_does(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    ended = run_workers(
        ["-m", "tests.multiprocess.keras_programs", str(shared)], 2, 1, tmp_path, seconds=300
    )
    require_success(ended)
    found = []
    for worker in ended:
        (line,) = [line for line in worker.output.splitlines() if line.startswith("found ")]
        found.append(json.loads(line.removeprefix("found ")))
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
    assert sum("1/3" in worker.output or "3/3" in worker.output for worker in ended) == 1
