"""`CheckpointManager`: the checkpoints of one run, of which some are kept."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

from replicax.checkpoint import files, leftovers
from replicax.checkpoint.checkpoint import Checkpoint, PathLike
from replicax.checkpoint.errors import DamagedCheckpointError
from replicax.checkpoint.latest import Commit, Listing, complete, now
from replicax.checkpoint.options import CheckpointOptions
from replicax.checkpoint.team import current_team
from replicax.core import notices

SECONDS_PER_HOUR = 3600


class CheckpointManager:
    """Saves numbered checkpoints in one folder, deletes old ones, and finds the latest.

    A checkpoint is the latest from the moment it is complete, never before. One that
    was damaged since is passed over by `restore_or_initialize`.

    Args:
        checkpoint: The `Checkpoint` to save.
        directory: The folder, for the checkpoints of this run only.
        max_to_keep: How many stay; None for all of them.
        keep_checkpoint_every_n_hours: One in so many hours is kept as well, for good.
        checkpoint_name: The beginning of their names.
        step_counter: A variable or number that counts steps, for `checkpoint_interval`.
        checkpoint_interval: How many steps there are at least from one save to the next.
        init_fn: Called by `restore_or_initialize` where there is no checkpoint.
        last_checkpoint_step: The step of the last save before this manager's first.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> checkpoint = Checkpoint(w=rx.Variable(1.0))
        >>> manager = CheckpointManager(checkpoint, tempfile.mkdtemp(), max_to_keep=2)
        >>> manager.restore_or_initialize() is None
        True
        >>> for _ in range(3):
        ...     path = manager.save()
        >>> [path.rpartition("/")[2] for path in manager.checkpoints]
        ['ckpt-2', 'ckpt-3']
        >>> manager.latest_checkpoint == path
        True
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: PathLike,
        max_to_keep: int | None,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: Any = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], Any] | None = None,
        last_checkpoint_step: int | None = None,
    ) -> None:
        """A manager for the checkpoints in `directory`, also those of an earlier run."""
        if not isinstance(checkpoint, Checkpoint):
            raise TypeError(
                f"CheckpointManager got {checkpoint!r} of type {type(checkpoint).__name__}; "
                "expected a Checkpoint: CheckpointManager(Checkpoint(model=model), ...)."
            )
        if max_to_keep is not None and max_to_keep < 1:
            raise ValueError(f"max_to_keep is {max_to_keep}; expected 1 or more, or None for all.")
        if checkpoint_interval is not None and step_counter is None:
            raise ValueError(
                f"checkpoint_interval is {checkpoint_interval} steps, but there is no "
                "step_counter. Pass the variable that counts them, such as optimizer.iterations."
            )
        if not checkpoint_name or "/" in checkpoint_name:
            raise ValueError(
                f"checkpoint_name is {checkpoint_name!r}; expected the beginning of a file name."
            )
        self._checkpoint = checkpoint
        self._folder = Path(directory).absolute()
        self._max_to_keep = max_to_keep
        self._hours = keep_checkpoint_every_n_hours
        self._name = checkpoint_name
        self._step_counter = step_counter
        self._interval = checkpoint_interval
        self._init_fn = init_fn
        self._last_step = last_checkpoint_step
        self._started = now()
        if current_team().is_chief:
            leftovers.collect(self._folder)
            leftovers.collect_data(self._folder)

    def __repr__(self) -> str:
        return f"<CheckpointManager of {self._folder}: {[Path(p).name for p in self.checkpoints]}>"

    @property
    def checkpoint(self) -> Checkpoint:
        """What is saved."""
        return self._checkpoint

    @property
    def directory(self) -> str:
        """The folder."""
        return str(self._folder)

    @property
    def checkpoint_interval(self) -> int | None:
        """How many steps there are at least from one save to the next."""
        return self._interval

    @property
    def checkpoints(self) -> list[str]:
        """The paths of the checkpoints, oldest first, without those kept for good."""
        listing = Listing(self._folder)
        paths = self._managed(listing.paths())
        return [str(p) for p in paths if p.name not in listing.preserved]

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the checkpoint saved last, or None."""
        paths = self._managed(Listing(self._folder).paths())
        return str(paths[-1]) if paths else None

    def _managed(self, paths: list[Path]) -> list[Path]:
        return [path for path in paths if path.name.startswith(f"{self._name}-")]

    def save(
        self,
        checkpoint_number: Any = None,
        check_interval: bool = True,
        options: CheckpointOptions | None = None,
    ) -> str | None:
        """Saves a checkpoint, and deletes those that are too many.

        Args:
            checkpoint_number: Its number, an int or a variable; the number of saves so
                far if None.
            check_interval: Whether to do nothing within `checkpoint_interval`.
            options: ``CheckpointOptions(enable_async=True)`` writes in the background;
                the next call or `sync` raises what went wrong.

        Returns:
            The path, or None if it is too early for the next.
        """
        step = None if self._step_counter is None else int(self._step_counter)
        if check_interval and self._interval is not None and self._last_step is not None:
            assert step is not None
            if step - self._last_step < self._interval:
                return None
        number = None if checkpoint_number is None else operator.index(int(checkpoint_number))
        prefix = self._folder / self._name
        path = self._checkpoint._save_numbered(prefix, number, options, self._note_saved)
        self._last_step = step
        return path

    def sync(self) -> None:
        """Waits for a save in the background, and raises what went wrong in it."""
        self._checkpoint.sync()

    def _note_saved(self, path: Path, commit: Commit) -> None:
        """Makes a checkpoint complete and the latest, and deletes those that are too many."""
        complete(path, commit)
        listing = Listing(self._folder)
        listing.add(path.name)
        listing.preserved.discard(path.name)
        surplus = self._surplus(listing)
        listing.write()
        for old in surplus:
            files.remove(old)
        if surplus:
            listing.write()

    def _surplus(self, listing: Listing) -> list[Path]:
        """The checkpoints to delete; marks those that are kept for good."""
        if self._max_to_keep is None:
            return []
        paths = self._managed(listing.present())
        if listing.is_rebuilt and self._hours is not None:
            # Surplus ones have been deleted at every save: more than that were kept for good.
            listing.preserved |= {path.name for path in paths[: -self._max_to_keep - 1]}
        paths = [path for path in paths if path.name not in listing.preserved]
        surplus = []
        for path in paths[: -self._max_to_keep]:
            kept = [listing.times[name] for name in listing.preserved if name in listing.times]
            since = listing.times[path.name] - max(kept, default=self._started)
            if self._hours is not None and since >= self._hours * SECONDS_PER_HOUR:
                listing.preserved.add(path.name)
            else:
                surplus.append(path)
        return surplus

    def restore_or_initialize(self) -> str | None:
        """Restores the latest checkpoint; where there is none, calls `init_fn`.

        A damaged one is passed over with a warning that says what is wrong with it.

        Returns:
            The path of the checkpoint that was restored, or None.

        Raises:
            DamagedCheckpointError: If there are checkpoints, and all are damaged.
            CheckpointMismatchError: If the latest does not fit the objects.
        """
        names = [path.name for path in self._managed(Listing(self._folder).present())]
        (names, *_) = current_team().settle("the list of checkpoints", message=names)
        damage: DamagedCheckpointError | None = None
        for path in [self._folder / name for name in reversed(names)]:
            try:
                self._checkpoint.restore(path)
            except DamagedCheckpointError as error:
                damage = error
                notices.notify_once(("damaged", str(path)), f"passed over: {error}")
                continue
            if self._step_counter is not None:
                self._last_step = int(self._step_counter)
            return str(path)
        if damage is not None:
            raise damage
        if self._init_fn is not None:
            self._init_fn()
        return None


def manager_of(
    checkpoint_or_manager: Checkpoint | CheckpointManager, directory: PathLike | None
) -> CheckpointManager:
    """The manager that was given, or one that keeps the latest of a `Checkpoint`.

    Raises:
        ValueError: If there is a `Checkpoint` without a folder.
        TypeError: If it is neither.
    """
    if isinstance(checkpoint_or_manager, CheckpointManager):
        return checkpoint_or_manager
    if isinstance(checkpoint_or_manager, Checkpoint) and directory is None:
        raise ValueError(
            f"checkpoint_dir is None, so there is no folder for {checkpoint_or_manager!r}. Pass "
            "the folder, or a CheckpointManager."
        )
    return CheckpointManager(checkpoint_or_manager, directory or "", max_to_keep=1)
