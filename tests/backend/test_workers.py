"""Who is named when an operation of all workers fails; the fault suite has the real accidents."""

import json
import threading

from replicax.backend import workers
from tests.backend.fresh_process import run_fresh

# A process with a real coordination service that plays all workers but the one it is.
PRELUDE = """
import json, time
from replicax.backend import workers
from replicax.jax_internals.processes import (
    connect_to_coordination,
    coordination_client,
    forget_coordination,
    leave_coordination,
    start_coordination_service,
)
from replicax.cluster.addresses import free_port
from replicax.core import errors
address = f"127.0.0.1:{free_port()}"
service = start_coordination_service(address, 1, heartbeat_seconds=60, shutdown_seconds=5)
connect_to_coordination(address, 1, 0, heartbeat_seconds=60, start_seconds=30)
client = coordination_client()
names = ["worker 0", "worker 1", "worker 2"]
joined = workers.Workers(0, names, 2.0, service_rank=0)
workers.set_current(joined)
def beat(rank, text):
    client.key_value_set(f"replicax/beat/{rank}", text, True)
GLOO = ValueError("UNKNOWN: Gloo all-reduce failed: [pair.cc:538] Connection reset by peer")
"""
END = """
joined.end("ended")
leave_coordination()
forget_coordination()
service.shutdown()
"""


def fresh(source: str) -> list:
    lines = run_fresh(PRELUDE + source + END).splitlines()
    return [json.loads(line) for line in lines]


def test_without_a_cluster_no_error_is_one_of_the_other_workers():
    assert workers.current() is None
    assert workers.lost_worker(ValueError("UNKNOWN: Gloo all-reduce failed")) is None


def test_errors_of_communication_are_told_from_others():
    (translated,) = fresh(
        """
rows = [
    GLOO,
    RuntimeError("INTERNAL: Error dispatching computation: Gloo all-reduce failed: timed out"),
    RuntimeError("UNAVAILABLE: Failed to send RPC to coordination service."),
    RuntimeError("INTERNAL: NCCL operation ncclAllReduce failed"),
    ValueError("Gloo is my favourite library"),
    RuntimeError("RESOURCE_EXHAUSTED: Out of memory"),
    KeyError("UNKNOWN: Gloo"),
    errors.WorkerLostError("UNKNOWN: Gloo all-reduce failed"),
]
beat(1, "failed")
print(json.dumps([workers.lost_worker(row) is not None for row in rows]))
"""
    )
    assert translated == [True, True, True, True, False, False, False, False]


def test_the_silent_one_is_named_and_not_one_who_left_because_of_it():
    named, texts = fresh(
        """
beat(1, "1")
beat(2, "bereft")
first = joined.lost("in a step", GLOO)
beat(1, "failed")
while joined.gone(60.0) != (1,):
    time.sleep(0.05)
second = joined.lost("in a step", GLOO)
print(json.dumps([first.workers, second.workers]))
print(json.dumps([str(first), str(second)]))
"""
    )
    assert named == [[1], [1]]
    assert texts[0].startswith("worker 1 has gone or does not answer, noticed by worker 0 in a st")
    assert texts[1].startswith("worker 1 (it ended with an error) has gone or does not answer")
    assert texts[0].endswith(
        "(The runtime says: UNKNOWN: Gloo all-reduce failed: [pair.cc:538] "
        "Connection reset by peer)"
    )


def test_a_lost_variable_means_a_lost_worker_only_if_one_is_lost():
    (found,) = fresh(
        """
error = errors.LostVariableError("its value is lost")
count = 0
import threading
alive = threading.Event()
def live():
    number = 0
    while not alive.wait(0.1):
        number += 1
        beat(1, str(number))
        beat(2, str(number))
thread = threading.Thread(target=live)
thread.start()
while len(joined._seen) < 2:
    time.sleep(0.05)
before = workers.lost_worker(error)
alive.set()
thread.join()
after = workers.lost_worker(error)
while after is None:
    after = workers.lost_worker(error)
print(json.dumps([before is None, after.workers]))
"""
    )
    assert found[0] is True
    assert set(found[1]) <= {1, 2}


def test_when_nobody_is_missing_the_message_says_what_to_raise():
    (text,) = fresh(
        """
joined._seen.clear()
names[:] = []
joined.names = ("worker 0",)
print(json.dumps(str(joined.lost("in a step", GLOO))))
"""
    )
    assert "although every worker still answers" in text
    assert "raise CommunicationOptions(timeout_seconds=...)" in text


def test_an_action_that_does_not_return_is_left_alone():
    go_on = threading.Event()
    aside = workers.Aside()
    assert aside.within(60.0, lambda: None)
    assert not aside.within(60.0, lambda: 1 / 0)
    assert not aside.within(0.05, lambda: go_on.wait(60.0))
    go_on.set()
    assert aside.within(60.0, lambda: None)


def test_an_action_can_be_done_aside_when_the_program_ends():
    output = run_fresh(
        """
        import atexit
        from replicax.backend import workers
        aside = workers.Aside()
        atexit.register(lambda: print(aside.within(60.0, lambda: print("goodbye"))))
        """
    )
    assert output.split() == ["goodbye", "True"]
