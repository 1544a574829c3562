"""Saved models that several workers load, train on and save, with real processes."""

import shutil

import numpy as np
import pytest

import replicax as rx
from tests.multiprocess import saved_model_programs
from tests.multiprocess.checkpoint_programs import start
from tests.saved_model.conftest import saved  # noqa: F401
from tests.saved_model.models import predict

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def folder(saved, tmp_path_factory):  # noqa: F811
    """What all workers share: the model that 8 replicas of this process trained and saved."""
    folder = tmp_path_factory.mktemp("shared")
    shutil.copytree(saved.path, folder / "model")
    return folder


@pytest.fixture(scope="module")
def results(folder):
    """What two workers with two devices each have found."""
    program = saved_model_programs.__file__
    with start("load_and_train", folder, num_workers=2, num_devices=2, file=program) as cluster:
        return cluster.results()


def test_two_workers_predict_and_train_on_as_the_8_replicas_that_saved(results, saved):  # noqa: F811
    assert results[0] == results[1]
    for found in results:
        assert found["replicas"] == 4
        np.testing.assert_allclose(found["predictions"], saved.predictions, atol=1e-6)
        np.testing.assert_allclose(found["losses"], saved.later_losses, rtol=1e-5)
        np.testing.assert_allclose(found["later"], saved.later_predictions, atol=2e-6)


def test_what_two_workers_save_is_one_model_for_any_process(results, folder):
    model = rx.saved_model.load(folder / "by_workers")
    strategy = rx.get_strategy()
    np.testing.assert_allclose(predict(strategy, model), results[0]["later"], atol=1e-6)
    np.testing.assert_allclose(
        model.predict(np.ones((2, 4), np.float32)), results[0]["again"], atol=1e-6
    )


def test_a_worker_without_the_files_is_named_on_all(folder):
    program = saved_model_programs.__file__
    with start("damaged", folder, num_workers=2, file=program) as cluster:
        errors = [result["error"] for result in cluster.results()]
    assert all("there is no checkpoint" in error for error in errors)
    assert "(On worker 1" in errors[0]
