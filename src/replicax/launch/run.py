"""A run from its first attempt to its last: the order in which the parts of `launch` are used."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

from replicax.core.errors import ClusterPlatformError
from replicax.launch import exit_codes
from replicax.launch.coordination import Coordination, WithoutCoordination
from replicax.launch.interruption import Interruption
from replicax.launch.logs import LineSink, WorkerLog, log_path
from replicax.launch.outcome import Ending, Outcome
from replicax.launch.place import Place, StartedWorker
from replicax.launch.plan import Job, plan_workers
from replicax.launch.restart import Decision, RestartLimits, RestartPolicy
from replicax.launch.summary import Summary
from replicax.launch.supervise import Supervisor
from replicax.launch.this_machine import ThisMachine

LastLines: TypeAlias = Mapping[int, tuple[str, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class Observer:
    """What the caller wants to hear of.

    Attributes:
        on_line: Each line of each worker.
        on_start: Each attempt, with the process id of each worker.
        on_end: Each attempt's end, what follows, and the end of each worker's output.

    Example:
        >>> observer = Observer(on_line=lambda worker_id, line: print(worker_id, line))
        >>> observer.on_line(1, "hello")
        1 hello
    """

    on_line: LineSink = lambda worker_id, line: None
    on_start: Callable[[int, Mapping[int, int]], None] = lambda attempt, pids: None
    on_end: Callable[[int, Decision, LastLines], None] = lambda attempt, decision, lines: None


class Run:
    """One job under supervision.

    Args:
        job: What to run.
        place: Where the workers run, closed at the end; this machine if None.
        limits: How often workers are started again.
        interruption: What asks to end; install it to listen to signals.
        coordination: A service for the workers, if the caller has one.
        observer: What the caller hears of.

    Example:
        >>> run = Run(Job(("echo", "hello"), num_workers=1), observer=Observer(on_line=print))
        >>> run.execute().code
        0 hello
        0
    """

    def __init__(
        self,
        job: Job,
        *,
        place: Place | None = None,
        limits: RestartLimits | None = None,
        interruption: Interruption | None = None,
        coordination: Coordination | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._job = job
        self._place = place
        self._policy = RestartPolicy(limits or RestartLimits())
        self._interruption = interruption or Interruption()
        self._coordination: Coordination = coordination or WithoutCoordination()
        self._observer = observer or Observer()

    def execute(self) -> Summary:
        """Runs the job, again after failures and preemptions; leaves no process behind.

        Raises:
            ClusterPlatformError: If there is no place for the workers, or no service for them.
        """
        started = time.monotonic()
        outcomes: list[Outcome] = []
        if self._job.log_dir is not None:
            self._job.log_dir.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(self._place or ThisMachine()) as place:
            restart = True
            while restart:
                decision = self._attempt(len(outcomes) + 1, place)
                outcomes.append(decision.outcome)
                restart = decision.restart
                if restart and self._interruption.wait(decision.pause):
                    outcomes.append(self._interrupted())
                    restart = False
        return Summary(tuple(outcomes), time.monotonic() - started, self._job.log_dir)

    def _attempt(self, attempt: int, place: Place) -> Decision:
        try:
            addresses = place.reserve(self._job.num_workers)
            if addresses is None:
                return Decision(self._interrupted())
            service = self._coordination.start(addresses, attempt=attempt)
            outcome, lines = self._supervise(place, addresses, service, attempt)
        except ClusterPlatformError as error:
            if attempt == 1:
                raise
            return Decision(Outcome(Ending.FAILED, None, 1, str(error)))
        finally:
            self._coordination.stop()
        decision = self._policy.decide(outcome)
        self._observer.on_end(attempt, decision, lines)
        return decision

    def _supervise(
        self, place: Place, addresses: tuple[str, ...], service: Mapping[str, str], attempt: int
    ) -> tuple[Outcome, dict[int, tuple[str, ...]]]:
        environment = {**place.environment, **service}
        plans = plan_workers(self._job, addresses, attempt=attempt, environment=environment)
        with contextlib.ExitStack() as stack:
            logs: dict[int, WorkerLog] = {}
            for plan in plans:
                log = WorkerLog(
                    plan.worker_id,
                    self._observer.on_line,
                    path=log_path(self._job.log_dir, plan.worker_id),
                    attempt=attempt,
                )
                stack.callback(log.close)
                logs[plan.worker_id] = log
            workers: list[StartedWorker] = []
            for plan in plans:
                worker = place.start(plan)
                stack.callback(worker.end)
                workers.append(worker)
            self._observer.on_start(attempt, {w.worker_id: w.pid for w in workers})
            outcome = Supervisor(
                workers,
                logs,
                interruption=self._interruption,
                grace_seconds=self._job.grace_seconds,
                trouble=getattr(self._coordination, "trouble", str),  # it may have none
            ).run()
        return outcome, {worker_id: log.last_lines for worker_id, log in logs.items()}

    def _interrupted(self) -> Outcome:
        code = exit_codes.for_shell(-(self._interruption.first or 0))
        return Outcome(Ending.INTERRUPTED, code=code, reason="No worker was running.")
