"""Ends a process at its k-th operation on files.

`kill_everywhere` saves again and again, in a new process each time, which ends at the first, the
second, ... operation, until one reaches its end. After each it checks that the last checkpoint that
a save has returned can be read, and that the next manager deletes all leftovers.
"""

import io
import os
import pathlib

from replicax.checkpoint import files
from replicax.checkpoint.arrays import import_orbax  # noqa: F401
from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.latest import latest_checkpoint
from replicax.checkpoint.manager import CheckpointManager

OPERATIONS = ("rename", "replace", "unlink", "rmdir", "mkdir", "fsync", "open", "utime")
KILLED, SAVED = 9, 3


def end_at(number, end, setattr=setattr):
    """Lets the operation of this number, and every later one, call `end` instead."""
    count = 0

    def counted(operation):
        def act(*args, **kwargs):
            nonlocal count
            count += 1
            if count >= number:
                end()
            return operation(*args, **kwargs)

        return act

    def open_file(file, mode="r", *args, **kwargs):
        return (read if "r" in mode else write)(file, mode, *args, **kwargs)

    read, write = io.open, counted(io.open)
    setattr(io, "open", open_file)
    for name in OPERATIONS:
        setattr(os, name, counted(getattr(os, name)))


def saved_value(path):
    """The value in a checkpoint, of which every file is as it was written."""
    manifest = files.read_manifest(path)
    files.verify(path, manifest)
    return manifest["records"]["n"]["value"]


def in_new_process(act):
    """The exit code of a process that does this; it must not have started JAX."""
    child = os.fork()
    if child == 0:
        act()
        os._exit(SAVED)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class OnePath:
    """One path that is written again and again."""

    def save(self, folder, value):
        Checkpoint(n=value).write(folder / "best")

    def latest(self, folder):
        return folder / "best"


class Numbered:
    """A manager that keeps one checkpoint, so that it deletes in each save, too."""

    def save(self, folder, value):
        manager = CheckpointManager(Checkpoint(n=value), folder, 1)
        manager.save(checkpoint_number=value)

    def latest(self, folder):
        return pathlib.Path(latest_checkpoint(folder))


def leftovers(folder):
    """The names of what is no complete checkpoint, no list, and no data of a checkpoint."""
    found = [
        p.name for p in folder.iterdir() if p.name != "checkpoint" and not files.is_complete(p)
    ]
    for path in folder.iterdir():
        if path.is_dir():
            used = {files.MANIFEST, files.read_manifest(path)["data"]}
            found += [f"{path.name}/{name}" for name in os.listdir(path) if name not in used]
    return found


def kill_managers(folder):
    """Kills manager after manager, each at a later operation, until one is made."""
    number, ended = 0, KILLED
    while ended == KILLED:
        number += 1

        def make(number=number):
            end_at(number, lambda: os._exit(KILLED))
            CheckpointManager(Checkpoint(n=0), folder, 1)

        ended = in_new_process(make)
    assert ended == SAVED, ended
    return number - 1


def kill_everywhere(how, folder):
    """Kills saves, and then the managers that come after them, at every operation."""
    assert in_new_process(lambda: how.save(folder, 1)) == SAVED
    known, number, kills = 1, 0, 0
    ended = KILLED
    while ended == KILLED:
        number += 1
        value = known + 1

        def save(value=value, number=number):
            end_at(number, lambda: os._exit(KILLED))
            how.save(folder, value)

        ended = in_new_process(save)
        found = saved_value(how.latest(folder))
        assert found in ((value,) if ended == SAVED else (known, value)), (number, known, found)
        assert ended in (KILLED, SAVED), ended
        kills += (ended == KILLED) + kill_managers(folder)
        assert saved_value(how.latest(folder)) == found, number
        assert leftovers(folder) == [], (number, leftovers(folder))
        known = found
    print(kills, "kills,", number, "operations")
    assert number > 10


SAVES = {"one": OnePath, "numbered": Numbered}
