"""After which step the workers leave, once one of them was told to.

The word goes to all workers. A thread of each then lets its checks wait, tells the others how many
there were, and the check after the largest number is the moment. JAX's preemption service agrees
in the same way, but its checks wait with the interpreter's lock held, so that the process can do
nothing else meanwhile. `Relay`, through which the workers reach each other, could not go on then.
"""

from __future__ import annotations

import itertools
import threading

from replicax.backend import workers
from replicax.core.errors import WorkerLostError

_numbers = itertools.count(1)


class Agreement:
    """The step at which the workers leave; every worker must create it, in the same order."""

    def __init__(self) -> None:
        self._word = f"leave-{next(_numbers)}"
        self._lock = threading.Lock()
        self._num_checks = 0
        self._moment: int | None = None
        self._failure: WorkerLostError | None = None
        workers.require().listen(self._word, self._agree)

    def tell(self) -> None:
        """Tells all workers to leave; returns at once, so a signal handler may call it."""
        workers.require().say(self._word)

    def is_due(self, check: int) -> bool:
        """Whether all workers leave at this `check`; waits while they agree on it.

        Raises:
            WorkerLostError: If they could not, because one of them was lost. One whose program
                is over is not: it has no more checks, and this worker goes on to its end, too.
        """
        with self._lock:
            self._num_checks = check
            if self._failure is not None:
                raise self._failure
            return check == self._moment

    def _agree(self) -> None:
        joined = workers.require()
        with self._lock:
            try:
                checks = joined.exchange(
                    "the step to leave at", self._num_checks, channel=self._word
                )
            except WorkerLostError as error:
                if not (error.workers and joined.are_over(error.workers)):
                    self._failure = error
            else:
                self._moment = max(checks) + 1
