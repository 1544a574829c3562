"""What a killed process left is deleted; what somebody may still be writing is not."""

import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

import replicax as rx
from replicax.checkpoint import files, leftovers, owners, parts
from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.errors import CheckpointWriteError
from replicax.checkpoint.latest import latest_checkpoint
from replicax.checkpoint.manager import CheckpointManager
from replicax.checkpoint.owners import Owned
from replicax.checkpoint.parts import Parts
from tests.backend.fresh_process import run_fresh
from tests.checkpoint.kills import saved_value

ELSEWHERE = "0123456789ab"


def make_manager(folder):
    return CheckpointManager(Checkpoint(n=0), folder, 2)


def partial_of(process, *, of="ckpt-3", start=None):
    """The name of a partial folder that this process might have made."""
    mine = Owned.by_this_process(of)
    found = owners._state_and_start(process.pid)
    assert found is not None
    return Owned(of, mine.space, process.pid, found[1] if start is None else start, mine.token).name


@pytest.fixture
def sleeper():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


# -- processes of this machine -----------------------------------------------------------------


def test_a_new_manager_leaves_a_save_in_progress_alone(tmp_path):
    begun = Parts.begin(tmp_path / "ckpt-1")

    make_manager(tmp_path)
    Checkpoint(n=5).write(tmp_path / "ckpt-1")

    begun.commit({"records": {"n": {"kind": "Python value", "value": 7}}, "aliases": {}})
    assert saved_value(tmp_path / "ckpt-1") == 7
    assert os.listdir(tmp_path) == ["ckpt-1"]
    assert len(os.listdir(tmp_path / "ckpt-1")) == 2


def test_parts_stay_as_long_as_their_process_runs(sleeper, tmp_path):
    half = tmp_path / partial_of(sleeper)
    (half / files.ARRAYS).mkdir(parents=True)
    os.utime(half, (0, 0))

    make_manager(tmp_path)
    assert half.exists()

    sleeper.kill()
    while owners._state_and_start(sleeper.pid)[0] != "Z":
        time.sleep(0.01)
    make_manager(tmp_path)  # nobody has asked yet how the process ended
    assert os.listdir(tmp_path) == []


def test_a_later_process_with_the_same_number_is_another_one(sleeper, tmp_path):
    (tmp_path / partial_of(sleeper, start=1)).mkdir()

    make_manager(tmp_path)

    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("pid", [0x7FFFFFFF, 10**30])
def test_parts_of_a_process_that_cannot_be_are_deleted(pid, tmp_path):
    mine = Owned.by_this_process("checkpoint")
    name = Owned("checkpoint", mine.space, pid, 5, mine.token).name
    (tmp_path / name).write_text("half a list")

    make_manager(tmp_path)

    assert os.listdir(tmp_path) == []


def test_what_is_not_ours_stays(tmp_path):
    names = ["notes.partial", "ckpt-3.partial", "ckpt-3.removed", "ckpt-3.partial-1-2-3-4"]
    for name in names:
        (tmp_path / name).mkdir()

    make_manager(tmp_path)

    assert sorted(os.listdir(tmp_path)) == sorted(names)


def test_a_save_deletes_what_an_earlier_process_left(sleeper, tmp_path):
    (tmp_path / partial_of(sleeper, start=1)).mkdir()

    Checkpoint(n=1).write(tmp_path / "ckpt")

    assert os.listdir(tmp_path) == ["ckpt"]


# -- processes of other machines ---------------------------------------------------------------


def test_parts_of_another_machine_go_when_it_gives_no_sign_of_life(tmp_path, monkeypatch):
    begun = Parts.begin(tmp_path / "ckpt-1")
    before = time.time() - owners.STALE_SECONDS - 60
    monkeypatch.setattr(owners, "_space", lambda: ELSEWHERE)

    os.utime(begun.folder, (before, before))
    make_manager(tmp_path)
    assert begun.folder.exists()

    os.utime(begun.folder / owners.SIGN, (before, before))
    make_manager(tmp_path)
    assert os.listdir(tmp_path) == []
    begun.abandon()


def test_an_owner_gives_signs_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "BEAT_SECONDS", 0.01)
    begun = Parts.begin(tmp_path / "ckpt-1")
    sign = begun.folder / owners.SIGN
    os.utime(sign, (0, 0))

    end = time.monotonic() + 10
    while sign.stat().st_mtime == 0:
        assert time.monotonic() < end
        time.sleep(0.01)
    begun.abandon()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("is_replacing", [False, True])
