"""Reading ahead: when, how far, and that nothing is left of it."""

import gc
import os
import subprocess
import sys
import threading
import time
import traceback

import numpy as np
import pytest

import replicax as rx
from replicax.input import prefetch
from replicax.input.prefetch import is_worth_a_thread
from tests.input.pipelines import Stream, batches_of, values_of

WAIT_SECONDS = 20


@pytest.fixture
def two():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


def reading_threads():
    """Those that run; Python lists a thread for ever that Ctrl-C has kept from starting."""
    listed = [t for t in threading.enumerate() if t.name == prefetch.THREAD_NAME]
    return [t for t in listed if t.is_alive()]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    assert reading_threads() == []
    yield
    gc.collect()
    for thread in reading_threads():
        thread.join(WAIT_SECONDS)
    assert reading_threads() == []


class Counted(Stream):
    """Tells how many batches were read, and can be waited for."""

    def __init__(self, count=100, **known):
        super().__init__([np.full(2, i, np.int32) for i in range(count)], **known)
        self.changed = threading.Condition()
        self.num_read = 0

    def open(self, *, epoch, start):
        for batch in super().open(epoch=epoch, start=start):
            with self.changed:
                self.num_read += 1
                self.changed.notify_all()
            yield batch

    def wait_for(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: self.num_read >= count, WAIT_SECONDS)


def wait_until_full(iterator, depth):
    """Waits until everything that may be read ahead is ready."""
    ready = iterator._preparing._shared._ready
    deadline = time.monotonic() + WAIT_SECONDS
    while ready.qsize() < depth:
        assert time.monotonic() < deadline
        os.sched_yield()


def ahead(size):
    return rx.InputOptions(experimental_per_replica_buffer_size=size)


def test_with_0_nothing_is_read_before_it_is_asked_for(two):
    source = Counted()
    iterator = iter(two.distribute_dataset(source, ahead(0)))
    assert source.num_read == 0
    for taken in range(1, 8):
        next(iterator)
        assert source.num_read == taken
    assert reading_threads() == []


@pytest.mark.parametrize("depth", [2, 5])
def test_with_more_that_many_are_read_ahead_and_never_more(two, depth):
    source = Counted()
    iterator = iter(two.distribute_dataset(source, ahead(depth)))
    for taken in range(1, 6):
        next(iterator)
        source.wait_for(taken + depth)
    (thread,) = reading_threads()
    assert thread.daemon
    wait_until_full(iterator, depth)
    assert source.num_read == 5 + depth
    iterator.close()
    assert source.closed == 1


def test_with_1_a_source_in_memory_is_read_in_turn(two):
    source = Counted()
    iterator = iter(two.distribute_dataset(source))
    for taken in range(1, 20):
        next(iterator)
        assert source.num_read == taken
    assert reading_threads() == []


class Slow(Counted):
    def open(self, *, epoch, start):
        for batch in super().open(epoch=epoch, start=start):
            time.sleep(3 * prefetch.WORTH_SECONDS)  # what makes a source slow, not a race
            yield batch


def test_with_1_a_slow_source_is_read_one_ahead(two):
    source = Slow()
    iterator = iter(two.distribute_dataset(source))
    taken = prefetch.NUM_MEASURED + 1
    got = [values_of(next(iterator)) for _ in range(taken)]
    assert len(reading_threads()) == 1
    source.wait_for(taken + 1)
    got += [values_of(next(iterator)) for _ in range(5)]
    assert got == [[[i], [i]] for i in range(taken + 5)]
    source.wait_for(taken + 6)
    iterator.close()
    assert source.num_read == taken + 6


DECISIONS = {
    "memory": ([1e-5, 2e-5, 1e-5], False),
    "one hiccup": ([1e-5, 1.0, 1e-5], False),
    "slow": ([2e-3, 1e-3, 5e-3], True),
    "at the limit": ([prefetch.WORTH_SECONDS] * 3, True),
}


@pytest.mark.parametrize("case", DECISIONS)
def test_a_thread_has_to_be_worth_its_hand_over(case):
    seconds, expected = DECISIONS[case]
    assert is_worth_a_thread(seconds) is expected


def test_the_values_are_the_same_with_and_without_a_thread(two):
    batches = batches_of(range(21), 4)
    passes = [
        [values_of(v) for v in two.distribute_dataset(Stream(batches), ahead(size))]
        for size in (0, 1, 2, 7)
    ]
    assert all(values == passes[0] for values in passes)
    assert len(passes[0]) == 6


class Failing(Stream):
    def open(self, *, epoch, start):
        for index, batch in enumerate(super().open(epoch=epoch, start=start), start):
            if index == 2:
                raise_in_the_pipeline()
            yield batch


def raise_in_the_pipeline():
    raise FloatingPointError("in the map function")


