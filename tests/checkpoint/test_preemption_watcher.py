"""PreemptionWatcher: what it says, to whom it passes the signal on, and what it leaves behind."""

import os
import signal
import threading

import pytest

import replicax as rx
from replicax.core.errors import ContextError

Watcher = rx.experimental.PreemptionWatcher
TOLD = "this process was told to leave (SIGTERM)"


def tell():
    os.kill(os.getpid(), signal.SIGTERM)


def test_the_message_is_there_after_the_signal_and_not_before():
    with Watcher() as watcher:
        assert watcher.preemption_message is None
        watcher.block_until_worker_exit()  # nobody was told to
        tell()
        assert watcher.preemption_message == TOLD
        watcher.block_until_worker_exit()  # it does not wait for itself


def test_the_handler_that_was_there_is_called_and_comes_back():
    calls = []
    before = signal.signal(signal.SIGTERM, lambda *args: calls.append("mine"))
    mine = signal.getsignal(signal.SIGTERM)
    try:
        with Watcher() as watcher:
            tell()
            assert (watcher.preemption_message, calls) == (TOLD, ["mine"])
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_handler_of_checkpoints_beside_it_still_saves(tmp_path):
    left = []
    checkpoint = rx.Checkpoint(w=rx.Variable(1.0))
    config = rx.experimental.TerminationConfig(exit_fn=lambda: left.append(True))
    with (
        rx.experimental.PreemptionCheckpointHandler(None, checkpoint, tmp_path, config) as handler,
        Watcher() as watcher,
    ):
        handler.run(lambda: tell())
        assert watcher.preemption_message == TOLD
    assert left == [True]
    assert rx.latest_checkpoint(tmp_path) is not None


def test_signals_belong_to_the_main_thread():
    raised = []

    def make():
        with pytest.raises(ContextError, match="SIGTERM can be watched from the main thread only"):
            Watcher()
        raised.append(True)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert raised