def test_an_owner_that_was_thought_dead_fails_and_damages_nothing(
    is_replacing, tmp_path, monkeypatch
):
    path = tmp_path / "best"
    if is_replacing:
        Checkpoint(n=1).write(path)
    begun = Parts.begin(path)
    (begun.data / "whole").write_text("written before")
    with monkeypatch.context() as patches:
        patches.setattr(owners, "_space", lambda: ELSEWHERE)
        for sign in (begun.folder, begun.folder / owners.SIGN):
            os.utime(sign, (0, 0))
        make_manager(tmp_path)
    begun.data.mkdir(parents=True)  # as a library that goes on writing makes it again
    (begun.data / "half").write_text("written after")

    with pytest.raises(CheckpointWriteError, match=r"best were deleted while it was written, .*"):
        begun.commit({"records": {}, "aliases": {}})

    begun.abandon()
    assert os.listdir(tmp_path) == (["best"] if is_replacing else [])
    assert not is_replacing or saved_value(path) == 1


def test_data_that_is_about_to_be_named_stays(tmp_path):
    path = tmp_path / "best"
    Checkpoint(n=1).write(path)
    begun = Parts.begin(path)
    begun.data.rename(path / begun.data.name)  # the first half of replacing a checkpoint

    make_manager(tmp_path)
    assert (path / begun.data.name).exists()

    begun.abandon()
    make_manager(tmp_path)
    assert not (path / begun.data.name).exists()
    assert saved_value(path) == 1


# -- links -------------------------------------------------------------------------------------


def test_what_a_link_leads_to_is_never_touched(sleeper, tmp_path):
    other, folder = tmp_path / "other", tmp_path / "run"
    kept = Checkpoint(n=4).write(other / "ckpt-1")
    folder.mkdir()
    links = ["ckpt-9.partial", partial_of(sleeper, start=1), f"ckpt-8.removed-{'0' * 16}"]
    for name in links:
        (folder / name).symlink_to(kept)

    make_manager(folder).save()

    assert saved_value(pathlib.Path(kept)) == 4
    assert sorted(os.listdir(folder)) == sorted([*links, "checkpoint", "ckpt-1"])


def test_a_link_is_not_saved_through(tmp_path):
    kept = Checkpoint(n=4).write(tmp_path / "other")
    (tmp_path / "ckpt-1").symlink_to(kept)

    with pytest.warns(rx.ReplicaxWarning, match="ckpt-1 was no checkpoint"):
        saved = Checkpoint(n=5).save(tmp_path / "ckpt")

    assert saved_value(pathlib.Path(saved)) == 5
    assert saved_value(pathlib.Path(kept)) == 4


# -- deleting ----------------------------------------------------------------------------------


def test_a_checkpoint_whose_deletion_was_interrupted_is_deleted_by_the_next_manager(
    tmp_path, monkeypatch
):
    manager = make_manager(tmp_path)
    path = pathlib.Path(manager.save())
    with monkeypatch.context() as patches:
        patches.setattr(files, "delete", lambda path: None)  # as if killed here
        files.remove(path)
    assert [name for name in os.listdir(tmp_path) if name.startswith("ckpt-1.removed-")]
    assert latest_checkpoint(tmp_path) is None

    make_manager(tmp_path)

    assert os.listdir(tmp_path) == ["checkpoint"]


def test_a_folder_that_may_only_be_read_is_no_problem(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError("read only")

    (tmp_path / f"ckpt-8.removed-{'0' * 16}").mkdir()
    (tmp_path / Owned("ckpt-1", ELSEWHERE, 1, 1, "0" * 16).name).mkdir()
    monkeypatch.setattr(os, "rename", refuse)
    monkeypatch.setattr(owners, "_time_in", refuse)
    leftovers.collect(tmp_path)
    leftovers.collect(tmp_path / "nothing")
    assert len(os.listdir(tmp_path)) == 1


# -- an evaluator beside a trainer -------------------------------------------------------------


SAVES_TWENTY_TIMES = """
    import numpy as np, replicax as rx
    rx.set_virtual_devices(2)
    with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        variables = [rx.Variable(np.zeros((256, 256), np.float32)) for _ in range(6)]
    manager = rx.CheckpointManager(rx.Checkpoint(variables=variables), {folder!r}, 3)
    for _ in range(20):
        manager.save()
    print([path.rpartition("-")[2] for path in manager.checkpoints])
"""


@pytest.mark.slow
def test_managers_made_beside_a_trainer_disturb_no_save(tmp_path):
    evaluator = (
        f"import replicax as rx\n"
        f"while True: rx.CheckpointManager(rx.Checkpoint(n=0), {str(tmp_path)!r}, 1)"
    )
    with subprocess.Popen([sys.executable, "-c", evaluator]) as process:
        try:
            printed = run_fresh(SAVES_TWENTY_TIMES.format(folder=str(tmp_path)))
            assert process.poll() is None
        finally:
            process.kill()
    assert printed.strip() == "['18', '19', '20']"
    variables = [rx.Variable(np.ones((256, 256), np.float32)) for _ in range(6)]
    Checkpoint(variables=variables).restore(latest_checkpoint(tmp_path)).assert_consumed()
    assert not any(variable.numpy().any() for variable in variables)
