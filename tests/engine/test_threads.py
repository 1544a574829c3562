"""Replica threads: order, meetings, exceptions, release, and what becomes of the threads."""

import contextvars
import gc
import signal
import threading
import time
import traceback
import weakref

import pytest

import replicax as rx
from replicax.core.errors import RendezvousError
from replicax.engine.contexts import stack
from replicax.engine.threads import ReplicaThreads

DEADLINE_SECONDS = 20.0


def eventually(condition):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen before the deadline"
        time.sleep(0.01)


def share(payloads):
    return [list(payloads)] * len(payloads)


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    return ReplicaThreads(request.param)


@pytest.fixture
def two():
    return ReplicaThreads(2)


def count_of(threads):
    return len(threads._replicas)


# -- order and meetings ------------------------------------------------------------------------


def test_replicas_run_in_order_and_their_results_come_in_order(threads):
    order = []
    tasks = [lambda i=i: order.append(i) or i * 10 for i in range(count_of(threads))]
    for _ in range(3):
        assert threads.run(tasks) == [i * 10 for i in range(count_of(threads))]
    assert order == list(range(count_of(threads))) * 3


def test_a_meeting_gets_all_payloads_and_answers_each_replica(two):
    order = []

    def meeting(payloads):
        order.append(("meeting", payloads, threading.current_thread()))
        return [sum(payloads), -sum(payloads)]

    def task(i):
        order.append(("before", i))
        answer = two.meet("sum", meeting, payload=i + 1)
        order.append(("after", i))
        return answer

    assert two.run([lambda i=i: task(i) for i in range(2)]) == [3, -3]
    assert order == [
        ("before", 0),
        ("before", 1),
        ("meeting", [1, 2], threading.main_thread()),
        ("after", 0),
        ("after", 1),
    ]


def test_several_meetings_happen_one_after_the_other(threads):
    count = count_of(threads)

    def task(i):
        value = i
        for _ in range(4):
            value = sum(threads.meet("sum", share, payload=value))
        return value

    results = threads.run([lambda i=i: task(i) for i in range(count)])
    assert results == [sum(range(count)) * count**3] * count


def test_the_same_threads_serve_every_run(two):
    names = [two.run([threading.current_thread] * 2) for _ in range(3)]
    assert names[0] == names[1] == names[2]
    assert [thread.name for thread in names[0]] == ["replicax-replica-0", "replicax-replica-1"]
    assert all(thread.daemon for thread in names[0])


def test_fewer_tasks_than_replicas_are_fine():
    threads = ReplicaThreads(3)
    assert threads.run([lambda: 1, lambda: 2]) == [1, 2]


def test_replicas_see_the_contextvars_of_the_caller(two):
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("first")
    assert two.run([variable.get] * 2) == ["first", "first"]
    variable.set("second")
    assert two.run([variable.get] * 2) == ["second", "second"]
    two.run([lambda: variable.set("inside")] * 2)
    assert variable.get() == "second"


# -- exceptions --------------------------------------------------------------------------------


class Odd(Exception):
    def __init__(self, number, text):
        super().__init__(number, text)


def raising(number):
    raise Odd(number, "on purpose")


def test_an_exception_keeps_its_type_traceback_and_cause(two):
    def task():
        try:
            raising(1)
        except Odd as error:
            raise KeyError("outer") from error

    with pytest.raises(KeyError, match="outer") as caught:
        two.run([lambda: 1, task])
    assert isinstance(caught.value.__cause__, Odd)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "task" in names
    assert caught.value.__notes__ == ["raised on replica 1; every replica was released."]
    assert two.run([lambda: 1] * 2) == [1, 1]


def test_an_exception_object_is_the_users_own(two):
    error = Odd(1, "mine")

    def task():
        raise error

    with pytest.raises(Odd, match="mine") as caught:
        two.run([task, lambda: 1])
    assert caught.value is error


def test_the_note_says_who_was_waiting(two):
    tasks = [lambda: two.meet("all_reduce", share, payload=1), lambda: raising(1)]
    with pytest.raises(Odd, match="on purpose") as caught:
        two.run(tasks)
    (note,) = caught.value.__notes__
    assert note.startswith("raised on replica 1, while another replica waited in all_reduce at ")
    assert "test_threads.py" in note
    assert two.run([lambda: 1] * 2) == [1, 1]


