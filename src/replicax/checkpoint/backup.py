"""`BackupAndRestore`: a loop of steps that goes on where an earlier process stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from replicax.checkpoint.checkpoint import Checkpoint, PathLike
from replicax.checkpoint.counting import attached_count
from replicax.checkpoint.manager import CheckpointManager, manager_of
from replicax.checkpoint.options import CheckpointOptions
from replicax.checkpoint.preemption import PreemptionCheckpointHandler
from replicax.checkpoint.termination import TerminationConfig

STEP = "backup_step"


class BackupAndRestore:
    """Counts the steps of a loop, saves now and then, and restores at the start.

    Give the `Checkpoint` everything that the loop changes, also the iterator of its
    dataset: then the loop that is started again does what the first one would have done.

    Args:
        checkpoint_or_checkpoint_manager: What is saved.
        checkpoint_dir: The folder, if a `Checkpoint` is given; its latest one is kept.
        every: How many steps there are from one save to the next; None to save only at the
            end, and before the process leaves.
        enable_async: Whether files are written while the loop goes on.
        termination_config: If given, the loop saves and leaves when the process is told to,
            as a `PreemptionCheckpointHandler` does.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> folder = tempfile.mkdtemp()
        >>> def train(num_steps):
        ...     checkpoint = Checkpoint(w=rx.Variable(0.0))
        ...     for step in BackupAndRestore(checkpoint, folder, every=2).steps(num_steps):
        ...         checkpoint.w.assign_add(step)
        ...         if step == 2 and num_steps == 4:
        ...             return "ended in the middle of step 2"
        ...     return checkpoint.w.numpy()
        >>> train(4)
        'ended in the middle of step 2'
        >>> train(6)  # goes on at step 2
        array(15., dtype=float32)
    """

    def __init__(
        self,
        checkpoint_or_checkpoint_manager: Checkpoint | CheckpointManager,
        checkpoint_dir: PathLike | None = None,
        *,
        every: int | None = None,
        enable_async: bool = False,
        termination_config: TerminationConfig | None = None,
    ) -> None:
        """Restores nothing yet: `steps` does."""
        if every is not None and every < 1:
            raise ValueError(f"every is {every}; expected 1 step or more, or None.")
        self._manager = manager_of(checkpoint_or_checkpoint_manager, checkpoint_dir)
        self._every = every
        self._options = CheckpointOptions(enable_async=enable_async)
        self._config = termination_config
        self._is_restored = False

    @property
    def manager(self) -> CheckpointManager:
        """What saves."""
        return self._manager

    @property
    def step(self) -> int:
        """How many steps are done, also by earlier processes; known once `steps` has begun."""
        return attached_count(self._manager.checkpoint, STEP).value

    def steps(self, total: int) -> Iterator[int]:
        """The numbers of the steps that are left of `total`, beginning where the last save was.

        A step is done when the loop asks for the next one. A loop that is left early, or by an
        error, saves nothing.

        Args:
            total: How many steps there are from the very beginning.

        Returns:
            An iterator over the numbers.
        """
        if not self._is_restored:
            self._manager.restore_or_initialize()
            self._is_restored = True
        with self._watched() as handler:
            count = attached_count(self._manager.checkpoint, STEP)
            while count.value < total:
                yield count.value
                count.value += 1
                if count.value == total or (self._every and count.value % self._every == 0):
                    self._manager.save(check_interval=False, options=self._options)
                if handler is not None:
                    handler.save_checkpoint_if_preempted()
        self._manager.sync()

    def _watched(self) -> contextlib.AbstractContextManager[PreemptionCheckpointHandler | None]:
        if self._config is None:
            return contextlib.nullcontext()
        return PreemptionCheckpointHandler._without_restore(self._manager, self._config)
