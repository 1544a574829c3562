"""However a pass ends, it leaves no thread, no open file and no memory behind."""

import ctypes
import gc
import itertools
import os
import sys
import threading
import time
import traceback

import grain
import numpy as np
import pytest

import replicax as rx
from replicax.data import Dataset, TextLineDataset, TFRecordDataset
from replicax.input import prefetch
from replicax.input.pipeline.readers import write_records

WAIT_SECONDS = 20.0
NUM_RECORDS = 4000
MANY = 10_000

BUFFER_SIZES = [0, 1, 3]
"""Without a thread that reads ahead, with one if the source is slow, and always with one."""


@pytest.fixture(scope="module")
def two():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Three files of records, and three of lines."""
    folder = tmp_path_factory.mktemp("files")
    made = {"records": [], "lines": []}
    for number in range(3):
        record_file, line_file = folder / f"{number}.tfrecord", folder / f"{number}.txt"
        write_records(record_file, [b"%d" % i for i in range(NUM_RECORDS)])
        line_file.write_bytes(b"".join(b"%d\n" % i for i in range(NUM_RECORDS)))
        made["records"].append(str(record_file))
        made["lines"].append(str(line_file))
    return made


def numbers(paths, each):
    def read():
        with open(paths["lines"][0], "rb") as file:
            for line in file:
                yield np.full(4, each(int(line)), np.int32)

    return read


PIPELINES = {
    "a list of batches": lambda paths, each: list(np.arange(4000, dtype=np.int32).reshape(-1, 4)),
    "a generator function over a file": numbers,
    "a Dataset by index": lambda paths, each: Dataset.range(4000).map(each).batch(4),
    "a Dataset with threads": lambda paths, each: (
        Dataset.range(4000).map(each, num_parallel_calls=2).batch(4).prefetch(2)
    ),
    "a Dataset that is a stream": lambda paths, each: (
        Dataset.range(4000).filter(lambda x: True).map(each).batch(4).prefetch(2)
    ),
    "a Dataset of records": lambda paths, each: (
        TFRecordDataset(paths["records"]).map(lambda x: each(np.int32(x))).batch(4)
    ),
    "a Dataset of lines in turns": lambda paths, each: (
        TextLineDataset(paths["lines"], num_parallel_reads=3)
        .map(lambda x: each(np.int32(x)))
        .shuffle(8)
        .batch(4)
        .prefetch(2)
    ),
    "a Dataset of a generator": lambda paths, each: Dataset.from_generator(numbers(paths, each)),
    "a Grain MapDataset": lambda paths, each: grain.MapDataset.range(4000).map(each).batch(4),
    "a Grain IterDataset": lambda paths, each: (
        grain.MapDataset.range(4000).map(each).to_iter_dataset().batch(4)
    ),
}
MAPPED = sorted(set(PIPELINES) - {"a list of batches"})


def unchanged(x):
    return x


def options(buffer_size):
    return rx.InputOptions(experimental_per_replica_buffer_size=buffer_size)


def open_paths():
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:  # the one of the listing itself
            continue
    return found


def files_among(paths):
    own = {path for group in paths.values() for path in group}
    return [path for path in open_paths() if path in own]


class Before:
    """What there was before; threads and files that are there later have been left behind."""

    def __init__(self):
        gc.collect()
        self._threads = set(threading.enumerate())
        self._num_files = len(open_paths())

    def new_threads(self):
        return [t.name for t in threading.enumerate() if t not in self._threads]

    def assert_nothing_is_left(self, paths):
        gc.collect()
        deadline = time.monotonic() + WAIT_SECONDS
        # A thread ends after the batch that it is reading, so its end is waited for.
        while self.new_threads() and time.monotonic() < deadline:
            for thread in threading.enumerate():
                if thread.name in self.new_threads():
                    thread.join(0.1)
            gc.collect()
        assert self.new_threads() == []
        assert files_among(paths) == []
        assert len(open_paths()) <= self._num_files


@pytest.fixture(scope="module")
def warm(paths):
    """Every kind of pipeline was used once: libraries keep what they start once."""
    one = rx.OneDeviceStrategy("CPU:0")
    for make in PIPELINES.values():
        next(iter(one.distribute_dataset(make(paths, unchanged))))


@pytest.fixture
def before(paths, warm):
    """Checks at the end of the test that nothing is left."""
    found = Before()
    yield found
    found.assert_nothing_is_left(paths)


# -- how a pass may end --------------------------------------------------------------------------


@pytest.mark.parametrize("buffer_size", BUFFER_SIZES)
@pytest.mark.parametrize("name", PIPELINES)
def test_an_early_break_leaves_nothing(two, paths, before, name, buffer_size):
    dataset = two.distribute_dataset(PIPELINES[name](paths, unchanged), options(buffer_size))
    for _ in range(2):
        for step, _ in enumerate(dataset):
            if step == 6:
                break
        before.assert_nothing_is_left(paths)  # while the dataset is still there


@pytest.mark.parametrize("buffer_size", BUFFER_SIZES)
@pytest.mark.parametrize("name", PIPELINES)
def test_dropping_an_iterator_leaves_nothing(two, paths, before, name, buffer_size):
    dataset = two.distribute_dataset(PIPELINES[name](paths, unchanged), options(buffer_size))
    iterators = [iter(dataset) for _ in range(3)]
    for iterator in iterators:
        next(iterator)
        iterator.get_next_as_optional()
    del iterator
    iterators.clear()
    before.assert_nothing_is_left(paths)


@pytest.mark.parametrize("buffer_size", BUFFER_SIZES)
def test_a_pass_that_was_begun_for_the_spec_leaves_nothing(two, paths, before, buffer_size):
    make = PIPELINES["a generator function over a file"]
    dataset = two.distribute_dataset(make(paths, unchanged), options(buffer_size))
    assert dataset.element_spec is not None
    assert len(files_among(paths)) == 1  # it waits for the first pass
    del dataset
    before.assert_nothing_is_left(paths)


@pytest.mark.parametrize("buffer_size", BUFFER_SIZES)
@pytest.mark.parametrize("name", PIPELINES)
def test_setting_the_state_leaves_nothing_of_the_passes_before(
    two, paths, before, name, buffer_size
):
    dataset = two.distribute_dataset(PIPELINES[name](paths, unchanged), options(buffer_size))
    iterator = iter(dataset)
    for position in (5, 1, 3):
        next(iterator)
        iterator.set_state({"version": 1, "epoch": 0, "position": position})
    next(iterator)
    iterator.close()


@pytest.mark.parametrize("buffer_size", BUFFER_SIZES)
def test_pipelines_of_a_function_leave_nothing(two, paths, before, buffer_size):
    each = rx.InputOptions(
        experimental_replication_mode=rx.InputReplicationMode.PER_REPLICA,
        experimental_per_replica_buffer_size=buffer_size,
    )
    for name, chosen in itertools.product(PIPELINES, (options(buffer_size), each)):
        make = PIPELINES[name]
        dataset = two.distribute_datasets_from_function(
            lambda context, make=make: make(paths, unchanged), chosen
        )
        for step, _ in enumerate(dataset):
            if step == 3:
                break


# -- a consumer that is killed -------------------------------------------------------------------


# Python 3.11, while it traces, tries each function entry again and again until the exception for
# another thread has been raised, and that thread waits for this one.
cannot_kill_while_tracing = pytest.mark.skipif(
    sys.version_info < (3, 12) and sys.gettrace() is not None,
    reason="Python 3.11 cannot measure coverage and raise in another thread",
)


class Gate:
    """Stops whoever passes number 40 for the first time, until it is opened."""

    def __init__(self):
        self._reached = threading.Event()
        self._opened = threading.Event()

    def __call__(self, x):
        if int(x) == 40 and not self._reached.is_set():
            self.stop()
        return x

    def stop(self):
        self._reached.set()
        assert self._opened.wait(WAIT_SECONDS)

    def kill(self, thread):
        """Kills `thread` while the gate is closed, once it waits for whoever is at the gate.

        At any other moment the exception could be raised where Python cannot bear it: in the
        start of another thread, in the middle of taking a lock, in a finalizer that swallows it.
        """
        assert self._reached.wait(WAIT_SECONDS)
        deadline = time.monotonic() + WAIT_SECONDS
        while not kill_where_it_waits(thread):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        self._opened.set()
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
        assert thread.died_of is SystemExit


def kill_where_it_waits(thread):
    """Raises SystemExit in a thread if it waits for another one now.

    Returns:
        Whether it waited. If not, nothing was done.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(WAIT_SECONDS)  # the thread is not to go on between look and kill
    try:
        if not is_waiting(thread):
            return False
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
        )
        return True
    finally:
        sys.setswitchinterval(interval)


