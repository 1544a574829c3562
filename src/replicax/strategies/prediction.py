"""Puts what the replicas return for each batch back into the order of the input."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np

from replicax.core import nest
from replicax.core.errors import BatchError
from replicax.engine.protocols import StrategyLike
from replicax.values.distributed import PerReplica

_IN_FLIGHT = 2


class Prediction:
    """The rows of one pass, batch by batch.

    Args:
        strategy: Whose replicas make them.
    """

    def __init__(self, strategy: StrategyLike) -> None:
        self._strategy = strategy
        self._waiting: collections.deque[list[Any]] = collections.deque()
        self._columns: list[list[np.ndarray]] = []
        self._structure: Any = None

    def add(self, batch: Any, result: Any) -> None:
        """Takes what `run` returned for `batch`.

        Raises:
            BatchError: If it is not one row for every example.
        """
        examples = [_sizes(leaf) for leaf in nest.flatten(batch)[0]]
        for path, leaf in nest.leaves_with_path(result):
            if _sizes(leaf) not in examples:
                raise BatchError(
                    f"leaf {path or '(the result itself)'} of what fn returned has "
                    f"{_sizes(leaf)} rows per replica, for {examples[0]} examples. Return an array "
                    "with one row for every example of the batch."
                )
        leaves, structure = nest.flatten(result)
        if self._structure is None:
            self._structure = structure
            self._columns = [[] for _ in leaves]
        nest.require_same_structure([self._structure, structure])
        self._waiting.append(leaves)
        if len(self._waiting) > _IN_FLIGHT:  # fetching at once would wait for every step
            self._fetch()

    def _fetch(self) -> None:
        for column, leaf in zip(self._columns, self._waiting.popleft(), strict=True):
            column += self._rows(leaf)

    def _rows(self, leaf: Any) -> list[np.ndarray]:
        if not isinstance(leaf, PerReplica):
            return [np.asarray(leaf)]
        if self._strategy.extended.mesh.spans_workers:
            return [np.asarray(self._strategy.gather(leaf, axis=0))]
        return [np.asarray(part) for part in leaf.values]

    def result(self) -> Any:
        """All rows, in the order of the input.

        Raises:
            BatchError: If there was no batch.
        """
        if self._structure is None:
            raise BatchError("predict got a dataset without batches, so there is no result.")
        while self._waiting:
            self._fetch()
        return nest.unflatten(self._structure, [np.concatenate(rows) for rows in self._columns])


def _sizes(leaf: Any) -> tuple[int | None, ...]:
    """Rows per replica; None for what has no rows."""
    shapes = leaf.shapes if isinstance(leaf, PerReplica) else (np.shape(leaf),)
    return tuple(shape[0] if shape else None for shape in shapes)
