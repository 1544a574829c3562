"""What a coordinator has counted: closures, throughput and staleness."""

from __future__ import annotations

import collections
import dataclasses
import threading
import time


@dataclasses.dataclass(frozen=True, slots=True)
class CoordinatorStats:
    """Figures of one coordinator since it was made.

    Attributes:
        scheduled: How many closures were scheduled.
        applied: How many have been run, with their updates applied.
        queued: How many wait for a worker.
        running: How many are being run.
        retried: How often a closure had to be run again because its worker was lost.
        replayed: How often one had to because servers were rolled back after it was applied.
        by_worker: How many each worker has run; one that was replayed counts twice.
        per_second: How many each worker ran in a second, from its first one to its last.
        staleness: How many closures changed the variables of one between its reading and its own
            updates, and how many closures that was so for.

    Example:
        >>> import replicax as rx
        >>> cluster = rx.cluster_resolver.SimpleClusterResolver({"ps": ["a:1"], "worker": ["b:1"]})
        >>> coordinator = rx.coordinator.ClusterCoordinator(rx.ParameterServerStrategy(cluster))
        >>> for _ in range(3):
        ...     value = coordinator.schedule(lambda: None)
        >>> coordinator.join()
        >>> stats = coordinator.stats()
        >>> stats.applied, stats.queued, stats.by_worker
        (3, 0, (3,))
    """

    scheduled: int
    applied: int
    queued: int
    running: int
    retried: int
    replayed: int
    by_worker: tuple[int, ...]
    per_second: tuple[float, ...]
    staleness: dict[int, int]

    def __str__(self) -> str:
        lines = [
            f"{self.applied} of {self.scheduled} closures applied, {self.queued} queued, "
            f"{self.running} running, {self.retried} retried, {self.replayed} replayed",
            "worker  closures  per second",
        ]
        for index, (count, rate) in enumerate(zip(self.by_worker, self.per_second, strict=True)):
            lines.append(f"{index:<6}  {count:<8}  {rate:.1f}")
        shown = ", ".join(f"{late}: {count}" for late, count in sorted(self.staleness.items()))
        return "\n".join([*lines, f"staleness  {shown or 'nothing was updated'}"])


class Counting:
    """Counts; may be told by several threads."""

    def __init__(self, num_workers: int) -> None:
        """Nothing counted."""
        self._lock = threading.Lock()
        self._counts = [0] * num_workers
        self._first = [0.0] * num_workers
        self._last = [0.0] * num_workers
        self._staleness: collections.Counter[int] = collections.Counter()
        self.retried = 0
        self.replayed = 0
        self.applied = 0

    def note_start(self, worker: int) -> None:
        """A worker begins with a closure."""
        if not self._first[worker]:
            self._first[worker] = time.perf_counter()

    def note_applied(self, worker: int, staleness: int | None) -> None:
        """A worker has run a closure, and its updates are applied."""
        with self._lock:
            self._counts[worker] += 1
            self._last[worker] = time.perf_counter()
            self.applied += 1
            if staleness is not None:
                self._staleness[staleness] += 1

    def note_retry(self) -> None:
        """A closure has to be run again."""
        with self._lock:
            self.retried += 1

    def note_rolled_back(self, count: int) -> None:
        """So many closures were applied, and are not any more."""
        with self._lock:
            self.applied -= count
            self.replayed += count

    def stats(self, *, scheduled: int, queued: int, running: int) -> CoordinatorStats:
        """The figures so far."""
        with self._lock:
            rates = [
                count / max(last - first, 1e-9) if count else 0.0
                for count, first, last in zip(self._counts, self._first, self._last, strict=True)
            ]
            return CoordinatorStats(
                scheduled,
                self.applied,
                queued,
                running,
                self.retried,
                self.replayed,
                tuple(self._counts),
                tuple(rates),
                dict(sorted(self._staleness.items())),
            )