def is_waiting(thread):
    """Whether a thread waits for a batch or a condition, and not for the start of another one."""
    frame = sys._current_frames().get(thread.ident)
    if frame is None or frame.f_code not in WAITS:
        return False
    if frame.f_code is CONDITION and "saved_state" not in frame.f_locals:
        return False  # it has not let go of the condition's lock yet
    while frame is not None and frame.f_code is not threading.Thread.start.__code__:
        frame = frame.f_back
    return frame is None


CONDITION = threading.Condition.wait.__code__
WAITS = {CONDITION, prefetch._Shared.take.__code__}


class Consumer(threading.Thread):
    """Takes steps until it is killed."""

    def __init__(self, dataset, stop=None):
        super().__init__()
        self._dataset = dataset
        self._stop_at_seventh = stop
        self.died_of = None

    def run(self):
        try:
            while True:
                for step, value in enumerate(self._dataset):
                    del value
                    if step == 7 and self._stop_at_seventh is not None:
                        self._stop_at_seventh()
        except BaseException as error:
            self.died_of = type(error)
        finally:
            del self._dataset


@cannot_kill_while_tracing
@pytest.mark.parametrize("buffer_size", BUFFER_SIZES)
@pytest.mark.parametrize("name", PIPELINES)
def test_killing_the_consumer_in_its_loop_leaves_nothing(two, paths, before, name, buffer_size):
    dataset = two.distribute_dataset(PIPELINES[name](paths, unchanged), options(buffer_size))
    gate = Gate()
    consumer = Consumer(dataset, gate.stop)
    consumer.start()
    gate.kill(consumer)
    before.assert_nothing_is_left(paths)
    assert next(iter(dataset)) is not None  # the dataset is as good as new


