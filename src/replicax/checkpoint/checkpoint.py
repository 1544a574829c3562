"""`Checkpoint`: the objects whose state is saved together."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from replicax.checkpoint.entries import Entry
from replicax.checkpoint.errors import CheckpointObjectError
from replicax.checkpoint.latest import SAVE_COUNTER, Commit, note_saved
from replicax.checkpoint.objects import Found
from replicax.checkpoint.options import CheckpointOptions
from replicax.checkpoint.restoring import Restoration, agree_on_path
from replicax.checkpoint.saving import Note, Writing, require_host_code
from replicax.checkpoint.status import RestoreStatus
from replicax.checkpoint.team import current_team
from replicax.core import notices
from replicax.core.enums import VariableAggregation, VariableSynchronization
from replicax.variables.creation import build_variable
from replicax.variables.variable import Variable

PathLike = str | os.PathLike[str]

_SHOWN = 5  # names of arrays in a notice


class Checkpoint:
    """Saves and restores the state of the objects it is given by name.

    Objects are variables, optimizers, metrics, random generators, iterators of
    distributed datasets, objects of your own classes with such things in their
    attributes, objects with ``state_dict`` and ``load_state_dict`` (or ``get_state``
    and ``set_state``), Python numbers and strings, and dicts, lists and tuples of all
    these. More can be attached later, as attributes.

    A mirrored variable is saved once, whatever the number of copies, and restored
    into any number of them, under any strategy.

    Args:
        root: An object whose parts get no name in front; None for none.
        **kwargs: The objects.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     w = rx.Variable([1.0, 2.0])
        >>> checkpoint = Checkpoint(w=w, epoch=3)
        >>> path = checkpoint.save(f"{tempfile.mkdtemp()}/ckpt")
        >>> path.endswith("/ckpt-1")
        True
        >>> alone = Checkpoint(w=rx.Variable([0.0, 0.0]), epoch=0)
        >>> status = alone.restore(path).assert_consumed()
        >>> alone.w.numpy(), alone.epoch
        (array([1., 2.], dtype=float32), 3)
    """

    _objects: dict[str, Any]

    def __init__(self, root: Any = None, **kwargs: Any) -> None:
        """A checkpoint of the objects given."""
        own = {
            "_objects": {},
            "_root": root,
            "_counter": None,
            "_writing": None,
            "_restoration": None,
        }
        self.__dict__.update(own)
        for name, value in kwargs.items():
            _check_name(name)
            self._objects[name] = value
        self._find()  # says what cannot be saved while the user looks at the line

    def __setattr__(self, name: str, value: Any) -> None:
        """Attaches an object; it gets its value, if a restore has one for it."""
        if name.startswith("_"):
            super().__setattr__(name, value)
            return
        _check_name(name)
        had, old = name in self._objects, self._objects.get(name)
        self._objects[name] = value
        try:
            if self._restoration is None:
                self._find()
            else:
                self._restoration.give_out(to_assigned=True)
        except BaseException:
            if had:
                self._objects[name] = old
            else:
                del self._objects[name]
            raise

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_objects"][name]
        except KeyError:
            raise AttributeError(
                f"this Checkpoint has no object {name!r}; it has "
                f"{sorted(self.__dict__.get('_objects', {}))}."
            ) from None

    def __repr__(self) -> str:
        return f"<Checkpoint of {sorted(self._objects)}>"

    @property
    def save_counter(self) -> Variable:
        """How many checkpoints `save` has written, as an int32 variable."""
        if self._counter is None:
            self._counter = build_variable(  # seen by no creator, and in nobody's scope
                initial_value=np.int32(0),
                trainable=False,
                name=SAVE_COUNTER,
                dtype=None,
                synchronization=VariableSynchronization.AUTO,
                aggregation=VariableAggregation.NONE,
                strategy=None,
            )
        return self._counter

    # -- saving --------------------------------------------------------------------------------

    def save(self, file_prefix: PathLike, options: CheckpointOptions | None = None) -> str:
        """Writes a numbered checkpoint, and makes it the latest of its folder.

        Args:
            file_prefix: The folder and the beginning of the name; ``-1``, ``-2`` and so
                on are added.
            options: ``CheckpointOptions(enable_async=True)`` writes in the background.

        Returns:
            The path of the checkpoint.

        Raises:
            ContextError: In a replica, or while a program is traced.
            CheckpointObjectError: If there is something that cannot be saved.
            CheckpointWriteError: If the files cannot be written; earlier ones are as they were.
        """
        return self._save_numbered(file_prefix, None, options, note_saved)

    def save_async(self, file_prefix: PathLike) -> str:
        """Writes a numbered checkpoint in the background; the next call or `sync` awaits it.

        Training may go on at once: the values are those of the moment of the call.

        Args:
            file_prefix: As for `save`.

        Returns:
            The path of the checkpoint.

        Raises:
            ContextError: In a replica, or while a program is traced.
            CheckpointObjectError: If there is something that cannot be saved.
            CheckpointWriteError: If the files cannot be written; earlier ones are as they were.
        """
        return self.save(file_prefix, CheckpointOptions(enable_async=True))

    def write(self, file_prefix: PathLike, options: CheckpointOptions | None = None) -> str:
        """Writes a checkpoint with exactly this path, which is counted nowhere.

        Args:
            file_prefix: The path.
            options: As for `save`.

        Returns:
            The path.

        Raises:
            ContextError: In a replica, or while a program is traced.
            CheckpointObjectError: If there is something that cannot be saved.
            CheckpointWriteError: If the files cannot be written; earlier ones are as they were.
        """
        require_host_code("Checkpoint.write")
        path = Path(file_prefix).absolute()
        self._write(path, {}, options, lambda commit: commit())
        return str(path)

    def _save_numbered(
        self,
        prefix: PathLike,
        number: int | None,
        options: CheckpointOptions | None,
        note: Callable[[Path, Commit], None],
    ) -> str:
        """Saves and counts; `note` lets the checkpoint be complete, and lists it."""
        require_host_code("Checkpoint.save")
        self.sync()
        counter = self.save_counter
        before = counter.numpy()
        counter.assign(before + 1)
        prefix = Path(prefix).absolute()
        path = prefix.with_name(f"{prefix.name}-{int(before) + 1 if number is None else number}")
        try:
            entries = self._counter_entry()
            self._write(path, entries, options, lambda commit: note(path, commit))
        except BaseException:
            counter.assign(before)
            raise
        return str(path)

    def _write(
        self,
        path: Path,
        also: dict[str, Entry],
        options: CheckpointOptions | None,
        note: Note,
    ) -> None:
        self.sync()
        writing = Writing(path, lambda: self._find_to_save() | also, note)
        if options is not None and options.is_async:
            self._writing = writing
            writing.finish_in_background()
        else:
            writing.finish()

    def _find_to_save(self) -> dict[str, Entry]:
        self._warn_of_unused()
        found = self._find()
        if found.empty:
            raise CheckpointObjectError(
                "a checkpoint would save nothing of "
                + ", ".join(f"{k!r} (a {t.__qualname__})" for k, t in found.empty.items())
                + ": there are no variables in its attributes. Call it once if it creates them "
                "later, give it state_dict and load_state_dict, or leave it out."
            )
        if found.skipped:
            names = sorted(found.skipped)
            notices.notify_once(
                ("arrays in attributes", *names),
                f"a checkpoint saves variables, and no arrays in attributes: {_shortened(names)} "
                "will be missing. To keep such an array make it a replicax.Variable, with "
                "trainable=False if it is not learned; or give the object state_dict and "
                "load_state_dict.",
            )
        return found.entries

    def sync(self) -> None:
        """Waits for a save in the background, and raises what went wrong in it."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.wait()

    def _warn_of_unused(self) -> None:
        restoration = self._restoration
        if restoration is None:
            return
        restoration.give_out()
        if restoration.unused and not restoration.is_partial:
            notices.notify_once(
                ("unused values", str(restoration.path)),
                f"values of {restoration.path} that no object has taken are not in the checkpoint "
                f"that is saved now: {sorted(restoration.unused)}. Create their objects first, or "
                "call expect_partial() on the result of restore.",
            )

    # -- restoring -----------------------------------------------------------------------------

    def restore(
        self, save_path: PathLike | None, options: CheckpointOptions | None = None
    ) -> RestoreStatus:
        """Gives every object its value from a checkpoint that `save` wrote.

        Args:
            save_path: The path that `save` returned; None does nothing, so that
                ``restore(manager.latest_checkpoint)`` also serves the first start.
            options: Accepted because it is documented.

        Returns:
            What was used, and what waits for objects that do not exist yet.

        Raises:
            CheckpointNotFoundError: If there is no checkpoint.
            DamagedCheckpointError: If it is incomplete, or was changed.
            CheckpointMismatchError: If it does not fit the objects. The error lists every
                difference, and nothing has been overwritten.
        """
        return self._restore("Checkpoint.restore", save_path, with_counter=True)

    def read(self, save_path: PathLike, options: CheckpointOptions | None = None) -> RestoreStatus:
        """Gives every object its value from a checkpoint that `write` wrote.

        The same as `restore`, but `save_counter` stays as it is.

        Args:
            save_path: The path that `write` returned.
            options: Accepted because it is documented.

        Returns:
            As for `restore`.

        Raises:
            CheckpointNotFoundError: If there is no checkpoint.
            DamagedCheckpointError: If it is incomplete, or was changed.
            CheckpointMismatchError: If it does not fit the objects.
        """
        return self._restore("Checkpoint.read", save_path, with_counter=False)

    def _restore(self, call: str, path: PathLike | None, *, with_counter: bool) -> RestoreStatus:
        require_host_code(call)
        self.sync()
        team = current_team()
        if path is None:
            agree_on_path(team, None)
            return RestoreStatus(None)

        def entries() -> dict[str, Entry]:
            return self._find().entries

        counter = self._counter_entry() if with_counter else {}
        restoration = Restoration(Path(path).absolute(), entries, counter, SAVE_COUNTER, team)
        if self._restoration is not None:
            self._restoration.end()
        self._restoration = restoration
        return RestoreStatus(restoration)

    # -- objects -------------------------------------------------------------------------------

    def _counter_entry(self) -> dict[str, Entry]:
        found = Found()
        found.add_all({SAVE_COUNTER: self.save_counter}, lambda name, value: None)
        return found.entries

    def _find(self) -> Found:
        found = Found()
        self._find_in_checkpoint(found, "")
        return found

    def _find_in_checkpoint(self, found: Found, path: str) -> None:
        """Adds everything below `path`; called for a Checkpoint inside another, too."""
        prefix = f"{path}/" if path else ""
        names = {f"{prefix}{name}": value for name, value in self._objects.items()}
        found.add_all(names, lambda name, value: self._replace(name.removeprefix(prefix), value))
        if self._root is not None:
            found.add_root(self._root, path)

    def _replace(self, name: str, value: Any) -> None:
        self._objects[name] = value


def _shortened(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def _check_name(name: str) -> None:
    if name.startswith("_") or hasattr(Checkpoint, name):
        raise CheckpointObjectError(
            f"a Checkpoint cannot call an object {name!r}: that is the name of something of its "
            "own. Use another name."
        )
