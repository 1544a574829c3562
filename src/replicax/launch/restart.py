"""Whether the workers are started again, and after which pause. Pure arithmetic."""

from __future__ import annotations

import dataclasses
import math

from replicax.launch.outcome import Ending, Outcome


@dataclasses.dataclass(frozen=True, slots=True)
class RestartLimits:
    """How often, and how soon, workers are started again.

    Failures and preemptions are counted apart. The pause doubles with each failure.

    Attributes:
        max_restarts: After failures.
        max_preemptions: After preemptions, which do not count as failures.
        backoff_seconds: The pause before the first restart.
        max_backoff_seconds: The longest pause.

    Raises:
        ValueError: If a number is negative or not finite.

    Example:
        >>> limits = RestartLimits(max_restarts=9, backoff_seconds=1.0, max_backoff_seconds=5.0)
        >>> [limits.pause(n) for n in (1, 2, 3, 4, 9)]
        [1.0, 2.0, 4.0, 5.0, 5.0]
    """

    max_restarts: int = 0
    max_preemptions: int = 100
    backoff_seconds: float = 1.0
    max_backoff_seconds: float = 60.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not 0 <= value < math.inf:  # also refuses NaN
                raise ValueError(
                    f"{field.name} must be 0 or more, got {value!r}; expected a finite number."
                )

    def pause(self, num_failures: int) -> float:
        """Seconds to wait after so many failures; without one, as after the first."""
        doublings = min(max(num_failures - 1, 0), 60)  # 2**60 s is past every limit
        return min(self.backoff_seconds * 2.0**doublings, self.max_backoff_seconds)


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """What follows an attempt.

    Attributes:
        outcome: How the attempt ended.
        restart: Whether there is another one.
        pause: Seconds before it.

    Example:
        >>> Decision(Outcome(Ending.DONE)).restart
        False
    """

    outcome: Outcome
    restart: bool = False
    pause: float = 0.0


class RestartPolicy:
    """Counts failures and preemptions, and decides.

    Args:
        limits: How many of each are borne.

    Example:
        >>> policy = RestartPolicy(RestartLimits(max_restarts=1))
        >>> failed = Outcome(Ending.FAILED, code=3)
        >>> policy.decide(failed).restart, policy.decide(failed).restart
        (True, False)
    """

    def __init__(self, limits: RestartLimits) -> None:
        self.limits = limits
        self.num_failures = 0
        self.num_preemptions = 0

    def decide(self, outcome: Outcome) -> Decision:
        """What follows an attempt that ended like this."""
        if outcome.ending is Ending.FAILED:
            self.num_failures += 1
            restart = self.num_failures <= self.limits.max_restarts
        elif outcome.ending is Ending.PREEMPTED:
            self.num_preemptions += 1
            restart = self.num_preemptions <= self.limits.max_preemptions
        else:
            restart = False
        if not restart:
            return Decision(outcome)
        failures = self.num_failures if outcome.ending is Ending.FAILED else 0
        return Decision(outcome, restart=True, pause=self.limits.pause(failures))