def test_an_exception_after_a_meeting_is_raised(two):
    def task(i):
        two.meet("sum", share, payload=1)
        if i == 1:
            raising(i)
        two.meet("sum", share, payload=1)

    with pytest.raises(Odd, match="on purpose"):
        two.run([lambda i=i: task(i) for i in range(2)])
    assert two.run([lambda: 1] * 2) == [1, 1]


def test_an_exception_in_the_meeting_reaches_the_caller_and_releases_all(two):
    unwound = []

    def task(i):
        try:
            return two.meet("sum", lambda payloads: raising(7), payload=i)
        finally:
            unwound.append(i)

    with pytest.raises(Odd, match="7, 'on purpose'"):
        two.run([lambda i=i: task(i) for i in range(2)])
    assert unwound == [0, 1]
    assert two.run([lambda: 1] * 2) == [1, 1]


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, KeyboardInterrupt])
def test_exceptions_that_are_no_exception_are_handed_over_too(two, kind):
    def task():
        raise kind("from a replica")

    with pytest.raises(kind, match="from a replica"):
        two.run([lambda: 1, task])
    assert two.run([lambda: 1] * 2) == [1, 1]


# -- replicas that do not meet -----------------------------------------------------------------


def test_a_replica_that_returns_early_is_named_with_the_one_that_waits(two):
    tasks = [lambda: 1, lambda: two.meet("merge_call", share, payload=1)]
    with pytest.raises(
        RendezvousError,
        match=r"replica 1 called merge_call at .*test_threads\.py:\d+, but replica 0 returned w",
    ):
        two.run(tasks)
    assert two.run([lambda: 1] * 2) == [1, 1]


def test_replicas_that_call_different_things_are_both_named(two):
    tasks = [lambda label=label: two.meet(label, share, payload=1) for label in ("sum", "mean")]
    with pytest.raises(
        RendezvousError,
        match=r"replica 0 called sum at .*test_threads\.py:\d+, but replica 1 called mean at",
    ):
        two.run(tasks)
    assert two.run([lambda: 1] * 2) == [1, 1]


def test_a_released_replica_runs_its_finally_blocks(two):
    steps = []

    def task():
        try:
            two.meet("sum", share, payload=1)
        except Exception:
            steps.append("swallowed")
        finally:
            steps.append("finally")
        steps.append("went on")

    with pytest.raises(RendezvousError, match="replica 0 called sum"):
        two.run([task, lambda: 1])
    assert steps == ["finally"]


def test_a_released_replica_that_insists_on_meeting_is_released_again(two):
    steps = []

    def task():
        for _ in range(3):
            try:
                two.meet("sum", share, payload=1)
            except BaseException:
                steps.append("caught")
        return "went on"

    with pytest.raises(RendezvousError, match="replica 0 called sum"):
        two.run([task, lambda: 1])
    assert steps == ["caught"] * 3
    assert two.run([lambda: two.meet("sum", share, payload=1)] * 2) == [[1, 1]] * 2


def test_what_a_released_replica_raises_does_not_hide_the_error(two):
    def task():
        try:
            two.meet("sum", share, payload=1)
        finally:
            raising(1)

    with pytest.raises(RendezvousError, match="replica 0 called sum"):
        two.run([task, lambda: 1])


# -- several callers ---------------------------------------------------------------------------


def test_two_user_threads_take_turns(two):
    inside, results = [], []

    def task():
        inside.append(1)
        two.meet("sum", share, payload=1)
        inside.pop()

    def work():
        for _ in range(50):
            two.run([task, task])
        results.append(len(inside))

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(DEADLINE_SECONDS)
    assert len(results) == 2
    assert inside == []


@pytest.mark.parametrize("where", ["a task", "a meeting"])
def test_a_run_inside_a_run_of_the_same_threads_is_refused_and_does_not_hang(two, where):
    def again(_=None):
        return two.run([lambda: 1] * 2)

    task = again if where == "a task" else lambda: two.meet("sum", again, payload=1)
    with pytest.raises(RuntimeError, match="these replicas are already running"):
        two.run([task] * 2)
    assert two.run([lambda: 1] * 2) == [1, 1]


