"""Which shape the weight of an example must take to meet the values of that example.

Pure arithmetic on shapes; losses and metrics are the callers.
"""

from __future__ import annotations

Shape = tuple[int, ...]


def weight_shape(values: Shape, weight: Shape) -> Shape | None:
    """The shape to give `weight` so that it broadcasts to `values`; None if it does not fit.

    A weight has one number for all values, or one for each example, or one for
    each value: its dims are the leading dims of the values. A last dim of 1 too
    many is dropped.

    Example:
        >>> weight_shape((8, 3), (8,))
        (8, 1)
        >>> weight_shape((8,), (8, 1))
        (8,)
        >>> weight_shape((8,), (3,)) is None
        True
    """
    if len(weight) == len(values) + 1 and weight[-1] == 1:
        weight = weight[:-1]
    if len(weight) > len(values):
        return None
    fits = all(
        mine in (1, other) for mine, other in zip(weight, values[: len(weight)], strict=True)
    )
    return (*weight, *(1 for _ in values[len(weight) :])) if fits else None
