"""Metrics: figures accumulated by all replicas without communication, combined when read.

Its own facade: ``rx.metrics.Mean()``. The package itself imports the modules.
"""

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
from replicax.metrics.sum import Sum

__all__ = [
    "AUC",
    "BinaryAccuracy",
    "CategoricalAccuracy",
    "Mean",
    "MeanSquaredError",
    "Metric",
    "Precision",
    "Recall",
    "SparseCategoricalAccuracy",
    "SparseTopKCategoricalAccuracy",
    "Sum",
    "TopKCategoricalAccuracy",
]
