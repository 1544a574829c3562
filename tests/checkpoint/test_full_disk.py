"""A disk that takes no more is one short error, and costs no checkpoint that was there before."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import replicax as rx
from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.errors import CheckpointWriteError
from replicax.checkpoint.latest import latest_checkpoint
from replicax.checkpoint.manager import CheckpointManager
from tests.backend.fresh_process import ROOT

BLOCK = 4096

GROWS_TOO_LARGE = """
import resource, sys
import numpy as np
import replicax as rx

checkpoint = rx.Checkpoint(w=rx.Variable(np.zeros(8, np.float32)))
manager = rx.CheckpointManager(checkpoint, sys.argv[1], 3)
manager.save()
checkpoint.w = rx.Variable(np.random.default_rng(0).random((256, 256), np.float32))
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
manager.save(options=rx.CheckpointOptions(enable_async=sys.argv[2] == "async"))
manager.sync()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_file_that_may_not_grow_is_a_short_error_that_ends_the_program(how, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", GROWS_TOO_LARGE, str(tmp_path), how],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )

    last = [line for line in done.stderr.splitlines() if "CheckpointWriteError:" in line]
    assert len(last) == 1, done.stderr
    assert "ckpt-2 could not be written: File too large. Earlier checkpoints are" in last[0]
    assert len(done.stderr.splitlines()) < 40, done.stderr
    assert sorted(os.listdir(tmp_path)) == ["checkpoint", "ckpt-1"]
    Checkpoint(w=rx.Variable(np.ones(8, np.float32))).restore(latest_checkpoint(tmp_path))


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 1 MiB, for which one must be root."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "replicax-test", str(disk)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"this user cannot mount a disk: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def fill(disk, num_free):
    """Leaves so many blocks free."""
    space = os.statvfs(disk)
    (disk / "ballast").write_bytes(bytes((space.f_bavail - num_free) * BLOCK))


# Of several writes that fail, those after the first report to a loop that Orbax has closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
def test_wherever_the_disk_is_full_the_last_checkpoint_stays(small_disk):
    checkpoint = Checkpoint(w=rx.Variable(np.zeros((64, 64), np.float32)), n=0)
    folder = small_disk / "run"
    manager = CheckpointManager(checkpoint, folder, 1)
    noise, reached, failed = np.random.default_rng(0), None, 0

    for num_free in [100, *range(16)]:
        fill(small_disk, num_free)
        checkpoint.n = num_free
        checkpoint.w.assign(noise.random((64, 64), np.float32))
        try:
            manager.save()
            reached = num_free
        except CheckpointWriteError as error:
            assert len(str(error).splitlines()) == 1
            failed += "No space left on device" in str(error)
        (small_disk / "ballast").unlink()
        saved = Checkpoint(w=rx.Variable(np.zeros((64, 64), np.float32)), n=-1)
        saved.restore(latest_checkpoint(folder)).assert_consumed()
        assert saved.n == reached
        assert not [name for name in os.listdir(folder) if ".partial-" in name]
    assert failed > 4
    path = pathlib.Path(manager.save())
    assert sorted(os.listdir(folder)) == ["checkpoint", path.name]
