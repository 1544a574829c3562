"""The file that lists the checkpoints of a folder may be lost or damaged: nothing else is."""

import json
import os
import pathlib
import shutil

import pytest

import replicax as rx
from replicax.checkpoint import files, latest
from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.latest import STATE_FILE, latest_checkpoint
from replicax.checkpoint.manager import CheckpointManager
from replicax.core.notices import ReplicaxWarning


def names(paths):
    return [os.path.basename(path) for path in paths]


def save_three(folder):
    manager = CheckpointManager(Checkpoint(n=0), folder, 3)
    for n in range(1, 4):
        manager.checkpoint.n = n
        manager.save()
    return manager


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    folder = tmp_path_factory.mktemp("three")
    save_three(folder)
    return folder


def replace(folder, content):
    (folder / STATE_FILE).write_text(content if isinstance(content, str) else json.dumps(content))


def listed(*pairs, **others):
    return {"version": 1, "checkpoints": list(pairs), "preserved": []} | others


def lose(folder):
    (folder / STATE_FILE).unlink()


def cut(folder):
    file = folder / STATE_FILE
    file.write_text(file.read_text()[:-9])


def make_folder(folder):
    lose(folder)
    (folder / STATE_FILE).mkdir()


def link(folder):
    lose(folder)
    (folder / STATE_FILE).symlink_to("/dev/zero")