@cannot_kill_while_tracing
@pytest.mark.parametrize("buffer_size", BUFFER_SIZES)
@pytest.mark.parametrize("name", MAPPED)
def test_killing_the_consumer_while_a_batch_is_being_made_leaves_nothing(
    two, paths, before, name, buffer_size
):
    gate = Gate()
    dataset = two.distribute_dataset(PIPELINES[name](paths, gate), options(buffer_size))
    consumer = Consumer(dataset)
    consumer.start()
    gate.kill(consumer)
    before.assert_nothing_is_left(paths)
    assert next(iter(dataset)) is not None


# -- errors --------------------------------------------------------------------------------------


class OwnError(Exception):
    """What the user's function raises."""


class Fails:
    """Raises at one number, until it is told to stop."""

    def __init__(self, number):
        self.number = number
        self.is_on = True
        self.num_raised = 0

    def __call__(self, x):
        if self.is_on and int(x) == self.number:
            self.fail()
        return x

    def fail(self):
        self.num_raised += 1
        raise OwnError(f"at {self.number}")


@pytest.mark.parametrize("buffer_size", BUFFER_SIZES)
@pytest.mark.parametrize("name", MAPPED)
def test_an_error_in_a_function_arrives_once_as_it_is_and_leaves_nothing(
    two, paths, before, name, buffer_size
):
    fails = Fails(41)
    dataset = two.distribute_dataset(PIPELINES[name](paths, fails), options(buffer_size))
    for number in (1, 2):
        steps = []
        with pytest.raises(OwnError, match=r"^at 41") as caught:
            for value in dataset:
                steps.append(value)
        frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert frames[-1] == "fail"
        assert frames.count("fail") == 1
        assert frames.count("__call__") == 1
        assert (type(caught.value), caught.value.args) == (OwnError, ("at 41",))
        # What came before the batch with the error was handed out.
        assert len(steps) == (41 if "generator" in name else 10) or "in turns" in name
        del caught, steps, value
        if "threads" not in name:  # threads may have met it again before they were told to stop
            assert fails.num_raised == number
        before.assert_nothing_is_left(paths)
    fails.is_on = False
    assert len(list(itertools.islice(dataset, 30))) == 30


