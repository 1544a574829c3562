"""Signals to the launcher are taken in at any moment, and none makes it wait for ever."""

import signal
import threading

import pytest

from replicax.launch.interruption import Interruption

NUM_SIGNALS = 100_000  # most come while an earlier one is taken in, and count as one


@pytest.mark.timeout(60)
def test_signals_that_come_while_it_waits_and_while_it_takes_in_others():
    # It was a deadlock: the handler waited for a lock which the code that it interrupted held.
    main = threading.get_ident()
    interruption = Interruption()

    def send():
        for _ in range(NUM_SIGNALS):
            signal.pthread_kill(main, signal.SIGTERM)

    with interruption.installed():
        sender = threading.Thread(target=send)
        sender.start()
        while sender.is_alive():
            interruption.wait(0.001)
        sender.join()
    assert 0 < interruption.count <= NUM_SIGNALS
    assert interruption.first == signal.SIGTERM


def test_a_signal_ends_a_wait_and_every_later_one():
    interruption = Interruption()
    assert not interruption.wait(0.01)
    timer = threading.Timer(0.05, interruption.add, (signal.SIGINT,))
    timer.start()
    assert interruption.wait(60.0)
    assert interruption.wait(60.0)
    timer.join()
