"""`Metric`: names, dtypes, states, and a class of one's own."""

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.core.errors import MetricError
from replicax.metrics.accuracy import (
    BinaryAccuracy,
    CategoricalAccuracy,
    SparseCategoricalAccuracy,
    SparseTopKCategoricalAccuracy,
    TopKCategoricalAccuracy,
)
from replicax.metrics.auc import AUC
from replicax.metrics.base import Metric
from replicax.metrics.mean import Mean
from replicax.metrics.mean_squared_error import MeanSquaredError
from replicax.metrics.precision import Precision
from replicax.metrics.recall import Recall
from tests.contracts.strategies import mirrored


class Variance(Metric):
    """A metric as a user would write it."""

    def __init__(self, name=None, dtype=None):
        super().__init__(name, dtype)
        self.moments = self.add_state("moments", (2,))
        self.count = self.add_state("count", dtype=jnp.int32)

    def update_state(self, values):
        self.moments.assign_add(jnp.stack([values.sum(), jnp.square(values).sum()]))
        self.count.assign_add(values.size)

    def result(self):
        mean, square = self.moments.value / self.count.value
        return square - mean**2


def test_a_metric_of_ones_own_is_exact_on_uneven_replicas(execute):
    values = np.random.RandomState(0).randn(11).astype(np.float32)
    strategy = mirrored(3)
    with strategy.scope():
        variance = Variance()
    execute(strategy, variance.update_state, (strategy.distribute_batch(values),))
    np.testing.assert_allclose(variance.result(), values.var(), rtol=1e-5)
    variance.reset_state()
    assert int(variance.count) == 0


def test_a_reset_has_the_older_name_too(execute):
    strategy = mirrored(2)
    with strategy.scope():
        mean = Mean()
    execute(strategy, mean.update_state, (strategy.distribute_batch([1.0, 2.0, 3.0]),))
    mean.reset_states()
    assert float(mean.result()) == 0.0


def test_names_come_from_the_class_or_the_user():
    assert Mean().name == "mean"
    assert MeanSquaredError().name == "mean_squared_error"
    assert AUC().name == "auc"
    assert repr(Variance("spread")) == "<Variance 'spread'>"
    names = [v.name for v in Variance("spread").variables]
    assert names == ["spread/moments", "spread/count"]


def test_states_are_summed_on_read_and_not_trained():
    with mirrored(2).scope():
        mean = Mean()
    for state in mean.variables:
        assert state.synchronization is rx.VariableSynchronization.ON_READ
        assert state.aggregation is rx.VariableAggregation.SUM
        assert not state.trainable


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_dtype_is_that_of_the_result_and_states_have_32_bits_at_least(dtype):
    mean = Mean(dtype=dtype)
    mean.update_state(np.array([1, 2, 3], np.int32), sample_weight=[1, 0, 1])
    assert mean.dtype == jnp.dtype(dtype)
    assert mean.total.dtype == mean.state_dtype == jnp.float32
    assert mean.result().dtype == jnp.dtype(dtype)
    assert float(mean.result()) == 2.0


def test_a_metric_without_data_is_zero():
    for metric in (Mean(), AUC(), AUC(curve="PR"), Precision(), Recall()):
        assert float(metric.result()) == 0.0


def test_the_base_class_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Metric()  # pyright: ignore[reportAbstractUsage]


def test_weights_are_for_all_for_examples_or_for_values():
    values = np.array([[1.0, 3.0], [5.0, 7.0]], np.float32)
    for weight, expected in [
        (2.0, 4.0),
        ([1.0, 0.0], 2.0),
        ([[1.0], [0.0]], 2.0),
        ([[1.0, 0.0], [1.0, 0.0]], 3.0),
    ]:
        mean = Mean()
        mean.update_state(values, sample_weight=weight)
        assert float(mean.result()) == expected
    mean = Mean()
    mean.update_state([1.0, 2.0], sample_weight=[[1.0], [0.0]])  # a last dim of 1 too many
    assert float(mean.result()) == 1.0


def test_labels_with_a_last_dim_of_one_meet_their_predictions():
    error = MeanSquaredError()
    error.update_state([[1.0], [2.0]], [1.0, 4.0])
    assert float(error.result()) == 2.0
    accuracy = SparseCategoricalAccuracy()
    accuracy.update_state([[1], [0]], [[0.1, 0.9], [0.2, 0.8]])
    assert float(accuracy.result()) == 0.5


def test_classes_with_the_same_score_share_a_place():
    accuracy = SparseTopKCategoricalAccuracy(k=1)
    accuracy.update_state([1, 0, 2], [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.5, 0.5, 0.0]])
    np.testing.assert_allclose(accuracy.result(), 2 / 3)


def test_a_score_that_is_no_number_is_never_among_the_top():
    accuracy = SparseTopKCategoricalAccuracy(k=2)
    accuracy.update_state([0, 5], [[np.nan, 0.5], [0.5, 0.5]])  # 5 is no class at all
    assert float(accuracy.result()) == 0.0


MISTAKES = {
    "dtype": (lambda: Mean(dtype=jnp.int32), "got dtype int32"),
    "weights": (
        lambda: Mean().update_state([1.0, 2.0], sample_weight=[1.0, 2.0, 3.0]),
        r"sample_weight of shape \(3,\) for values of shape \(2,\)",
    ),
    "too many dims of weights": (
        lambda: Mean().update_state([1.0, 2.0], sample_weight=np.ones((2, 2))),
        r"sample_weight of shape \(2, 2\)",
    ),
    "never broadcast": (
        lambda: MeanSquaredError().update_state(np.ones((2, 1)), np.ones((2, 3))),
        r"y_true of shape \(2, 1\) and y_pred of shape \(2, 3\)",
    ),
    "sparse labels": (
        lambda: CategoricalAccuracy().update_state([1, 0], np.ones((2, 3))),
        r"use the sparse metric",
    ),
    "one-hot labels": (
        lambda: SparseCategoricalAccuracy().update_state(np.ones((2, 3)), np.ones((2, 3))),
        r"metric that is not sparse",
    ),
    "k": (lambda: TopKCategoricalAccuracy(k=0), "got k=0"),
    "curve": (lambda: AUC(curve="PQ"), r"curve='PQ'; expected one of \('ROC', 'PR'\)"),
    "summation": (lambda: AUC(summation_method="x"), "summation_method='X'|summation_method='x'"),
    "num_thresholds": (lambda: AUC(num_thresholds=2), "num_thresholds=2"),
    "thresholds": (lambda: AUC(thresholds=[0.5, 2.0]), r"thresholds from 0.5 to 2.0"),
    "no thresholds": (lambda: Precision(thresholds=[]), r"thresholds=\[\]"),
    "scalar": (
        lambda: BinaryAccuracy().update_state([1, 0], 0.5),
        r"y_true of shape \(2,\) and y_pred of shape \(\)",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_explained(name):
    act, text = MISTAKES[name]
    with pytest.raises(MetricError, match=text):
        act()
