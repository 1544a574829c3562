"""An evaluator follows the checkpoints of another program."""

import itertools
import shutil
import subprocess
import sys

import pytest

import replicax as rx
from replicax import tf

TRAINING = """
import sys, time
import replicax as rx
step = rx.Variable(0)
manager = rx.CheckpointManager(rx.Checkpoint(step=step), sys.argv[1], max_to_keep=2)
for number in range(1, 4):
    step.assign(number)
    manager.save()
    sys.stdin.readline()  # until that one has been evaluated
"""


def test_each_checkpoint_of_another_program_is_given_once(tmp_path):
    folder = tmp_path / "saved"  # which is not there yet
    step = rx.Variable(0)
    checkpoint = rx.Checkpoint(step=step)
    seen = []
    with subprocess.Popen(
        [sys.executable, "-c", TRAINING, str(folder)], stdin=subprocess.PIPE, text=True
    ) as training:
        for path in rx.checkpoints_iterator(folder, timeout=60):
            checkpoint.restore(path).assert_consumed()
            seen.append(int(step))
            print(file=training.stdin, flush=True)
            if seen[-1] == 3:
                break
    assert seen == [1, 2, 3]
    assert training.returncode == 0


def test_what_was_overtaken_is_left_out_and_a_name_that_comes_again_is_given_again(tmp_path):
    checkpoint = rx.Checkpoint(epoch=1)
    paths = rx.checkpoints_iterator(tmp_path, timeout=0)
    first, second = checkpoint.save(tmp_path / "ckpt"), checkpoint.save(tmp_path / "ckpt")
    assert next(paths) == second != first
    shutil.rmtree(second)
    assert next(paths) == first  # the latest that is there
    again = rx.Checkpoint(epoch=2).write(tmp_path / "other")
    assert next(paths, None) is None, f"{again} is no checkpoint of the list"


def test_the_iterator_ends_when_the_time_is_over_and_timeout_fn_says_so(tmp_path):
    assert list(rx.checkpoints_iterator(tmp_path, timeout=0)) == []
    answers = iter([False, False, True])
    paths = rx.checkpoints_iterator(tmp_path, timeout=0, timeout_fn=lambda: next(answers))
    assert list(paths) == []
    assert list(answers) == []


def test_checkpoints_are_at_least_so_many_seconds_apart(tmp_path, monkeypatch):
    slept = []
    clock = itertools.count()
    monkeypatch.setattr("replicax.checkpoint.following.time.sleep", slept.append)
    monkeypatch.setattr("replicax.checkpoint.following.time.monotonic", lambda: next(clock))
    saved = rx.Checkpoint(epoch=1).save(tmp_path / "ckpt")
    paths = rx.checkpoints_iterator(tmp_path, min_interval_secs=100, timeout=0)
    assert list(paths) == [saved]
    assert slept == [99]


def test_arguments_that_cannot_be(tmp_path):
    assert tf.train.checkpoints_iterator is rx.checkpoints_iterator
    with pytest.raises(ValueError, match="min_interval_secs is -1; expected a number of seconds"):
        rx.checkpoints_iterator(tmp_path, min_interval_secs=-1)
    with pytest.raises(ValueError, match="timeout is -2; expected a number of seconds"):
        rx.checkpoints_iterator(tmp_path, timeout=-2)
