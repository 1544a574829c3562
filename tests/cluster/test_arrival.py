"""The start of a cluster: workers meet over real connections, each in a thread of this process."""

import collections
import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable

import pytest

from replicax.cluster import arrival
from replicax.cluster.addresses import free_ports
from replicax.cluster.wire import Connection
from replicax.core.errors import (
    ClusterError,
    ClusterPlatformError,
    WorkerLostError,
    WorkersDifferError,
)
from tests.cluster import mutations
from tests.tiers import full_only

WAIT_SECONDS = 60.0
FACTS = {"Python": "3.11.9", "JAX": "0.10.2"}


class Cluster:
    """Workers that are started one by one."""

    def __init__(self, num_workers: int) -> None:
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(num_workers)]
        self.names = [f"worker {rank}" for rank in range(num_workers)]
        self._threads: list[threading.Thread] = []

    def start(self, rank: int, *, facts=None, seconds: float = WAIT_SECONDS) -> Callable:
        """Starts a worker; the answer waits for its end and returns its error, if it has one."""
        errors: list[Exception] = []

        def meet() -> None:
            try:
                arrival.meet(
                    self.addresses,
                    rank,
                    names=self.names,
                    host="127.0.0.1",
                    facts=FACTS | (facts or {}),
                    seconds=seconds,
                )
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=meet, name=f"worker {rank}")
        thread.start()
        self._threads.append(thread)

        def end() -> Exception | None:
            thread.join(2 * WAIT_SECONDS)
            assert not thread.is_alive()
            return errors[0] if errors else None

        return end

    def is_running(self, rank: int) -> bool:
        return any(t.is_alive() for t in self._threads if t.name == f"worker {rank}")

    def knock(self) -> Connection:
        """A connection to worker 0 of one who is no worker."""
        host, _, port = self.addresses[0].partition(":")
        while True:
            try:
                return Connection(socket.create_connection((host, int(port))), "worker 0")
            except ConnectionRefusedError:
                assert self.is_running(0), "worker 0 has ended"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_workers_that_start_in_any_order_go_on_together(order):
    cluster = Cluster(3)
    assert [end() for end in [cluster.start(rank) for rank in order]] == [None] * 3


def test_a_worker_that_has_not_arrived_is_named_on_all_others():
    cluster = Cluster(4)
    ends = [cluster.start(0, seconds=2.0), cluster.start(2)]
    for error in [end() for end in ends]:
        assert isinstance(error, WorkerLostError)
        assert "after 2 s not arrived: worker 1, worker 3. Start every worker" in str(error)
        assert error.workers == (1, 3)


def test_different_versions_are_named_on_all_workers():
    cluster = Cluster(3)
    ends = [
        cluster.start(0),
        cluster.start(1, facts={"JAX": "0.9.0"}),
        cluster.start(2, facts={"Python": "3.12.1"}),
    ]
    for error in [end() for end in ends]:
        assert isinstance(error, WorkersDifferError)
        assert "JAX is 0.10.2 on worker 0 and 0.9.0 on worker 1; " in str(error)
        assert "Python is 3.11.9 on worker 0 and 3.12.1 on worker 2." in str(error)


def test_a_fact_that_a_worker_does_not_know_is_a_difference():
    cluster = Cluster(2)
    ends = [cluster.start(0, facts={"CPU devices": "2"}), cluster.start(1)]
    for error in [end() for end in ends]:
        assert "CPU devices is 2 on worker 0 and None on worker 1" in str(error)


def test_a_second_worker_of_the_same_rank_is_refused_and_the_right_one_is_still_awaited():
    cluster = Cluster(3)
    chief = cluster.start(0)
    twins = [cluster.start(1), cluster.start(1)]
    refused: list[Exception] = []
    while not refused:  # the other one waits for worker 2
        cluster._threads[1].join(0.01)
        refused = [
            error
            for thread, end in zip(cluster._threads[1:], twins, strict=True)
            if not thread.is_alive() and (error := end())
        ]
    late = cluster.start(2)
    errors = [end() for end in (chief, *twins, late)]
    assert errors.count(None) == 3
    assert isinstance(refused[0], WorkersDifferError)
    assert "there is a worker 1 already. Start each worker once." in str(refused[0])


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"type": "here", "rank": "1", "of": 2, "facts": FACTS},
        {"type": "here", "rank": 0, "of": 2, "facts": FACTS},
        {"type": "here", "rank": 2, "of": 2, "facts": FACTS},
        {"type": "here", "rank": 1, "of": 3, "facts": FACTS},
        {"type": "here", "rank": 1, "of": 2, "facts": None},
    ],
)
def test_one_who_is_no_worker_of_the_cluster_gets_no_answer(message: dict):
    cluster = Cluster(2)
    chief = cluster.start(0)
    stranger = cluster.knock()
    stranger.send(message)
    with pytest.raises(ClusterPlatformError, match="it closed the connection"):
        stranger.receive(WAIT_SECONDS)
    stranger.close()
    assert cluster.start(1)() is None
    assert chief() is None


