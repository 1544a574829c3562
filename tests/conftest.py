"""Chooses the backend of Keras; a fixture for all tests: Ctrl-C at a chosen moment."""

import gc
import os
import signal

import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")  # before anything imports it

SHOOT_AGAIN_AFTER = 1.0  # seconds; Python drops what a finalizer or a gc callback raises


@pytest.fixture
def interrupted():
    """``interrupted(call, seconds)``: calls, with Ctrl-C after that time; whether it came out.

    Shoots again and again until it comes out.
    """

    def interrupt(signum, frame):
        raise KeyboardInterrupt("shot")

    def shoot(call, seconds):
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, seconds, SHOOT_AGAIN_AFTER)
                call()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, 0)
            return True
        return False

    before = signal.signal(signal.SIGALRM, interrupt)
    gc.disable()
    yield shoot
    gc.enable()
    signal.signal(signal.SIGALRM, before)
