"""An NNX model on two workers trains as it does by NNX alone."""

import json

import numpy as np
import pytest

from tests.integrations.flax.models import CASES, OPTIMIZERS, assert_close, numbers, reference
from tests.multiprocess.clusters import require_success, run_workers
from tests.multiprocess.nnx_training import NUM_STEPS

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    ended = run_workers(
        ["-m", "tests.multiprocess.nnx_training"],
        2,
        1,
        tmp_path_factory.mktemp("workers"),
        seconds=400,
    )
    require_success(ended)
    lines = [
        [line for line in worker.output.splitlines() if line.startswith("found ")]
        for worker in ended
    ]
    return [json.loads(line.removeprefix("found ")) for (line,) in lines]


@pytest.mark.parametrize("name", ["mlp", "convnet"])
def test_training_gives_what_nnx_gives(found, name):
    shares = 2 if name == "convnet" else 1
    model, losses = reference(CASES[name], OPTIMIZERS["adamw"], NUM_STEPS, shares)
    for worker in found:
        values = {path: np.asarray(value) for path, value in worker[name]["numbers"].items()}
        assert_close(values, numbers(model), 1e-5)
        np.testing.assert_allclose(worker[name]["losses"], losses, rtol=1e-4)


def test_workers_draw_masks_of_their_own(found):
    first, second = found[0]["mlp"]["masks"]
    assert first != second
    assert found[1]["mlp"]["masks"] == [first, second]
