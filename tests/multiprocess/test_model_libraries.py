"""A model of each library trains on two workers as by the library itself on one device."""

import json

import numpy as np
import pytest

from tests.integrations.libraries import WITH_MODELS, models_of
from tests.integrations.problem import INPUTS, OPTIMIZERS, assert_close
from tests.multiprocess.clusters import require_success, run_workers
from tests.multiprocess.model_libraries import NUM_STEPS, OPTIMIZER

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    ended = run_workers(
        ["-m", "tests.multiprocess.model_libraries"],
        2,
        1,
        tmp_path_factory.mktemp("workers"),
        seconds=900,
    )
    require_success(ended)
    lines = [
        [line for line in worker.output.splitlines() if line.startswith("found ")]
        for worker in ended
    ]
    return [json.loads(line.removeprefix("found ")) for (line,) in lines]


@pytest.mark.parametrize("library", WITH_MODELS, ids=str)
@pytest.mark.parametrize("name", INPUTS)
def test_fifty_steps_equal_those_of_one_device(found, library, name):
    shares = 2 if name == "convnet" else 1
    train_alone = models_of(library).train_alone
    wanted, losses = train_alone(name, OPTIMIZERS[OPTIMIZER[name]], NUM_STEPS, shares)
    for worker in found:
        values, its_losses = worker[str(library)][name]
        assert_close({path: np.asarray(value) for path, value in values.items()}, wanted, 1e-5)
        np.testing.assert_allclose(its_losses, losses, rtol=1e-4)


@pytest.mark.parametrize("library", WITH_MODELS, ids=str)
def test_workers_draw_masks_of_their_own(found, library):
    first, second = found[0][str(library)]["masks"]
    assert first != second
    assert found[1][str(library)]["masks"] == [first, second]