@pytest.mark.parametrize("size", [0, 1, 3])
def test_an_error_comes_with_its_traceback_where_the_batch_would_have_been(two, size):
    iterator = iter(two.distribute_dataset(Failing(batches_of(range(8), 2)), ahead(size)))
    next(iterator)
    next(iterator)
    for _ in range(2):  # asking again does not pass over it
        with pytest.raises(FloatingPointError, match="in the map function") as caught:
            next(iterator)
        frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert frames[-1] == "raise_in_the_pipeline"
    assert iterator.get_state()["position"] == 2


def test_an_error_while_placing_comes_too(two):
    source = Stream([np.arange(2), np.array([2**40, 1])])
    iterator = iter(two.distribute_dataset(source, ahead(2)))
    next(iterator)
    with pytest.raises(ValueError, match="does not fit"):
        next(iterator)


def test_an_early_break_leaves_no_thread(two):
    source = Counted()
    for _ in two.distribute_dataset(source, ahead(3)):
        (thread,) = reading_threads()
        break
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()
    assert source.closed == 1


def test_an_exception_in_the_loop_leaves_no_thread(two):
    source = Counted()

    def loop():
        for _ in two.distribute_dataset(source, ahead(3)):
            raise KeyError("in the step")

    with pytest.raises(KeyError, match="in the step"):
        loop()
    gc.collect()
    for thread in reading_threads():
        thread.join(WAIT_SECONDS)
    assert source.closed == 1


def test_the_end_of_the_data_ends_the_thread(two):
    iterator = iter(two.distribute_dataset(Counted(4), ahead(2)))
    assert len(list(iterator)) == 4
    assert reading_threads() == []
    assert list(iterator) == []


def test_closing_ends_the_pass(two):
    for size in (0, 1, 2):
        source = Counted()
        iterator = iter(two.distribute_dataset(source, ahead(size)))
        next(iterator)
        iterator.close()
        iterator.close()
        assert source.closed == 1
        assert list(iterator) == []


def test_dropping_the_iterator_without_a_thread_closes_the_source(two):
    source = Counted()
    iterator = iter(two.distribute_dataset(source, ahead(0)))
    next(iterator)
    del iterator
    assert source.closed == 1


def test_a_thread_sees_the_settings_of_its_consumer(two):
    import jax

    class Typed(Stream):
        def open(self, *, epoch, start):
            for _ in range(3):
                yield np.array([2**40, 2**41])

    with jax.enable_x64(True):
        dataset = two.distribute_dataset(Typed([]), ahead(2))
        assert [values_of(value) for value in dataset] == [[[2**40], [2**41]]] * 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_while_a_batch_is_awaited_loses_none_and_locks_nothing(two, interrupted):
    dataset = two.distribute_dataset(Counted(count=10**6), ahead(2))
    iterator = iter(dataset)
    taken = []

    def for_ever():
        while True:
            taken.append(int(values_of(next(iterator))[0][0]))

    for delay in np.geomspace(2e-4, 2e-2, 30).tolist():
        assert interrupted(for_ever, delay)
        assert taken == sorted(set(taken))  # in order; the one in the air may be gone
    iterator.close()


@pytest.mark.parametrize("begins", [False, True])
def test_ctrl_c_while_a_thread_is_started_leaves_nothing_to_wait_for(two, monkeypatch, begins):
    start, readers = prefetch._Reader.start, []

    def interrupted_start(reader):
        readers.append(reader)  # as Python keeps it in its list of threads
        if begins:
            start(reader)
        raise KeyboardInterrupt("shot")

    iterator = iter(two.distribute_dataset(Counted(), ahead(2)))
    monkeypatch.setattr(prefetch._Reader, "start", interrupted_start)
    with pytest.raises(KeyboardInterrupt, match="shot") as caught:
        next(iterator)
    monkeypatch.undo()
    (reader,) = readers
    if begins:
        reader.join(WAIT_SECONDS)  # although what was raised still holds its consumer
    assert caught.value is not None
    assert not reader.is_alive()
    reader.close()  # as at the exit of the interpreter
    assert values_of(next(iterator)) == [[0], [0]]


PROGRAM = """
import threading
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
import numpy as np
import replicax as rx
from replicax.input.source import Source

class Endless(Source):
    def open(self, *, epoch, start):
        try:
            while True:
                yield np.ones((512, 64), np.float32)
        finally:
            print("closed", flush=True)

strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
options = rx.InputOptions(experimental_per_replica_buffer_size=BUFFER_SIZE)
dataset = strategy.distribute_dataset(Endless(), options)
if PEEK:
    dataset.element_spec
else:
    iterator = iter(dataset)
    next(iterator)
names = [t.name for t in threading.enumerate()]
assert ("replicax-read-ahead" in names) == (BUFFER_SIZE > 1 and not PEEK)
"""


@pytest.mark.parametrize(("buffer_size", "peek"), [(0, False), (1, False), (4, False), (1, True)])
def test_the_interpreter_exits_quietly_in_the_middle_of_a_pass(buffer_size, peek):
    program = PROGRAM.replace("BUFFER_SIZE", str(buffer_size)).replace("PEEK", str(peek))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed\n", "")
