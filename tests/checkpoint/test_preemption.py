"""A process without a cluster that is told to leave saves first, and goes on when started again."""

import contextlib
import os
import signal
import sys
import threading
import time

import pytest

import replicax as rx
from replicax.checkpoint.latest import latest_checkpoint
from replicax.checkpoint.team import current_team
from replicax.checkpoint.termination import Notice
from replicax.core.errors import ContextError
from replicax.experimental import PreemptionCheckpointHandler, TerminationConfig
from replicax.launch.exit_codes import PREEMPTED
from tests.checkpoint.training import Training, assert_same_bits


def tell_to_leave():
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(autouse=True)
def handler_before():
    """Fails a test after which SIGTERM does something else than before."""

    def handle(number, frame):
        pytest.fail("SIGTERM was not handled")

    before = signal.signal(signal.SIGTERM, handle)
    yield handle
    after = signal.signal(signal.SIGTERM, before)
    assert after is handle


@contextlib.contextmanager
def leaving():
    """What ends the process, where no test ran in it."""
    with pytest.raises(SystemExit, match="75") as caught:
        yield caught
    tell_to_leave()  # does nothing any more
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    Notice(current_team(), None).close()  # the process goes on after all


def make(folder, **config):
    checkpoint = rx.Checkpoint(w=rx.Variable(0.0))
    handler = PreemptionCheckpointHandler(
        None, checkpoint, folder, TerminationConfig(**config) if config else None
    )
    return checkpoint, handler


def test_sigterm_lets_the_run_end_then_saves_and_leaves_with_the_documented_code(tmp_path):
    checkpoint, handler = make(tmp_path)

    def step(amount):
        if handler.total_run_calls == 2:
            tell_to_leave()
        checkpoint.w.assign_add(amount)  # the step that is under way is finished
        return "done"

    assert handler.run(step, 1.0) == "done"
    assert handler.run(step, amount=1.0) == "done"
    assert latest_checkpoint(tmp_path) is None
    with leaving() as caught:
        handler.run(step, 1.0)
    assert caught.value.code == PREEMPTED

    again, handler = make(tmp_path)
    with handler:
        assert (float(again.w.numpy()), handler.total_run_calls) == (3, 3)


def test_a_preempted_training_goes_on_with_the_same_bits(few, tmp_path):
    whole = Training(few).steps(4).state()
    first = Training(few)
    handler = PreemptionCheckpointHandler(None, first.checkpoint, tmp_path)
    handler.run(first.step)
    tell_to_leave()
    with leaving():
        handler.run(first.step)
    second = Training(few)

    with PreemptionCheckpointHandler(None, second.checkpoint, tmp_path) as handler:
        while handler.total_run_calls < 4:
            handler.run(second.step)

    assert_same_bits(whole, second.state())


def test_a_watcher_function_is_asked_until_it_says_so(tmp_path):
    asked = threading.Event()
    left = []
    checkpoint, handler = make(
        tmp_path,
        termination_watcher_fn=lambda: asked.set() or True,
        exit_fn=lambda: left.append(float(checkpoint.w.numpy())),
    )
    assert asked.wait(30)
    deadline = time.monotonic() + 30

    while not handler.is_preempted:
        handler.run(checkpoint.w.assign_add, 1.0)
        assert time.monotonic() < deadline
    handler.run(checkpoint.w.assign_add, 1.0)  # an exit_fn that returns is not called again

    assert left == [float(checkpoint.w.numpy()) - 1]
    assert latest_checkpoint(tmp_path) is not None


def test_in_the_grace_period_it_trains_on_and_saves_again_at_the_end(tmp_path):
    saved = []
    checkpoint, handler = make(
        tmp_path,
        grace_period=0.4,
        exit_fn=lambda: saved.append("left"),
        save_fn=lambda: saved.append(handler.total_run_calls),
    )
    tell_to_leave()
    began = time.monotonic()
    while not handler.is_preempted:
        handler.run(checkpoint.w.assign_add, 1.0)

    assert 0.3 < time.monotonic() - began < 30
    assert saved[0] == 1
    assert saved[1] == handler.total_run_calls > 1
    assert saved[2] == "left"


