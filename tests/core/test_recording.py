"""What a recorder adds up, and whom it does not listen to."""

import threading
import time

import pytest

from replicax.core import recording
from replicax.core.recording import (
    COMPILING,
    DEVICES,
    DISPATCH,
    INPUT,
    LOOP,
    NUM_PHASES,
    WORKERS,
    Recorder,
)


@pytest.fixture
def recorder():
    return Recorder(lambda name, number: None)


class Token:
    """Of a program that is done, or not."""

    def __init__(self, is_done):
        self.is_ready = lambda: is_done


def in_thread(action):
    results = []
    thread = threading.Thread(target=lambda: results.append(action()))
    thread.start()
    thread.join()
    return results[0]


def train_step():
    """A function with a name."""


@pytest.mark.parametrize("inner", range(NUM_PHASES))
@pytest.mark.parametrize("outer", range(NUM_PHASES))
def test_a_phase_may_begin_in_an_earlier_one_only(recorder, outer, inner):
    before = recorder.enter(outer)
    assert before == (LOOP if outer != LOOP else None)
    assert recorder.enter(inner) == (outer if inner > outer else None)


def test_seconds_belong_to_the_innermost_phase(recorder):
    call = recorder.enter(DISPATCH)
    wait = recorder.enter(DEVICES)
    time.sleep(0.02)
    recorder.leave(wait)
    recorder.leave(call)
    seconds = recorder.read().seconds
    assert seconds[DEVICES] >= 0.02
    assert seconds[DEVICES] > seconds[DISPATCH] > 0


def test_the_phase_in_progress_is_read_too(recorder):
    recorder.enter(WORKERS)
    time.sleep(0.01)
    assert recorder.read().seconds[WORKERS] >= 0.01


def test_a_call_within_a_call_is_not_one_of_the_loop(recorder):
    assert recorder.begin_call(train_step)
    assert not recorder.begin_call(train_step)
    recorder.end_call()
    assert recorder.begin_call(train_step)
    recorder.end_call()
    assert recorder.read().calls == {"train_step": 2}


def test_a_call_is_marked_where_a_profiler_traces():
    marks = []

    class Mark:
        def __enter__(self):
            marks.append("begins")

        def __exit__(self, *error):
            marks.append("ends")

    recorder = Recorder(lambda name, number: marks.append((name, number)) or Mark())
    for _ in range(2):
        recorder.begin_call(train_step)
        recorder.end_call()
    one, two = [[("train_step", number), "begins", "ends"] for number in (1, 2)]
    assert marks == one + two


def test_other_threads_are_ignored(recorder):
    assert in_thread(lambda: recorder.enter(INPUT)) is None
    assert not in_thread(lambda: recorder.begin_call(train_step))
    assert in_thread(recorder.begin_launch) is None
    in_thread(lambda: recorder.note_calls(train_step, 3))
    assert recorder.read().calls == {}


def test_programs_of_all_threads_count(recorder):
    in_thread(lambda: recorder.note_program("step", is_again=False))
    recorder.note_program("step", is_again=True)
    assert recorder.read().programs == {"step": 2}
    assert recorder.read().retraces == {"step": 1}


def test_a_program_that_is_done_when_its_launch_returns_has_run_meanwhile(recorder):
    recorder.begin_call(train_step)
    end_launch = recorder.begin_launch()
    time.sleep(0.02)
    end_launch(Token(True))
    recorder.end_call()
    seconds = recorder.read().seconds
    assert seconds[DEVICES] >= 0.02
    assert seconds[DISPATCH] < seconds[DEVICES]


def test_a_launch_that_returns_before_its_program_is_done_is_dispatch(recorder):
    recorder.begin_call(train_step)
    end_launch = recorder.begin_launch()
    time.sleep(0.02)
    end_launch(Token(False))
    recorder.end_call()
    seconds = recorder.read().seconds
    assert seconds[DISPATCH] >= 0.02
    assert seconds[DEVICES] == 0


def test_a_launch_is_part_of_the_compilation_before_it(recorder):
    recorder.enter(COMPILING)
    assert recorder.begin_launch() is None


def test_what_was_found_since_then(recorder):
    recorder.begin_call(train_step)
    recorder.end_call()
    earlier = recorder.read()
    before = recorder.enter(INPUT)
    recorder.leave_input(before, 8)
    recorder.note_program("step", is_again=False)
    later = recorder.read().since(earlier)
    assert (later.num_batches, later.num_examples) == (1, 8)
    assert (later.calls, later.programs, later.retraces) == ({}, {"step": 1}, {})
    assert sum(later.seconds) < sum(recorder.read().seconds)


def test_input_that_ended_is_no_batch(recorder):
    before = recorder.enter(INPUT)
    recorder.leave_input(before, None)
    assert recorder.read().num_batches == 0


def test_there_is_one_recorder_at_a_time(recorder):
    assert recording.start(recorder)
    try:
        assert not recording.start(Recorder(lambda name, number: None))
        with recording.within(WORKERS):
            time.sleep(0.01)
    finally:
        recording.stop()
    assert recording.recorder is None
    assert recorder.read().seconds[WORKERS] >= 0.01
