"""Gives saved values to objects: all that fit, or none.

Every difference is found before anything is overwritten. Values whose objects do not
exist yet are kept on the host, and given when the objects are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from replicax.backend.runahead import RUN_AHEAD
from replicax.checkpoint import awaiting, files
from replicax.checkpoint.entries import (
    Arrays,
    Entry,
    Record,
    StateEntry,
    VariableEntry,
    all_sources,
)
from replicax.checkpoint.errors import (
    CheckpointMismatchError,
    CheckpointNotFoundError,
    DamagedCheckpointError,
    mismatch,
)
from replicax.checkpoint.loading import load
from replicax.checkpoint.team import Team
from replicax.engine.storage import Storage

Find = Callable[[], dict[str, Entry]]


def agree_on_path(
    team: Team, path: Path | None, checksum: str = "", error: Exception | None = None
) -> None:
    """Lets all workers restore the same checkpoint, or none.

    Args:
        team: The workers.
        path: What this one would restore.
        checksum: Of what the checkpoint says of itself.
        error: Why this one cannot.

    Raises:
        Exception: The error of the first worker that has one.
        WorkersDifferError: If the workers would restore different things.
    """
    place = None if path is None else str(path)
    answers = team.settle("a restore of a checkpoint", error, message=[place, checksum])
    team.require_same(
        "the path of the checkpoint to restore",
        [place for place, _ in answers],
        "All workers must see the same folder, and restore the same checkpoint of it.",
    )
    team.require_same(
        f"what {place} holds",
        [checksum for _, checksum in answers],
        "All workers must see the same folder: put it on storage that they share.",
    )


class Restoration:
    """What one ``restore`` gave to objects, and what it still has for later ones.

    Attributes:
        path: The checkpoint.
        unused: The records that no object has taken.
        num_given: How many values objects have got.
        is_partial: Whether the user expects that some stay unused.
    """

    def __init__(
        self,
        path: Path,
        find: Find,
        counter: Mapping[str, Entry],
        counter_key: str,
        team: Team,
    ) -> None:
        """Reads `path` and restores what there is.

        Args:
            path: The checkpoint.
            find: Gives the entries of the objects as they are at the moment.
            counter: The entry of the counter of saves; empty to leave it alone.
            counter_key: Its key; a checkpoint need not have it.
            team: The workers that restore it, each for itself.

        Raises:
            CheckpointNotFoundError: If there is no checkpoint at `path`.
            DamagedCheckpointError: If it is incomplete or was changed.
            CheckpointMismatchError: If it does not fit; lists every difference.
        """
        self.path = path
        self.is_partial = False
        self.num_given = 0
        self._find = find
        self._same: dict[str, str] = {}
        self.unused: dict[str, Record] = {}
        self._kept: Arrays = {}
        entries, arrays, checksum, error = {}, {}, "", None
        try:
            entries, arrays, checksum = self._prepared(counter, counter_key, team)
        except CheckpointNotFoundError as problem:
            advice = "" if team.is_alone else " All workers must see the same folder."
            error = CheckpointNotFoundError(f"{problem}{advice}")
        except Exception as problem:  # told to the other workers before anything is overwritten
            error = problem
        agree_on_path(team, path, checksum, error)
        self._restore(entries, arrays, team)
        if self.unused:
            awaiting.watch_for(self)

    def _prepared(
        self, counter: Mapping[str, Entry], counter_key: str, team: Team
    ) -> tuple[Mapping[str, Entry], Arrays, str]:
        while True:
            manifest = files.read_manifest(self.path)
            try:
                prepared = self._prepare(manifest, counter, counter_key, team)
            except DamagedCheckpointError:
                if files.read_manifest(self.path) == manifest:
                    raise
                continue  # another process has replaced it, and deleted what it was
            return *prepared, files.crc_of(manifest)

    def _prepare(
        self,
        manifest: Mapping[str, Any],
        counter: Mapping[str, Entry],
        counter_key: str,
        team: Team,
    ) -> tuple[Mapping[str, Entry], Arrays]:
        """Checks and reads everything; overwrites nothing."""
        own = self._own_states(manifest, team)
        records: dict[str, Record] = {
            key: manifest["records"][target] for key, target in manifest["aliases"].items()
        } | manifest["records"]
        self._same = {key: manifest["aliases"].get(key, key) for key in records}
        self.unused = {key: own.get(self._same[key], record) for key, record in records.items()}
        entries = self._find()
        if counter_key in records and counter:
            entries = {**entries, **counter}
        else:
            self.unused.pop(counter_key, None)
        self._check(entries)
        files.verify(self.path, manifest)
        others = [
            source
            for key, record in self.unused.items()
            if key not in entries
            for source in all_sources(self._same[key], record)
        ]
        own = [
            source
            for key, entry in entries.items()
            for source in entry.sources(self._same[key], self.unused[key])
        ]
        self._kept = load(self.path, manifest, others)
        return entries, load(self.path, manifest, own)

    def _own_states(self, manifest: Mapping[str, Any], team: Team) -> dict[str, Record]:
        """The states that were this worker's alone, where there are as many workers."""
        records = manifest["records"].values()
        if not any(record.get("workers") == team.num_workers for record in records):
            return {}
        states = files.read_states(self.path, manifest, team.rank)
        return {key: {"kind": StateEntry.kind, "state": state} for key, state in states.items()}

    # -- now -----------------------------------------------------------------------------------

    def _check(self, entries: Mapping[str, Entry]) -> None:
        differences = []
        for key, entry in entries.items():
            if key not in self.unused:
                differences.append(f"{key}: missing in the checkpoint")
                continue
            differences += [f"{key}: {text}" for text in entry.differences(self.unused[key])]
        if differences:
            raise mismatch(str(self.path), differences)

    def _restore(
        self, entries: Mapping[str, Entry], arrays: Arrays, team: Team | None = None
    ) -> None:
        """Gives the values; objects that may refuse theirs first, and undone if one does.

        With `team` they are undone on all workers if one refuses on any of them.
        """
        states = {key: entry for key, entry in entries.items() if isinstance(entry, StateEntry)}
        before = {key: entry.get() for key, entry in states.items()}
        changed: list[str] = []
        error: Exception | None = None
        for key, entry in states.items():
            try:
                changed.append(key)
                entry.restore(self._same[key], self.unused[key], arrays)
            except Exception as refusal:
                text = f"{key}: {type(entry.owner).__name__} refused its state: {refusal}"
                error = mismatch(str(self.path), [text])
                error.__cause__ = refusal
                break
        try:
            if team is not None and not team.is_alone:
                team.settle("the states of a restored checkpoint", error)
            elif error is not None:
                raise error
        except BaseException as failure:
            for other in changed:
                try:
                    states[other].set(before[other])
                except Exception as problem:
                    failure.add_note(f"{other} did not take its old state back: {problem}")
            raise
        with RUN_AHEAD.lock:  # no step of another thread sees some old values and some new ones
            for key, entry in entries.items():
                if key not in states:
                    entry.restore(self._same[key], self.unused[key], arrays)
        for key in entries:
            del self.unused[key]
        self.num_given += len(entries)

    # -- later ---------------------------------------------------------------------------------

    def give_to(self, storage: Storage) -> None:
        """Gives its value to the variable of `storage`, and to others that nobody has used.

        Raises:
            CheckpointMismatchError: If it does not fit the variable of `storage`.
        """
        fitting = {}
        for key, entry in self._find().items():
            if key not in self.unused or not isinstance(entry, VariableEntry):
                continue
            own = entry.variable._storage
            if own is storage:
                self._check({key: entry})
            if own is storage or (
                awaiting.is_unused(own) and not entry.differences(self.unused[key])
            ):
                fitting[key] = entry
        self._give(fitting)

    def give_out(self, *, to_assigned: bool = False) -> None:
        """Gives values that were kept to objects that have been attached since.

        Args:
            to_assigned: Whether variables get theirs that were assigned in the meantime.

        Raises:
            CheckpointMismatchError: If an object does not fit, or was assigned before it
                was attached.
        """
        found = self._find()
        entries = {key: entry for key, entry in found.items() if key in self.unused}
        late = [] if to_assigned else [key for key, e in entries.items() if _was_assigned(e)]
        if late:
            raise CheckpointMismatchError(
                f"variables {late} were assigned before they were attached to the checkpoint, so "
                f"their values in {self.path} could not be given to them. Attach them before they "
                "are assigned, or restore again."
            )
        self._check(entries)
        self._give(entries)

    def _give(self, entries: Mapping[str, Entry]) -> None:
        if entries:
            self._restore(entries, self._kept)
        if not self.unused:
            self.end()

    def look_for_unsaved(self) -> list[str]:
        """Keys of objects that the checkpoint had nothing for."""
        return sorted(key for key in self._find() if key not in self._same)

    def expect_partial(self) -> None:
        """Goes on as long as somebody holds it, and says nothing about what stays unused."""
        self.is_partial = True
        if self.unused:
            awaiting.watch_for(self, weakly=True)

    def end(self) -> None:
        """Keeps no values any more."""
        awaiting.end_watch_for(self)
        self._kept = {}


def _was_assigned(entry: Entry) -> bool:
    return isinstance(entry, VariableEntry) and not awaiting.is_unassigned(entry.variable._storage)
