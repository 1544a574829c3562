"""The table of metrics: how each is made, fed, and what scikit-learn says on the whole data."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import sklearn.metrics as sk

from replicax.metrics.accuracy import (
    BinaryAccuracy,
    CategoricalAccuracy,
    SparseCategoricalAccuracy,
    SparseTopKCategoricalAccuracy,
    TopKCategoricalAccuracy,
)
from replicax.metrics.auc import AUC
from replicax.metrics.mean import Mean
from replicax.metrics.mean_squared_error import MeanSquaredError
from replicax.metrics.precision import Precision
from replicax.metrics.recall import Recall
from replicax.metrics.sum import Sum

NUM_EXAMPLES = 30
NUM_CLASSES = 4
BATCH_SIZES = (16, 13, 1)  # uneven on 2, 3 and 8 replicas; the last leaves some empty

_random = np.random.RandomState(0)
LABELS = _random.randint(0, NUM_CLASSES, NUM_EXAMPLES).astype(np.int32)
ONE_HOT = np.eye(NUM_CLASSES, dtype=np.float32)[LABELS]
CLASS_SCORES = _random.rand(NUM_EXAMPLES, NUM_CLASSES).astype(np.float32)
CLASS_SCORES /= CLASS_SCORES.sum(axis=1, keepdims=True)
YES = _random.randint(0, 2, NUM_EXAMPLES).astype(np.int32)
# Rounded so that the 200 thresholds separate any two different scores: the area is then exact.
SCORES = np.round(np.clip(0.3 * YES + _random.rand(NUM_EXAMPLES) * 0.7, 0, 1), 2).astype(np.float32)
TARGETS = _random.randn(NUM_EXAMPLES, 2).astype(np.float32)
OUTPUTS = (TARGETS + _random.randn(NUM_EXAMPLES, 2)).astype(np.float32)
WEIGHTS = _random.rand(NUM_EXAMPLES).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Row:
    """One metric.

    Attributes:
        make: Creates it.
        data: What is passed to `update_state`, for all examples.
        expected: The figure of all examples, given their weights or None.
        tolerance: How exact the metric is.
    """

    make: Callable[[], Any]
    data: tuple[np.ndarray, ...]
    expected: Callable[[Any], Any]
    tolerance: float = 1e-6


ROWS = {
    "mean": Row(Mean, (TARGETS,), lambda w: np.average(TARGETS.mean(axis=1), weights=w)),
    "sum": Row(Sum, (SCORES,), lambda w: (SCORES * (1 if w is None else w)).sum(), 1e-5),
    "mean_squared_error": Row(
        MeanSquaredError,
        (TARGETS, OUTPUTS),
        lambda w: sk.mean_squared_error(TARGETS, OUTPUTS, sample_weight=w),
    ),
    "binary_accuracy": Row(
        BinaryAccuracy,
        (YES, SCORES),
        lambda w: sk.accuracy_score(YES, SCORES > 0.5, sample_weight=w),
    ),
    "categorical_accuracy": Row(
        CategoricalAccuracy,
        (ONE_HOT, CLASS_SCORES),
        lambda w: sk.accuracy_score(LABELS, CLASS_SCORES.argmax(axis=1), sample_weight=w),
    ),
    "sparse_categorical_accuracy": Row(
        SparseCategoricalAccuracy,
        (LABELS, CLASS_SCORES),
        lambda w: sk.accuracy_score(LABELS, CLASS_SCORES.argmax(axis=1), sample_weight=w),
    ),
    "top_k": Row(
        lambda: TopKCategoricalAccuracy(k=2),
        (ONE_HOT, CLASS_SCORES),
        lambda w: sk.top_k_accuracy_score(LABELS, CLASS_SCORES, k=2, sample_weight=w),
    ),
    "sparse_top_k": Row(
        lambda: SparseTopKCategoricalAccuracy(k=2),
        (LABELS, CLASS_SCORES),
        lambda w: sk.top_k_accuracy_score(LABELS, CLASS_SCORES, k=2, sample_weight=w),
    ),
    "auc": Row(AUC, (YES, SCORES), lambda w: sk.roc_auc_score(YES, SCORES, sample_weight=w), 1e-5),
    "precision": Row(
        Precision,
        (YES, SCORES),
        lambda w: sk.precision_score(YES, SCORES > 0.5, sample_weight=w),
    ),
    "recall": Row(
        lambda: Recall([0.3, 0.6]),
        (YES, SCORES),
        lambda w: [
            sk.recall_score(YES, np.greater(SCORES, t), sample_weight=w) for t in (0.3, 0.6)
        ],
    ),
}


def batches(*arrays):
    """The arrays cut into the batches of one epoch."""
    ends = np.cumsum(BATCH_SIZES)
    assert ends[-1] == NUM_EXAMPLES
    return [
        tuple(array[end - size : end] for array in arrays)
        for size, end in zip(BATCH_SIZES, ends, strict=True)
    ]