def test_loops_without_run_ask_themselves_and_pass_arguments_on(tmp_path):
    checkpoint = rx.Checkpoint(w=rx.Variable(0.0))
    manager = rx.CheckpointManager(checkpoint, tmp_path, 3)
    handler = PreemptionCheckpointHandler(None, manager)
    handler.save_checkpoint_if_preempted(checkpoint_number=9)
    tell_to_leave()
    with leaving():
        handler.save_checkpoint_if_preempted(checkpoint_number=9)
    assert manager.latest_checkpoint == str(tmp_path / "ckpt-9")


def test_a_manager_saves_on_preemption_also_within_its_interval(tmp_path):
    checkpoint = rx.Checkpoint(n=1)
    manager = rx.CheckpointManager(
        checkpoint, tmp_path, 3, step_counter=5, checkpoint_interval=100, last_checkpoint_step=4
    )
    handler = PreemptionCheckpointHandler(None, manager)
    assert manager.save() is None
    tell_to_leave()
    with leaving():
        handler.run(lambda: None)
    assert manager.latest_checkpoint is not None


def test_a_scope_saves_at_its_end(tmp_path):
    checkpoint, handler = make(tmp_path)
    with leaving(), handler.watch_preemption_scope():
        tell_to_leave()
        checkpoint.w.assign(4.0)
    again, handler = make(tmp_path)
    handler.close()
    assert float(again.w.numpy()) == 4


def test_a_handler_that_is_closed_or_forgotten_gives_sigterm_back(tmp_path, handler_before):
    _, handler = make(tmp_path)
    assert signal.getsignal(signal.SIGTERM) is not handler_before
    handler.close()
    handler.close()
    assert signal.getsignal(signal.SIGTERM) is handler_before
    _, handler = make(tmp_path)
    del handler
    assert signal.getsignal(signal.SIGTERM) is handler_before


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_process_that_leaves_ignores_sigterm_until_it_makes_another_handler(
    is_closed, handler_before, tmp_path
):
    checkpoint, handler = make(tmp_path, exit_fn=lambda: sys.exit(7))
    tell_to_leave()
    with pytest.raises(SystemExit, match="7"), handler if is_closed else contextlib.nullcontext():
        handler.run(checkpoint.w.assign_add, 1.0)
    handler.close()
    del handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    make(tmp_path)[1].close()
    assert signal.getsignal(signal.SIGTERM) is handler_before


def test_a_checkpoint_saved_without_a_handler_is_no_mismatch(tmp_path):
    source = rx.Checkpoint(w=rx.Variable(5.0))
    rx.CheckpointManager(source, tmp_path, 1).save()
    checkpoint, handler = make(tmp_path)
    with handler:
        assert (float(checkpoint.w.numpy()), handler.total_run_calls) == (5, 0)


def test_mistakes_are_named(tmp_path):
    checkpoint = rx.Checkpoint(n=1)
    with pytest.raises(ValueError, match="checkpoint_dir is None, so there is no folder for"):
        PreemptionCheckpointHandler(None, checkpoint)
    with pytest.raises(TypeError, match=r"expected a Checkpoint"):
        PreemptionCheckpointHandler(None, 3, tmp_path)
    with pytest.raises(TypeError, match="termination_config is 5; expected a TerminationConfig"):
        PreemptionCheckpointHandler(None, checkpoint, tmp_path, 5)
    with pytest.raises(TypeError, match="exit_fn is 75; expected a function or None"):
        TerminationConfig(exit_fn=75)
    with pytest.raises(ValueError, match="grace_period is -1; expected seconds, 0 or more"):
        TerminationConfig(grace_period=-1)


def test_outside_the_main_thread_sigterm_cannot_be_watched(tmp_path):
    found = []

    def create():
        try:
            make(tmp_path)
        except ContextError as error:
            found.append(str(error))

    thread = threading.Thread(target=create, name="other")
    thread.start()
    thread.join()
    assert found and "from the main thread only, and this is the thread 'other'" in found[0]
