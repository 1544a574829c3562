"""One model that was trained on 8 replicas and saved, for the tests that load it."""

import dataclasses

import pytest

import replicax as rx
from tests.saved_model.models import Model, predict, train

NUM_STEPS = 3


@dataclasses.dataclass(frozen=True)
class Saved:
    path: str
    predictions: object
    later_losses: list
    later_predictions: object


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Where it is, what it predicted, and what it did when it was trained on."""
    strategy = rx.MirroredStrategy()
    assert strategy.num_replicas_in_sync == 8
    with strategy.scope():
        model = Model()
    train(strategy, model, NUM_STEPS)
    path = rx.saved_model.save(model, tmp_path_factory.mktemp("saved") / "model")
    predictions = predict(strategy, model)
    return Saved(path, predictions, train(strategy, model, 3), predict(strategy, model))
