"""Metrics over uneven replicas equal scikit-learn's figures on the whole data."""

import numpy as np
import pytest

import replicax as rx
from replicax.metrics.mean import Mean
from tests.contracts.executors import EXECUTORS
from tests.contracts.strategies import STRATEGIES, central, mirrored
from tests.metrics.rows import ROWS, WEIGHTS, batches


def accumulate(strategy, prepare, row, *, weighted):
    """The metric after one epoch."""
    with strategy.scope():
        metric = row.make()

    def update(*data):
        metric.update_state(*data[:-1], sample_weight=data[-1] if weighted else None)

    step = prepare(strategy, update)
    for batch in batches(*row.data, WEIGHTS):
        step(*strategy.distribute_batch(batch))
    return metric


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(
    ("executor", "weighted"), [("eager", True), ("compiled", False), ("inside", True)]
)
def test_three_uneven_replicas_give_the_figure_of_the_whole_data(name, executor, weighted):
    row = ROWS[name]
    metric = accumulate(mirrored(3), EXECUTORS[executor].prepare, row, weighted=weighted)
    expected = row.expected(WEIGHTS if weighted else None)
    np.testing.assert_allclose(metric.result(), expected, rtol=row.tolerance, atol=1e-6)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("num_replicas", [1, 2, 8])
def test_any_number_of_replicas_gives_the_same_figure(name, num_replicas):
    row = ROWS[name]

    prepare = EXECUTORS["compiled"].prepare
    metric = accumulate(mirrored(num_replicas), prepare, row, weighted=True)
    np.testing.assert_allclose(
        metric.result(), row.expected(WEIGHTS), rtol=row.tolerance, atol=1e-6
    )


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_of_the_table_gives_the_same_mean(name):
    row = ROWS["mean"]
    metric = accumulate(STRATEGIES[name](), EXECUTORS["inside"].prepare, row, weighted=True)
    np.testing.assert_allclose(metric.result(), row.expected(WEIGHTS), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ROWS)
def test_outside_any_strategy_a_metric_is_ordinary(name):
    row = ROWS[name]
    metric = row.make()
    for *data, weight in batches(*row.data, WEIGHTS):
        metric.update_state(*data, sample_weight=weight)
    np.testing.assert_allclose(
        metric.result(), row.expected(WEIGHTS), rtol=row.tolerance, atol=1e-6
    )


def test_central_storage_keeps_the_state_with_the_replicas():
    strategy = central(2)
    with strategy.scope():
        mean = Mean()
    strategy.run(rx.function(mean.update_state), args=(strategy.distribute_batch([1.0, 2.0, 6.0]),))
    assert float(mean.result()) == 3.0
    assert len(mean.total.devices()) == 2
