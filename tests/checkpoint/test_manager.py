"""The manager: which checkpoints are kept, and where a run continues."""

import itertools
import os
import pathlib

import pytest

import replicax as rx
from replicax.checkpoint import files, latest
from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.latest import latest_checkpoint
from replicax.checkpoint.manager import CheckpointManager
from replicax.checkpoint.options import CheckpointOptions


def names(paths):
    return [os.path.basename(path) for path in paths]


def test_as_many_are_kept_as_were_asked_for(tmp_path):
    checkpoint = Checkpoint(n=0)
    manager = CheckpointManager(checkpoint, tmp_path / "run", 2, checkpoint_name="model")

    for n in range(4):
        checkpoint.n = n
        manager.save()

    assert names(manager.checkpoints) == ["model-3", "model-4"]
    assert sorted(os.listdir(tmp_path / "run")) == ["checkpoint", "model-3", "model-4"]
    assert manager.latest_checkpoint == latest_checkpoint(tmp_path / "run")
    assert manager.directory == str(tmp_path / "run")
    assert manager.checkpoint is checkpoint


def test_all_are_kept_if_there_is_no_limit(tmp_path):
    manager = CheckpointManager(Checkpoint(n=0), tmp_path, max_to_keep=None)

    for _ in range(3):
        manager.save()

    assert names(manager.checkpoints) == ["ckpt-1", "ckpt-2", "ckpt-3"]


def test_a_new_manager_continues_where_the_last_one_stopped(tmp_path):
    checkpoint = Checkpoint(n=0)
    manager = CheckpointManager(checkpoint, tmp_path, 2)
    for n in range(3):
        checkpoint.n = n
        manager.save()
    later = Checkpoint(n=-1)
    again = CheckpointManager(later, tmp_path, 2)

    assert again.restore_or_initialize() == manager.latest_checkpoint
    assert later.n == 2
    assert names([again.save(), *again.checkpoints]) == ["ckpt-4", "ckpt-3", "ckpt-4"]


def test_without_a_checkpoint_the_init_function_is_called(tmp_path):
    calls = []
    manager = CheckpointManager(
        Checkpoint(n=0), tmp_path, 1, init_fn=lambda: calls.append("initialised")
    )

    assert manager.restore_or_initialize() is None
    manager.save()
    manager.restore_or_initialize()
    assert calls == ["initialised"]
    assert manager.latest_checkpoint is not None


def test_a_number_can_be_given(tmp_path):
    manager = CheckpointManager(Checkpoint(n=0), tmp_path, 5)

    assert names([manager.save(checkpoint_number=rx.Variable(70)), manager.save(9)]) == [
        "ckpt-70",
        "ckpt-9",
    ]
    assert names(manager.checkpoints) == ["ckpt-70", "ckpt-9"]


def test_saves_are_an_interval_of_steps_apart(tmp_path):
    step = rx.Variable(0)
    manager = CheckpointManager(
        Checkpoint(step=step), tmp_path, None, step_counter=step, checkpoint_interval=3
    )

    saved_at = []
    for _ in range(8):
        step.assign_add(1)
        if manager.save() is not None:
            saved_at.append(int(step))

    assert saved_at == [1, 4, 7]
    assert manager.checkpoint_interval == 3
    assert manager.save(check_interval=False) is not None
    manager.restore_or_initialize()
    assert manager.save() is None


def test_one_in_so_many_hours_is_kept_for_good(tmp_path, monkeypatch):
    checkpoint = Checkpoint(n=0)
    manager = CheckpointManager(checkpoint, tmp_path, 1, keep_checkpoint_every_n_hours=2)
    start, hours = latest.now(), itertools.count(1)
    monkeypatch.setattr(latest, "now", lambda: start + 3600 * next(hours))

    for _ in range(6):
        manager.save()

    assert sorted(os.listdir(tmp_path)) == ["checkpoint", "ckpt-2", "ckpt-4", "ckpt-6"]
    assert names(manager.checkpoints) == ["ckpt-6"]
    monkeypatch.undo()
    again = CheckpointManager(checkpoint, tmp_path, 1, keep_checkpoint_every_n_hours=1000)
    again.save()
    assert sorted(os.listdir(tmp_path)) == ["checkpoint", "ckpt-2", "ckpt-4", "ckpt-7"]


def test_background_saves_are_managed_too(tmp_path):
    manager = CheckpointManager(Checkpoint(w=rx.Variable(1.0)), tmp_path, 2)

    for _ in range(4):
        manager.save(options=CheckpointOptions(enable_async=True))
    manager.sync()

    assert names(manager.checkpoints) == ["ckpt-3", "ckpt-4"]


def test_the_folder_can_be_moved(tmp_path):
    CheckpointManager(Checkpoint(n=3), tmp_path / "old", 2).save()
    (tmp_path / "old").rename(tmp_path / "new")
    checkpoint = Checkpoint(n=0)

    CheckpointManager(checkpoint, tmp_path / "new", 2).restore_or_initialize()

    assert checkpoint.n == 3


def test_a_checkpoint_deleted_by_hand_is_not_listed(tmp_path):
    manager = CheckpointManager(Checkpoint(n=3), tmp_path, None)
    manager.save()
    files.remove(pathlib.Path(manager.save() or ""))

    assert names(manager.checkpoints) == ["ckpt-1"]
    assert "ckpt-1" in repr(manager)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"max_to_keep": 0}, ValueError, "max_to_keep is 0; expected 1 or more"),
        ({"checkpoint_interval": 5}, ValueError, "there is no step_counter"),
        ({"checkpoint_name": "a/b"}, ValueError, "checkpoint_name is 'a/b'"),
        ({"checkpoint": 3}, TypeError, "got 3 of type int; expected a Checkpoint"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, error, text, tmp_path):
    defaults = {"checkpoint": Checkpoint(n=0), "directory": tmp_path, "max_to_keep": 1}

    with pytest.raises(error, match=text):
        CheckpointManager(**(defaults | arguments))