DAMAGE = {
    "missing": (lose, "is missing"),
    "cut": (cut, "cannot be used: "),
    "empty": (lambda folder: replace(folder, ""), "cannot be used: "),
    "no text": (lambda folder: (folder / STATE_FILE).write_bytes(b"\xff\xfe"), "cannot be used: "),
    "nested": (lambda folder: replace(folder, "[" * 100_000), "cannot be used: "),
    "long number": (lambda folder: replace(folder, "9" * 5000), "cannot be used: "),
    "a list": (lambda folder: replace(folder, []), "it is no list of format 1"),
    "another format": (lambda folder: replace(folder, listed(version=2)), "no list of format 1"),
    "no names": (lambda folder: replace(folder, listed(checkpoints=3)), "it has no lists of names"),
    "no time": (lambda folder: replace(folder, listed(["ckpt-1", "x"])), "it has the entry"),
    "NaN": (lambda folder: replace(folder, listed(["ckpt-1", float("nan")])), "it has the entry"),
    "no pair": (lambda folder: replace(folder, listed("ckpt-1")), "it has the entry ckpt-1"),
    "a number": (lambda folder: replace(folder, listed([3, 3.0])), "has '3', which is no name"),
    "outside": (
        lambda folder: replace(folder, listed(["../other/ckpt-1", 1.0])),
        r"has '\.\./other/ckpt-1', which is no name in this folder",
    ),
    "absolute": (lambda folder: replace(folder, listed(["/", 1.0])), "has '/', which is no name"),
    "above": (lambda folder: replace(folder, listed(preserved=[".."])), r"has '\.\.', which is no"),
    "a folder": (make_folder, "is a link, a folder or a device instead of a file"),
    "a link": (link, "is a link, a folder or a device instead of a file"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_run_goes_on_from_the_latest_checkpoint(name, three, tmp_path):
    damage, reason = DAMAGE[name]
    shutil.copytree(three, tmp_path / "other")
    shutil.copytree(three, tmp_path / "run")
    damage(tmp_path / "run")
    checkpoint = Checkpoint(n=0)

    with pytest.warns(ReplicaxWarning, match=f"run/checkpoint, which lists .*{reason}"):
        manager = CheckpointManager(
            checkpoint, tmp_path / "run", 2, init_fn=lambda: pytest.fail("started again")
        )
        assert names([manager.restore_or_initialize()]) == ["ckpt-3"]

    assert checkpoint.n == 3
    if name != "a folder":  # which stays in the way, and the save says so
        assert names([manager.save(), *manager.checkpoints]) == ["ckpt-4", "ckpt-3", "ckpt-4"]
        assert not latest.Listing(tmp_path / "run").is_rebuilt
    assert names(CheckpointManager(checkpoint, tmp_path / "other", 3).checkpoints) == [
        "ckpt-1",
        "ckpt-2",
        "ckpt-3",
    ]


def test_the_order_is_that_of_saving_also_after_a_copy(tmp_path):
    manager = save_three(tmp_path / "run")
    manager.checkpoint.restore(tmp_path / "run" / "ckpt-1")
    manager.save()
    lose(tmp_path / "run")
    for path in sorted((tmp_path / "run").iterdir()):
        shutil.copytree(path, tmp_path / "copy" / path.name, copy_function=shutil.copyfile)

    with pytest.warns(ReplicaxWarning, match=r"\['ckpt-1', 'ckpt-3', 'ckpt-2'\]"):
        assert latest_checkpoint(tmp_path / "copy") == str(tmp_path / "copy" / "ckpt-2")


def test_only_numbered_saves_are_listed(tmp_path):
    checkpoint = Checkpoint(n=0)
    checkpoint.save(tmp_path / "c")
    checkpoint.write(tmp_path / "written-7")
    (tmp_path / "logs-8").mkdir()
    lose(tmp_path)

    with pytest.warns(ReplicaxWarning, match=r"instead: \['c-1'\]"):
        assert latest_checkpoint(tmp_path) == str(tmp_path / "c-1")


def test_a_folder_without_saves_has_lost_nothing(tmp_path):
    assert latest_checkpoint(tmp_path / "nothing") is None
    Checkpoint(n=0).write(tmp_path / "written-7")
    assert latest_checkpoint(tmp_path) is None


def test_a_damaged_checkpoint_is_passed_over_and_not_forgotten(tmp_path):
    save_three(tmp_path)
    lose(tmp_path)
    (tmp_path / "ckpt-3" / files.MANIFEST).write_text("")
    checkpoint = Checkpoint(n=0)
    manager = CheckpointManager(checkpoint, tmp_path, 3)

    with (
        pytest.warns(ReplicaxWarning, match="is missing. Their own times"),
        pytest.warns(ReplicaxWarning, match="passed over: .*ckpt-3 is damaged"),
    ):
        manager.restore_or_initialize()

    assert checkpoint.n == 2


def test_checkpoints_without_manifests_do_not_let_a_run_start_over_silently(tmp_path):
    manager = save_three(tmp_path)
    for number in (1, 2, 3):
        (tmp_path / f"ckpt-{number}" / files.MANIFEST).unlink()

    with (
        pytest.warns(ReplicaxWarning, match="passed over"),
        pytest.raises(rx.ReplicaxError, match=r"ckpt-1 is damaged: replicax\.json is missing"),
    ):
        manager.restore_or_initialize()


def test_a_linked_checkpoint_is_neither_listed_nor_deleted(three, tmp_path):
    shutil.copytree(three, tmp_path / "other")
    manager = save_three(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "ckpt-1")
    (tmp_path / "run" / "ckpt-1").symlink_to(tmp_path / "other" / "ckpt-1")

    with pytest.warns(ReplicaxWarning, match="it has 'ckpt-1', which is a link"):
        assert names(manager.checkpoints) == ["ckpt-2", "ckpt-3"]
    for _ in range(4):
        manager.save()

    assert files.is_complete(tmp_path / "other" / "ckpt-1")


def test_what_was_kept_for_good_stays(tmp_path):
    manager = CheckpointManager(Checkpoint(n=0), tmp_path, 1, keep_checkpoint_every_n_hours=1e-9)
    for _ in range(4):
        manager.save()
    lose(tmp_path)

    with pytest.warns(ReplicaxWarning, match="is missing"):
        again = CheckpointManager(Checkpoint(n=0), tmp_path, 1, keep_checkpoint_every_n_hours=1000)
        again.save(checkpoint_number=5)

    assert sorted(os.listdir(tmp_path)) == ["checkpoint", "ckpt-1", "ckpt-2", "ckpt-3", "ckpt-5"]
    assert names(again.checkpoints) == ["ckpt-5"]


def test_nobody_sees_a_first_save_without_its_list(tmp_path, monkeypatch):
    seen = []
    real = files.sync_folder

    def look(path):
        seen.append(latest_checkpoint(tmp_path))  # a warning would be an error
        real(path)

    monkeypatch.setattr(files, "sync_folder", look)
    path = Checkpoint(n=1).save(tmp_path / "c")

    assert None in seen
    assert latest_checkpoint(tmp_path) == path
    assert pathlib.Path(path).is_dir()
