"""Which workers are there, and what each has been told: programs, datasets, iterators.

A worker that is lost and comes back is another process, which knows nothing. So what one knows
belongs to one *life* of it, and news about an earlier life changes nothing.
"""

from __future__ import annotations

import dataclasses
import threading

from replicax.parameter_server.queue import ClosureQueue


@dataclasses.dataclass(slots=True)
class WorkerLife:
    """A worker from its start until it is lost.

    Attributes:
        is_there: Whether it can be called, as far as anybody knows.
        known: The numbers of the programs, datasets and iterators that it has been given.
    """

    is_there: bool = True
    known: set[int] = dataclasses.field(default_factory=set)


class WorkerRoster:
    """The workers of one coordinator, each in its present life.

    Args:
        num_workers: How many there are; all are there.
        queue: Gives closures only to those that are there.

    Example:
        >>> roster = WorkerRoster(2, ClosureQueue(1, None, num_workers=2))
        >>> roster.left(0, "it was killed")
        >>> roster.there()
        [1]
    """

    def __init__(self, num_workers: int, queue: ClosureQueue) -> None:
        self._lives = [WorkerLife() for _ in range(num_workers)]
        self._queue = queue
        self._lock = threading.Lock()

    def life(self, worker: int) -> WorkerLife:
        """The present life of a worker."""
        return self._lives[worker]

    def there(self) -> list[int]:
        """The workers that are there."""
        return [index for index, life in enumerate(self._lives) if life.is_there]

    def left(self, worker: int, reason: str, life: WorkerLife | None = None) -> None:
        """A worker is lost; `life`, if given, is the one in which that was found."""
        with self._lock:
            present = self._lives[worker]
            if (life is None or life is present) and present.is_there:
                self._lives[worker] = WorkerLife(is_there=False)
                self._queue.worker_left(worker, reason)

    def came(self, worker: int) -> None:
        """A worker is there, and knows nothing."""
        with self._lock:
            self._lives[worker] = WorkerLife()
            self._queue.worker_came(worker)
