"""`PreemptionCheckpointHandler`: saves when the workers are told to leave."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from replicax.backend import workers
from replicax.checkpoint.checkpoint import Checkpoint, PathLike
from replicax.checkpoint.counting import Count, attached_count
from replicax.checkpoint.manager import CheckpointManager, manager_of
from replicax.checkpoint.team import current_team
from replicax.checkpoint.termination import Notice, TerminationConfig
from replicax.cluster import roles
from replicax.cluster.resolver import ClusterResolver
from replicax.core.errors import ClusterError
from replicax.launch.exit_codes import PREEMPTED

RUNS = "checkpointed_runs"


class PreemptionCheckpointHandler:
    """Saves at the same step on every worker when one of them is told to leave, and leaves.

    It restores the latest checkpoint when it is created, so that a program that is started
    again goes on where it stopped. It has the handler of SIGTERM until `close`, or until it
    leaves: from then on SIGTERM is ignored, so that the process ends with the code it wants.

    Args:
        cluster_resolver: The one of the strategy, or None.
        checkpoint_or_checkpoint_manager: What is saved.
        checkpoint_dir: The folder, if a `Checkpoint` is given; its latest one is kept.
        termination_config: How the process learns that it will be ended, and leaves.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> checkpoint = Checkpoint(w=rx.Variable(1.0))
        >>> config = TerminationConfig(
        ...     termination_watcher_fn=lambda: True, exit_fn=lambda: print("leaves")
        ... )
        >>> folder = tempfile.mkdtemp()
        >>> with PreemptionCheckpointHandler(None, checkpoint, folder, config) as handler:
        ...     while not handler.is_preempted:
        ...         total = handler.run(checkpoint.w.assign_add, 1.0)
        leaves
        >>> again = Checkpoint(w=rx.Variable(0.0))
        >>> with PreemptionCheckpointHandler(None, again, folder) as handler:
        ...     bool(again.w == total), handler.total_run_calls == int(total) - 1
        (True, True)
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None,
        checkpoint_or_checkpoint_manager: Checkpoint | CheckpointManager,
        checkpoint_dir: PathLike | None = None,
        termination_config: TerminationConfig | None = None,
    ) -> None:
        """Restores the latest checkpoint, and begins to watch.

        Raises:
            ClusterError: If the resolver knows other workers that have not been joined.
            ContextError: If SIGTERM cannot be watched, outside the main thread.
        """
        config = TerminationConfig() if termination_config is None else termination_config
        if not isinstance(config, TerminationConfig):
            raise TypeError(f"termination_config is {config!r}; expected a TerminationConfig.")
        if cluster_resolver is not None:
            _require_joined(cluster_resolver)
        manager = manager_of(checkpoint_or_checkpoint_manager, checkpoint_dir)
        manager.restore_or_initialize()
        self._watch(manager, config, attached_count(manager.checkpoint, RUNS))

    @classmethod
    def _without_restore(
        cls, manager: CheckpointManager, config: TerminationConfig
    ) -> PreemptionCheckpointHandler:
        """A handler for a loop that restores, and counts its steps, by itself."""
        handler = cls.__new__(cls)
        handler._watch(manager, config, Count())
        return handler

    def _watch(self, manager: CheckpointManager, config: TerminationConfig, runs: Count) -> None:
        self._manager = manager
        self._config = config
        self._team = current_team()
        self._runs = runs
        self._num_checks = 0
        self._deadline: float | None = None
        self._is_preempted = False
        self._notice = Notice(self._team, config.termination_watcher_fn)

    @property
    def total_run_calls(self) -> int:
        """How often `run` has been called, also before the program was started again."""
        return self._runs.value

    @property
    def is_preempted(self) -> bool:
        """Whether it has saved and left; seen only if ``exit_fn`` has returned."""
        return self._is_preempted

    def run(self, distributed_train_function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function, usually of some steps; saves after it if it is time to leave.

        Args:
            distributed_train_function: Called once; every worker must call it as often.
            *args: Its arguments.
            **kwargs: Its keyword arguments.

        Returns:
            What it returns.

        Raises:
            SystemExit: After a save, with the exit code of a preemption, unless there is an
                ``exit_fn``.
        """
        result = distributed_train_function(*args, **kwargs)
        self._runs.value += 1
        self.save_checkpoint_if_preempted()
        return result

    def save_checkpoint_if_preempted(self, *args: Any, **kwargs: Any) -> None:
        """Saves and leaves if it is time to; for loops that do not use `run`.

        Every worker must call it at the same steps.

        Args:
            *args: For ``CheckpointManager.save`` or ``TerminationConfig.save_fn``.
            **kwargs: For the same.
        """
        if self._is_preempted:
            return
        self._num_checks += 1
        if self._deadline is not None:
            is_over = time.monotonic() >= self._deadline
            if any(self._team.settle("the end of the grace period", message=is_over)):
                self._save(*args, **kwargs)
                self._leave()
        elif self._notice.is_due(self._num_checks):
            began = time.monotonic()
            self._save(*args, **kwargs)
            if not self._config.grace_period:
                self._leave()
                return
            took = time.monotonic() - began
            self._deadline = began + self._config.grace_period - 2 * took  # room for the next

    @contextlib.contextmanager
    def watch_preemption_scope(self) -> Iterator[None]:
        """A part of the program after which it saves and leaves, if it is time to.

        For loops without `run`; call `save_checkpoint_if_preempted` inside to leave earlier.

        Returns:
            A context manager.

        Raises:
            SystemExit: At the end, after a save, unless there is an ``exit_fn``.
        """
        yield
        self.save_checkpoint_if_preempted()

    def _save(self, *args: Any, **kwargs: Any) -> None:
        if self._config.save_fn is not None:
            self._config.save_fn(*args, **kwargs)
            return
        if not args:
            kwargs.setdefault("check_interval", False)
        self._manager.save(*args, **kwargs)
        self._manager.sync()

    def _leave(self) -> None:
        self._is_preempted = True
        goes_on = False
        try:
            if self._config.exit_fn is None:
                sys.exit(PREEMPTED)
            self._config.exit_fn()
            goes_on = self._team.is_alone
        finally:
            if goes_on:
                self.close()
            else:
                self._notice.ignore()

    def close(self) -> None:
        """Ends the watch; SIGTERM does what it did before, unless the process is leaving."""
        self._notice.close()

    def __enter__(self) -> PreemptionCheckpointHandler:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _require_joined(resolver: ClusterResolver) -> None:
    cluster = resolver.cluster_spec()
    if not cluster or not roles.takes_part(resolver.task_type):
        return
    num_workers = len(roles.ranked_tasks(cluster))
    if num_workers > 1 and workers.current() is None:
        raise ClusterError(
            f"the resolver of a PreemptionCheckpointHandler knows {num_workers} workers, which "
            "this process has not joined. Create the MultiWorkerMirroredStrategy first."
        )
