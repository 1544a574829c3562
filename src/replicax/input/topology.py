"""Who reads what: the workers and replicas as the input layer sees them.

Plain numbers, so that what every worker of a cluster would read can be computed
and tested on one machine. A strategy makes the topology; nothing here knows one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class InputTopology:
    """The place of this worker among all workers.

    Attributes:
        num_workers: How many processes read input.
        worker_id: Which of them this is.
        replicas_per_worker: How many replicas each of them feeds; worker w feeds the
            replicas from ``w * replicas_per_worker`` on.
        exchange: ``exchange(what, message)`` gives the messages of all workers, plain values
            for JSON, by worker. Every worker calls it at the same step. None: there is no
            other worker to ask.

    Example:
        >>> InputTopology(num_workers=2, worker_id=1, replicas_per_worker=4).local_replicas
        range(4, 8)
    """

    num_workers: int = 1
    worker_id: int = 0
    replicas_per_worker: int = 1
    exchange: Callable[[str, Any], list[Any]] | None = dataclasses.field(
        default=None, compare=False
    )

    @property
    def num_replicas(self) -> int:
        """The replicas of all workers together."""
        return self.num_workers * self.replicas_per_worker

    @property
    def local_replicas(self) -> range:
        """The replicas that this worker feeds."""
        first = self.worker_id * self.replicas_per_worker
        return range(first, first + self.replicas_per_worker)

    @property
    def is_chief(self) -> bool:
        """Whether this worker speaks for all."""
        return self.worker_id == 0