ATTACKS = {
    "half a character": b'{"type": "here", "rank": 1, "of": 2, "facts": {"JAX": "\\ud800"}}\n',
    "nested without end": b"[" * 200_000 + b"\n",
    "nested objects": b'{"a":' * 10_000 + b"\n",
    "a number without end": b'{"rank": ' + b"9" * 5000 + b"}\n",
    "no end of the line": b"x" * 200_000,
    "no text": b"\xff\xfe\x00\n",
    "a rank that is true": b'{"type": "here", "rank": true, "of": 2, "facts": {}}\n',
    "facts that are no text": b'{"type": "here", "rank": 1, "of": 2, "facts": {"JAX": [1]}}\n',
    "a long fact": b'{"rank": 1, "of": 2, "facts": {"JAX": "' + b"x" * 201 + b'"}}\n',
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_malformed_report_refuses_that_peer_only(name: str):
    cluster = Cluster(2)
    chief = cluster.start(0)
    stranger = cluster.knock()
    with contextlib.suppress(OSError):  # it may be refused before it has said all
        stranger._socket.sendall(ATTACKS[name])
    with pytest.raises(ClusterPlatformError, match="is lost: "):
        stranger.receive(WAIT_SECONDS)
    stranger.close()
    assert cluster.start(1)() is None
    assert chief() is None


def test_connections_that_say_nothing_do_not_stop_a_start():
    cluster = Cluster(2)
    chief = cluster.start(0)
    silent = [cluster.knock() for _ in range(600)]
    since = time.monotonic()
    assert cluster.start(1)() is None
    assert chief() is None
    assert time.monotonic() - since < 5.0
    for stranger in silent:
        stranger.close()


ANSWERS = [
    b"[" * 200_000,
    b'{"type": "WorkerLostError", "reason": ["\\ud800"], "workers": 7}',
    b'{"type": "WorkerLostError", "reason": null, "workers": 7}',
    b'{"type": "WorkerLostError", "workers": [1, "2", null, [[]]]}',
    b'{"type": ["go"]}',
    b"{}",
]


@pytest.mark.parametrize("answer", ANSWERS, ids=range(len(ANSWERS)))
def test_a_malformed_answer_of_worker_0_is_one_of_our_errors(answer: bytes):
    cluster = Cluster(3)
    host, _, port = cluster.addresses[0].partition(":")
    with socket.create_server((host, int(port))) as listener:
        end = cluster.start(1)
        with listener.accept()[0] as connection:
            connection.sendall(answer + b"\n")
            error = end()
    assert isinstance(error, WorkerLostError | WorkersDifferError)


@pytest.mark.parametrize("count", [300, full_only(10_000)])
def test_no_message_stops_a_start(count: int):
    rng = random.Random(17)
    report = json.dumps({"type": "here", "rank": 1, "of": 4, "facts": FACTS})  # of another cluster
    cluster = Cluster(3)
    chief = cluster.start(0)
    strangers: collections.deque[Connection] = collections.deque()
    for number in range(count):
        if number % 3:
            message = mutations.mutated_text(rng, report)
        elif number % 2:
            message = rng.randbytes(rng.randrange(2000))
        else:
            message = rng.choice(list(ATTACKS.values()))
        strangers.append(cluster.knock())
        with contextlib.suppress(OSError):
            strangers[-1]._socket.sendall(message + b"\n")
        if len(strangers) > 100:
            strangers.popleft().close()
    for stranger in strangers:
        stranger.close()
    assert cluster.is_running(0)
    other = cluster.start(2)
    while error := cluster.start(1)():  # one of the messages may have been right
        assert "there is a worker 1 already" in str(error)
    assert (chief(), other()) == (None, None)


def test_junk_and_silence_at_the_port_do_not_hold_the_workers_up():
    cluster = Cluster(2)
    chief = cluster.start(0)
    silent, talking = cluster.knock(), cluster.knock()
    talking._socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert cluster.start(1)() is None
    assert chief() is None
    silent.close()
    talking.close()


def test_a_worker_that_left_while_it_waited_may_come_again():
    cluster = Cluster(3)
    chief = cluster.start(0)
    first = cluster.knock()
    first.send({"type": "here", "rank": 1, "of": 3, "facts": FACTS})
    first.close()
    other = cluster.start(2)
    while error := cluster.start(1)():  # until it has been noticed
        assert "there is a worker 1 already" in str(error)
    assert (chief(), other()) == (None, None)


def test_a_worker_0_that_cannot_be_reached_is_named():
    error = Cluster(2).start(1, seconds=0.3)()
    assert isinstance(error, WorkerLostError)
    assert "worker 0 could not be reached within 0.3 s" in str(error)
    assert error.workers == (0,)


def test_a_worker_0_that_goes_away_is_named():
    cluster = Cluster(2)
    host, _, port = cluster.addresses[0].partition(":")
    with socket.create_server((host, int(port))) as listener:
        end = cluster.start(1)
        listener.accept()[0].close()
    assert "worker 0 went away at the start" in str(end())


def test_a_worker_0_whose_port_is_taken_says_so():
    cluster = Cluster(2)
    host, _, port = cluster.addresses[0].partition(":")
    with socket.create_server((host, int(port))):
        error = cluster.start(0)()
    assert isinstance(error, ClusterPlatformError)
    assert f"worker 0 cannot listen on {cluster.addresses[0]}" in str(error)


def test_worker_0_listens_at_its_own_address_only():
    cluster = Cluster(2)
    chief = cluster.start(0)
    cluster.knock().close()
    port = int(cluster.addresses[0].rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError, match="refused"):
        socket.create_connection(("127.0.0.2", port), 10)
    assert cluster.start(1)() is None
    assert chief() is None


def test_the_time_limit_of_the_start_is_a_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REPLICAX_START_SECONDS", "12.5")
    assert arrival.start_seconds() == 12.5


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf", "1e300"])
def test_a_time_limit_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, text: str):
    monkeypatch.setenv("REPLICAX_START_SECONDS", text)
    with pytest.raises(ClusterError, match=f"REPLICAX_START_SECONDS is '{text}'; expected a num"):
        arrival.start_seconds()
