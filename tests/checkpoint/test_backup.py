"""A loop with `BackupAndRestore` does, in several processes, what it would have done in one."""

import os
import signal

import numpy as np
import pytest

import replicax as rx
from replicax.experimental import TerminationConfig
from tests.checkpoint.training import Training, assert_same_bits


@pytest.mark.parametrize("enable_async", [False, True])
def test_a_loop_that_failed_goes_on_from_the_last_save_with_the_same_bits(
    enable_async, two, tmp_path
):
    whole = Training(two).steps(5).state()
    done = []

    def train(fails_at):
        training = Training(two)
        backup = rx.BackupAndRestore(
            training.checkpoint, tmp_path, every=2, enable_async=enable_async
        )
        for step in backup.steps(5):
            training.step()
            done.append(step)
            if step == fails_at:
                backup.manager.sync()  # the end of a process waits for it
                raise OSError("the disk is gone")
        return training, backup

    with pytest.raises(OSError, match="the disk is gone"):
        train(fails_at=2)
    training, backup = train(fails_at=None)

    assert done == [0, 1, 2, 2, 3, 4]
    assert backup.step == 5
    assert_same_bits(whole, training.state())


def make(folder, **options):
    checkpoint = rx.Checkpoint(w=rx.Variable(0.0))
    manager = rx.CheckpointManager(checkpoint, folder, None)
    return checkpoint, rx.BackupAndRestore(manager, **options)


def saved(backup):
    return [path.rpartition("/")[2] for path in backup.manager.checkpoints]


@pytest.mark.parametrize(("every", "count"), [(None, 1), (1, 6), (4, 2), (3, 2), (100, 1)])
def test_it_saves_every_n_steps_and_at_the_end(every, count, tmp_path):
    _, backup = make(tmp_path, every=every)
    assert list(backup.steps(6)) == list(range(6))
    assert len(saved(backup)) == count


def test_a_loop_that_is_done_is_restored_and_does_nothing(tmp_path):
    checkpoint, backup = make(tmp_path)
    for _ in backup.steps(3):
        checkpoint.w.assign_add(1.0)
    again, backup = make(tmp_path)
    assert list(backup.steps(3)) == []
    assert (again.w.numpy(), backup.step, saved(backup)) == (3, 3, ["ckpt-1"])


def test_a_later_loop_of_the_same_object_goes_on_without_restoring(tmp_path):
    checkpoint, backup = make(tmp_path, every=1)
    list(backup.steps(2))
    checkpoint.w.assign(7.0)
    assert list(backup.steps(4)) == [2, 3]
    assert checkpoint.w.numpy() == 7


def test_a_loop_that_is_left_early_saves_nothing_more(tmp_path):
    _, backup = make(tmp_path, every=2)
    for step in backup.steps(10):
        if step == 2:
            break
    assert saved(backup) == ["ckpt-1"]
    assert backup.step == 2


def test_sigterm_ends_the_loop_after_the_step_and_a_new_one_goes_on(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    seen = []
    with pytest.raises(SystemExit, match="75"):
        for step in make(tmp_path, termination_config=TerminationConfig())[1].steps(6):
            seen.append(step)
            if step == 2:
                os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN  # it would have ended

    _, backup = make(tmp_path, termination_config=TerminationConfig())
    seen += backup.steps(6)
    assert seen == list(range(6))
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_checkpoint_saved_without_it_begins_at_step_0(tmp_path):
    source = rx.Checkpoint(w=rx.Variable(np.float32(3)))
    rx.CheckpointManager(source, tmp_path, 1).save()
    checkpoint, backup = make(tmp_path)
    assert list(backup.steps(2)) == [0, 1]
    assert checkpoint.w.numpy() == 3


def test_mistakes_are_named(tmp_path):
    with pytest.raises(ValueError, match="every is 0; expected 1 step or more, or None"):
        make(tmp_path, every=0)
    with pytest.raises(ValueError, match="checkpoint_dir is None"):
        rx.BackupAndRestore(rx.Checkpoint(n=1))
