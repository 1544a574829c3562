"""`AUC`: curves, summation methods, and how exact it is."""

import numpy as np
import pytest
import sklearn.metrics as sk

import replicax as rx
from replicax.metrics.auc import AUC
from tests.contracts.strategies import mirrored

RANDOM = np.random.RandomState(1)
YES = RANDOM.randint(0, 2, 2000).astype(np.int32)
SCORES = np.clip(0.35 * YES + 0.65 * RANDOM.rand(2000), 0, 1).astype(np.float32)


def area(truth, scores, weight=None, **options):
    auc = AUC(**options)
    auc.update_state(truth, scores, sample_weight=weight)
    return float(auc.result())


@pytest.mark.parametrize("num_thresholds", [20, 200, 2000])
def test_the_area_is_as_exact_as_documented(num_thresholds):
    exact = sk.roc_auc_score(YES, SCORES)
    found = area(YES, SCORES, num_thresholds=num_thresholds)
    assert abs(found - exact) < 0.5 / (num_thresholds - 1)


def test_thresholds_between_all_scores_give_the_exact_area():
    scores = np.round(RANDOM.rand(300), 2).astype(np.float32)
    truth = RANDOM.randint(0, 2, 300)
    thresholds = (np.arange(100) + 0.5) / 100
    exact = sk.roc_auc_score(truth, scores)
    np.testing.assert_allclose(area(truth, scores, thresholds=thresholds), exact, rtol=1e-5)


def test_the_precision_recall_area_is_near_the_average_precision():
    exact = sk.average_precision_score(YES, SCORES)
    for method in ("interpolation", "minoring", "majoring"):
        assert abs(area(YES, SCORES, curve="PR", summation_method=method) - exact) < 0.01


@pytest.mark.parametrize("curve", ["ROC", "PR"])
def test_minoring_and_majoring_are_bounds(curve):
    low, middle, high = (
        area(YES, SCORES, curve=curve, summation_method=method, num_thresholds=20)
        for method in ("minoring", "interpolation", "majoring")
    )
    assert low < middle < high


def test_the_documented_values_of_keras():
    """The figures of the Keras documentation, for the same four examples."""
    truth, scores = [0, 0, 1, 1], [0, 0.5, 0.3, 0.9]
    assert area(truth, scores, num_thresholds=3) == 0.75
    np.testing.assert_allclose(
        area(truth, scores, weight=[1, 0, 0, 1], num_thresholds=3), 1.0, rtol=1e-6
    )


def test_logits_are_taken_through_a_sigmoid():
    logits = np.log(SCORES.clip(1e-6, 1 - 1e-6) / (1 - SCORES.clip(1e-6, 1 - 1e-6)))
    expected = area(YES, SCORES)
    np.testing.assert_allclose(area(YES, logits, from_logits=True), expected, atol=1e-3)


@pytest.mark.parametrize("score", [1.5, -0.1, np.nan])
def test_a_score_outside_the_range_makes_the_result_nan(score, execute):
    strategy = mirrored(2)
    with strategy.scope():
        auc = AUC()
    batch = strategy.distribute_batch(
        (np.array([0, 1, 1]), np.array([0.1, 0.9, score], np.float32))
    )
    execute(strategy, auc.update_state, batch)
    assert np.isnan(float(auc.result()))


def test_labels_of_minus_one_are_negative():
    np.testing.assert_allclose(area(2 * YES - 1, SCORES), area(YES, SCORES))


def test_a_result_inside_a_function():
    strategy = mirrored(2)
    with strategy.scope():
        auc = AUC()
    strategy.run(rx.function(auc.update_state), args=strategy.distribute_batch((YES, SCORES)))
    np.testing.assert_allclose(rx.function(auc.result)(), auc.result(), rtol=1e-6)
