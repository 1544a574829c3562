"""A checkpoint that is not whole is refused with a reason, and never the latest."""

import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

import replicax as rx
from replicax.checkpoint import files
from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.errors import DamagedCheckpointError
from replicax.checkpoint.latest import latest_checkpoint
from replicax.checkpoint.manager import CheckpointManager
from replicax.core.notices import ReplicaxWarning
from tests.backend.fresh_process import ROOT
from tests.checkpoint.mid_save import half_written, stop_in_mid_save


def make(value=0.0):
    return Checkpoint(w=rx.Variable(np.full((64, 64), value, np.float32)), n=int(value))


def largest_file(path):
    found = [file for file in pathlib.Path(path).rglob("*") if file.is_file()]
    return max((f for f in found if f.name != files.MANIFEST), key=lambda f: f.stat().st_size)


def flip_a_bit(path):
    file = largest_file(path)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


def cut(path):
    file = largest_file(path)
    file.write_bytes(file.read_bytes()[:-10])


def lose(path):
    largest_file(path).unlink()


def lose_manifest(path):
    (pathlib.Path(path) / files.MANIFEST).unlink()


def cut_manifest(path):
    file = pathlib.Path(path) / files.MANIFEST
    file.write_text(file.read_text()[:-20])


def change_manifest(path):
    file = pathlib.Path(path) / files.MANIFEST
    text = file.read_text()
    changed = text.replace('"value": 2', '"value": 3')
    assert changed != text
    file.write_text(changed)


def is_empty(path):
    (pathlib.Path(path) / files.MANIFEST).write_text("")


