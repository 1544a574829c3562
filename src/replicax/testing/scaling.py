"""Recognises a wrong scaling by the ratio of two results.

Pure arithmetic on NumPy arrays; `testing.equivalence` is the only caller.
"""

from __future__ import annotations

import numpy as np

_CLOSE = 0.02  # a change is a difference of float32 numbers, so its ratio is not exact


def uniform_ratio(reference: np.ndarray, other: np.ndarray) -> float | None:
    """The number that `reference` must be multiplied with to give `other`; None if there is none.

    Example:
        >>> round(uniform_ratio(np.array([1.0, -2.0]), np.array([3.0, -6.0])), 6)
        3.0
        >>> uniform_ratio(np.array([1.0, -2.0]), np.array([3.0, 6.0])) is None
        True
    """
    if np.iscomplexobj(reference) or reference.shape != other.shape:
        return None
    square = float(np.sum(np.square(reference)))
    if not np.isfinite(square) or square == 0 or not np.isfinite(other).all():
        return None
    ratio = float(np.sum(reference * other)) / square
    largest = float(np.max(np.abs(other), initial=0.0))
    rest = float(np.max(np.abs(other - ratio * reference), initial=0.0))
    return ratio if largest > 0 and rest <= _CLOSE * largest else None


def is_close(ratio: float, expected: float) -> bool:
    """Whether a measured ratio is that number."""
    return abs(ratio - expected) <= _CLOSE * expected


def describe_ratio(ratio: float, num_replicas: int, num_reference: int) -> str:
    """What a ratio says, in words.

    Example:
        >>> describe_ratio(2.0, 2, 1)
        '2 times as large: the number of replicas'
    """
    if is_close(ratio, num_replicas / num_reference):
        what = "the number of replicas" if num_reference == 1 else "the ratio of the replicas"
        return f"{num_replicas / num_reference:g} times as large: {what}"
    if is_close(ratio, num_reference / num_replicas):
        what = "1 / the number of replicas" if num_reference == 1 else "the ratio of the replicas"
        return f"{ratio:.4g} times as large ({num_reference}/{num_replicas}): {what}"
    return f"{ratio:.4g} times as large"


def advice_for(ratio: float | None, num_replicas: int, num_reference: int) -> str:
    """Where to look, given the ratio."""
    if ratio is not None and is_close(ratio, num_replicas / num_reference):
        return (
            "The replicas' losses or gradients are added although each was averaged over its own "
            "examples only. Divide by the global batch size: use compute_average_loss, and "
            "scale_regularization_loss for terms that depend on variables only."
        )
    if ratio is not None and is_close(ratio, num_reference / num_replicas):
        return (
            "It is divided by the number of replicas once too often: a loss of "
            "compute_average_loss needs its gradients summed over replicas, not averaged, and not "
            "left unreduced."
        )
    return (
        "It is not a matter of scaling by the number of replicas. Look for an average of averages "
        "over an uneven batch, statistics of one replica (batch norm), random numbers, and "
        "examples that some replica count drops."
    )