@pytest.mark.parametrize("buffer_size", BUFFER_SIZES)
def test_an_error_in_the_loop_leaves_nothing_while_it_is_being_looked_at(
    two, paths, before, buffer_size
):
    make = PIPELINES["a generator function over a file"]

    def loop():
        for _ in two.distribute_dataset(make(paths, unchanged), options(buffer_size)):
            raise KeyError("in the step")

    with pytest.raises(KeyError, match="in the step") as caught:
        loop()
    del caught
    before.assert_nothing_is_left(paths)


# -- memory --------------------------------------------------------------------------------------

EXAMPLES = np.zeros((64, 256), np.float32)
"""Sixty-four kilobytes a batch: ten thousand that were kept would be 640 megabytes."""


def resident_bytes():
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def take_one(dataset, count):
    for _ in range(count):
        next(iter(dataset))


def assert_does_not_grow(work, count, *, objects_each=1):
    """Nothing is kept of `count` rounds of work.

    Caches grow at times, but what is kept of every round grows in each fifth of the rounds:
    so the median of them counts.

    Args:
        work: Does as many rounds as it is told.
        count: How many rounds.
        objects_each: How many objects at least would be kept of a round.
    """
    fifth = count // 5
    work(fifth)
    blocks, resident = [], []
    for _ in range(5):
        gc.collect()
        blocks.append(sys.getallocatedblocks())
        resident.append(resident_bytes())
        work(fifth)
    gc.collect()
    grown = np.diff([*blocks, sys.getallocatedblocks()])
    assert np.median(grown) < fifth * objects_each / 5
    assert resident_bytes() - resident[0] < count * EXAMPLES.nbytes / 5


@pytest.mark.parametrize("buffer_size", [0, 2])
def test_ten_thousand_iterators_leave_nothing(two, paths, before, buffer_size):
    dataset = two.distribute_dataset(EXAMPLES, options(buffer_size), batch_size=64)
    assert_does_not_grow(lambda count: take_one(dataset, count), MANY)


@pytest.mark.parametrize("buffer_size", [0, 2])
@pytest.mark.parametrize("name", ["a Dataset that is a stream", "a Dataset of records"])
def test_many_iterators_over_threads_and_files_leave_nothing(two, paths, before, name, buffer_size):
    dataset = two.distribute_dataset(PIPELINES[name](paths, unchanged), options(buffer_size))
    assert_does_not_grow(lambda count: take_one(dataset, count), 200, objects_each=50)


@pytest.mark.parametrize("buffer_size", [0, 2])
def test_many_errors_leave_nothing(two, paths, before, buffer_size):
    def fail():
        yield EXAMPLES
        raise OwnError("always")

    dataset = two.distribute_dataset(fail, options(buffer_size))

    def work(count):
        for _ in range(count):
            with pytest.raises(OwnError, match="always"):
                list(dataset)

    assert_does_not_grow(work, MANY // 5)


@pytest.mark.parametrize("buffer_size", [0, 2])
def test_many_distributed_datasets_leave_nothing(two, paths, before, buffer_size):
    def work(count):
        for _ in range(count):
            dataset = two.distribute_dataset([EXAMPLES], options(buffer_size))
            assert dataset.element_spec is not None
            next(iter(dataset))

    assert_does_not_grow(work, MANY // 5)