def test_other_threads_may_run_inside_a_task(two):
    other = ReplicaThreads(2)

    def task():
        return sum(other.run([lambda: other.meet("sum", share, payload=1)[0]] * 2))

    assert two.run([task] * 2) == [2, 2]


# -- interrupts --------------------------------------------------------------------------------


def test_an_interrupt_while_a_replica_runs_abandons_it_and_the_rest_works(two):
    may_go_on, ended = threading.Event(), []

    def slow():
        may_go_on.wait(DEADLINE_SECONDS)
        try:
            two.meet("sum", share, payload=1)
        finally:
            ended.append(1)

    def interrupt(signum, frame):
        raise KeyboardInterrupt("shot")

    first = two.run([threading.current_thread] * 2)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt, match="shot"):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            two.run([lambda: 1, slow])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert two.run([lambda: two.meet("sum", share, payload=1)] * 2) == [[1, 1]] * 2
    assert ended == []
    may_go_on.set()
    eventually(lambda: ended == [1])
    eventually(lambda: not first[1].is_alive())
    assert two.run([threading.current_thread] * 2)[0] is first[0]


@pytest.mark.parametrize("stage", ["before it starts", "when it has arrived"])
def test_a_replica_that_is_abandoned_at_a_stop_ends(two, stage):
    """The caller may be interrupted between two lines of the hand-over."""
    (thread, _) = two.run([threading.current_thread] * 2)
    replica = two._replicas[0]
    calls = []
    if stage == "when it has arrived":
        replica.start(lambda: two.meet("sum", share, payload=1))
    else:
        replica._task, replica._context = lambda: calls.append(1), contextvars.copy_context()
    replica.state = "running"
    two._unwind()
    eventually(lambda: not thread.is_alive())
    assert calls == []
    assert two.run([lambda: 1] * 2) == [1, 1]


# -- the end -----------------------------------------------------------------------------------


def test_threads_end_after_the_object_is_gone():
    threads = ReplicaThreads(3)
    running = threads.run([threading.current_thread] * 3)
    assert all(thread.is_alive() for thread in running)
    del threads
    gc.collect()
    eventually(lambda: not any(thread.is_alive() for thread in running))


def test_threads_end_after_a_failed_run_too():
    threads = ReplicaThreads(2)
    running = threads.run([threading.current_thread] * 2)
    with pytest.raises(Odd, match="on purpose"):
        threads.run([lambda: raising(1)] * 2)
    del threads
    gc.collect()
    eventually(lambda: not any(thread.is_alive() for thread in running))


def test_threads_that_never_ran_need_no_end():
    before = threading.active_count()
    threads = ReplicaThreads(100)
    assert threading.active_count() == before
    del threads


def test_a_thread_keeps_neither_its_task_nor_its_result_alive(two):
    class Big:
        pass

    big = Big()
    gone = weakref.ref(big)
    two.run([lambda big=big: big, lambda: 1])
    del big
    gc.collect()
    assert gone() is None


def test_ctrl_c_while_a_thread_starts_leaves_threads_that_work(monkeypatch):
    threads = ReplicaThreads(2)

    def interrupted(thread):
        raise KeyboardInterrupt("Ctrl-C")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt, match="Ctrl-C"):
            threads.run([lambda: 1, lambda: 2])

    assert threads.run([lambda: 1, lambda: 2]) == [1, 2]


def test_ctrl_c_at_the_end_of_entering_a_context_leaves_no_entry(monkeypatch):
    push = stack.push

    def interrupted(entry):
        push(entry)
        raise KeyboardInterrupt("Ctrl-C")

    entry = stack.Entry(rx.OneDeviceStrategy("CPU:0"), stack.Mode.MERGE)
    with monkeypatch.context() as patch:
        patch.setattr(stack, "push", interrupted)
        with pytest.raises(KeyboardInterrupt, match="Ctrl-C"), stack.entered(entry):
            pass

    assert not stack.has_entered()