DAMAGE = {
    "a flipped bit": (flip_a_bit, "was changed since it was written"),
    "a short file": (cut, r"has \d+ bytes instead of \d+"),
    "a lost file": (lose, "is missing"),
    "no manifest": (lose_manifest, f"{files.MANIFEST} is missing"),
    "half a manifest": (cut_manifest, f"{files.MANIFEST} cannot be read"),
    "another manifest": (change_manifest, f"{files.MANIFEST} was changed"),
    "an empty manifest": (is_empty, f"{files.MANIFEST} cannot be read"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_checkpoint_is_refused_with_a_reason_and_changes_nothing(name, tmp_path):
    damage, reason = DAMAGE[name]
    path = make(2.0).save(tmp_path / "ckpt")
    damage(path)
    target = make()

    with pytest.raises(DamagedCheckpointError, match=f"is damaged: .*{reason}"):
        target.restore(path)

    assert (target.w.numpy().max(), target.n) == (0, 0)


@pytest.mark.parametrize("name", [name for name in DAMAGE if name != "no manifest"])
def test_the_manager_uses_the_one_before_a_damaged_one(name, tmp_path):
    source = make(1.0)
    manager = CheckpointManager(source, tmp_path, 3)
    manager.save()
    source.w.assign(np.full((64, 64), 2, np.float32))
    source.n = 2
    DAMAGE[name][0](manager.save())
    target = make()

    with pytest.warns(ReplicaxWarning, match=f"passed over: .*ckpt-2 .*{DAMAGE[name][1]}"):
        restored = CheckpointManager(target, tmp_path, 3).restore_or_initialize()

    assert restored == str(tmp_path / "ckpt-1")
    assert (target.w.numpy().max(), target.n, int(target.save_counter)) == (1, 1, 1)


def replace_by_a_file(path):
    shutil.rmtree(path)
    path.write_text("notes of the user")


def replace_by_a_pipe(path):
    shutil.rmtree(path)
    os.mkfifo(path)


def replace_by_a_link(path):
    kept = path.rename(path.with_name("kept"))
    path.symlink_to(kept)


def replace_by_a_link_to_nothing(path):
    shutil.rmtree(path)
    path.symlink_to("nothing")


def replace_manifest_by_a_folder(path):
    (path / files.MANIFEST).unlink()
    (path / files.MANIFEST).mkdir()
    (path / files.MANIFEST / "notes").write_text("notes of the user")


@pytest.mark.filterwarnings("ignore:.*(passed over|used instead|in the way)")
@pytest.mark.parametrize("has_list", [True, False])
@pytest.mark.parametrize(
    "replace",
    [
        replace_by_a_file,
        replace_by_a_pipe,
        replace_by_a_link,
        replace_by_a_link_to_nothing,
        replace_manifest_by_a_folder,
    ],
)
def test_training_goes_on_where_something_else_lies_in_place_of_the_latest(
    replace, has_list, tmp_path
):
    source = make()
    manager = CheckpointManager(source, tmp_path, 5)
    for source.n in (1, 2, 3):
        manager.save()
    replace(tmp_path / "ckpt-3")
    if not has_list:
        (tmp_path / "checkpoint").unlink()
    target = make()
    manager = CheckpointManager(target, tmp_path, 5)
    assert manager.restore_or_initialize() == str(tmp_path / "ckpt-2")
    assert target.n == 2

    target.n = 4
    assert manager.save() == str(tmp_path / "ckpt-3")  # where the next one has to be

    again = make()
    assert CheckpointManager(again, tmp_path, 5).restore_or_initialize() is not None
    assert again.n == 4
    assert [p.name for p in tmp_path.iterdir() if files.DAMAGED in p.name]  # nothing was deleted
    if replace is replace_by_a_link:
        assert (tmp_path / "kept" / files.MANIFEST).is_file()


def test_if_all_are_damaged_the_run_does_not_start_over_silently(tmp_path):
    manager = CheckpointManager(make(1.0), tmp_path, 3, init_fn=lambda: pytest.fail("started"))
    for _ in range(2):
        flip_a_bit(manager.save())

    with (
        pytest.warns(ReplicaxWarning, match="passed over"),
        pytest.raises(DamagedCheckpointError, match=r"ckpt-1 is damaged"),
    ):
        manager.restore_or_initialize()


def test_a_checkpoint_of_another_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "VERSION", 99)
    path = make(1.0).save(tmp_path / "ckpt")
    monkeypatch.undo()

    with pytest.raises(DamagedCheckpointError, match="has format 99; this release reads format 2"):
        make().restore(path)


SAVES_FOR_EVER = """
import sys
import numpy as np
import replicax as rx
from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.manager import CheckpointManager
from replicax.checkpoint.options import CheckpointOptions

rx.set_virtual_devices(2)
with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    variables = [rx.Variable(np.zeros((256, 256), np.float32)) for _ in range(6)]
checkpoint = Checkpoint(variables=variables, n=0)
manager = CheckpointManager(checkpoint, sys.argv[1], 2)
manager.restore_or_initialize()
options = CheckpointOptions(enable_async=sys.argv[2] == "async")
while True:
    checkpoint.n += 1
    for variable in variables:
        variable.assign(np.full((256, 256), checkpoint.n, np.float32))
    print("saving", checkpoint.n, flush=True)
    manager.save(options=options)
"""


@pytest.mark.quick
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_process_killed_in_mid_save_leaves_a_whole_latest_checkpoint(how, tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    environment.pop("JAX_NUM_CPU_DEVICES", None)
    chance = random.Random(7)
    variables = [rx.Variable(np.zeros((256, 256), np.float32)) for _ in range(6)]
    checkpoint = Checkpoint(variables=variables, n=0)
    reached = 0
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVES_FOR_EVER, str(tmp_path), how],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            assert process.stdout is not None
            for _ in range(chance.randint(3, 5)):
                line = process.stdout.readline()
                assert line, process.stderr.read() if process.stderr else ""
            stop_in_mid_save(process, tmp_path, chance.randint(0, 60))
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        assert half_written(tmp_path)

        latest = latest_checkpoint(tmp_path)
        assert latest is not None
        checkpoint.restore(latest).assert_consumed()
        assert checkpoint.n > reached
        assert all((v.numpy() == checkpoint.n).all() for v in variables)
        reached = checkpoint.n
    manager = CheckpointManager(checkpoint, tmp_path, 2)
    manager.save()
    assert not [name for name in os.listdir(tmp_path) if ".partial-" in name or ".removed-" in name]
