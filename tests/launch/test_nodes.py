"""Several launchers that meet over real connections on the loopback interface."""

import contextlib
import dataclasses
import os
import pathlib
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from replicax.cluster.addresses import Address, free_port
from replicax.cluster.wire import MAX_MESSAGE_BYTES, Connection
from replicax.core.errors import ClusterError, ClusterPlatformError
from replicax.launch import job_token
from replicax.launch.follower import Follower
from replicax.launch.interruption import Interruption
from replicax.launch.leader import Leader
from replicax.launch.outcome import Ending, Outcome, combine
from replicax.launch.plan import Job
from replicax.launch.restart import RestartLimits
from replicax.launch.run import Observer, Run
from replicax.launch.summary import Summary
from tests.launch.programs import WAIT_SECONDS, program, wait_until

LIMITS = RestartLimits(max_restarts=1, backoff_seconds=0.0)


class Node:
    """One launcher in a thread of this process."""

    def __init__(self, number: int, coordinator: Address, source: str, **settings) -> None:
        self.lines: list[tuple[int, str]] = []
        self.interruption = Interruption()
        self.reactions: dict[str, object] = settings.pop("reactions", {})
        self.summary: Summary | None = None
        self.error: Exception | None = None
        self.notices: list[str] = []
        num_workers = settings.pop("workers", 1)
        common = {
            "num_nodes": 2,
            "num_workers": num_workers,
            "interruption": self.interruption,
            "start_seconds": WAIT_SECONDS,
        }
        if number == 0:
            notice = {"on_notice": self.notices.append}
            self.nodes = Leader(coordinator, host="127.0.0.1", **common | notice | settings)
        else:
            self.nodes = Follower(coordinator, node=number, host=None, **common | settings)
        self._run = Run(
            Job(program(source), num_workers=num_workers, grace_seconds=10.0),
            nodes=self.nodes,
            limits=LIMITS,
            interruption=self.interruption,
            observer=Observer(on_line=self._on_line),
        )
        self._thread = threading.Thread(target=self._execute, name=f"node {number}")
        self._thread.start()

    def _on_line(self, worker_id: int, line: str) -> None:
        self.lines.append((worker_id, line))
        if reaction := self.reactions.get(line):
            reaction()

    def _execute(self) -> None:
        try:
            self.summary = self._run.execute()
        except Exception as error:
            self.error = error

    def end(self) -> Summary | None:
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()
        return self.summary

    def stop(self) -> None:
        self.interruption.add(signal.SIGTERM)
        self.interruption.add(signal.SIGTERM)
        self.end()


@pytest.fixture
def start() -> Iterator:
    coordinator = Address("127.0.0.1", free_port())
    with contextlib.ExitStack() as stack:

        def start_node(number: int, source: str = "", **settings) -> Node:
            node = Node(number, coordinator, source, **settings)
            stack.callback(node.stop)
            return node

        start_node.coordinator = coordinator
        yield start_node


def test_workers_of_all_nodes_are_one_cluster_in_the_order_of_the_nodes(start):
    source = "print(worker, *config['cluster']['worker'])"
    nodes = [start(0, source, workers=2), start(1, source, workers=3)]
    assert [node.end().code for node in nodes] == [0, 0]
    lines = [line.split() for node in nodes for _, line in node.lines]
    assert sorted(line[0] for line in lines) == ["0", "1", "2", "3", "4"]
    assert {worker_id for worker_id, _ in nodes[1].lines} == {2, 3, 4}
    assert len({tuple(line[1:]) for line in lines}) == 1
    assert len(set(lines[0][1:])) == 5


def test_it_does_not_matter_which_node_starts_first(start):
    late = start(1)
    assert start(0).end().code == 0
    assert late.end().code == 0


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_on_one_node_restarts_all_nodes_on_new_ports(
    start, failing: int, tmp_path: pathlib.Path
):
    os.mkfifo(tmp_path / "fifo")
    source = f"""
    print(attempt, *config['cluster']['worker'])
    if attempt == 1:
        # Each waits for the other, so that both have printed.
        open({str(tmp_path / "fifo")!r}, "r" if worker == {failing} else "w")
        if worker == {failing}: sys.exit(3)
        while True: signal.pause()
    """
    nodes = [start(0, source), start(1, source)]
    for node in nodes:
        summary = node.end()
        assert [o.ending for o in summary.outcomes] == [Ending.FAILED, Ending.DONE]
        assert summary.outcomes[0].first.worker_id == failing
        assert [line.split()[0] for _, line in node.lines] == ["1", "2"]
    first, second = (line.split()[1:] for _, line in nodes[0].lines)
    assert set(first).isdisjoint(second)
    assert [line for _, line in nodes[0].lines] == [line for _, line in nodes[1].lines]


def test_a_node_whose_workers_are_done_waits_for_the_others(start):
    source = "sys.exit(4) if worker == 1 and attempt < 3 else None"
    nodes = [start(0, source), start(1, source)]
    assert [node.end().code for node in nodes] == [4, 4]
    assert [len(node.summary.outcomes) for node in nodes] == [2, 2]  # one restart, as node 0 says


@pytest.mark.parametrize("asked", [0, 1])
def test_sigterm_to_one_node_ends_all_and_workers_may_save(start, asked: int):
    nodes: list[Node] = []
    ready = threading.Barrier(2, lambda: nodes[asked].interruption.add(signal.SIGTERM))
    source = """
    signal.signal(signal.SIGTERM, lambda *args: sys.exit(75))
    print("ready")
    while True: signal.pause()
    """
    reactions = {"ready": lambda: ready.wait(WAIT_SECONDS)}
    nodes += [start(number, source, reactions=reactions) for number in (0, 1)]
    for node in nodes:
        summary = node.end()
        assert (summary.code, len(summary.outcomes)) == (75, 1)
        assert summary.outcomes[0].ending is Ending.INTERRUPTED


def test_a_preemption_on_one_node_restarts_all(start):
    source = """
    if attempt == 1: sys.exit(75)
    """
    nodes = [start(0, source), start(1, source)]
    for node in nodes:
        assert [o.ending for o in node.end().outcomes] == [Ending.PREEMPTED, Ending.DONE]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_launcher_that_is_lost_ends_the_run(start, lost: int):
    nodes: list[Node] = []

    def lose() -> None:
        node = nodes[lost].nodes
        connection = node._connections[1] if lost == 0 else node._connection
        connection._socket.shutdown(socket.SHUT_RDWR)  # as its end would

    both = threading.Barrier(2, lose)
    source = "print('ready')\nwhile True: signal.pause()"
    nodes += [
        start(number, source, reactions={"ready": lambda: both.wait(WAIT_SECONDS)})
        for number in (0, 1)
    ]
    for node in nodes:
        summary = node.end()
        assert (summary.code, len(summary.outcomes)) == (1, 1)
        assert "is lost" in summary.text()


# -- who is let in -----------------------------------------------------------------------------


def test_a_node_that_does_not_come_is_named(start):
    leader = start(0, start_seconds=0.2)
    leader.end()
    assert isinstance(leader.error, ClusterPlatformError)
    assert "node 1 has not come within 0.2 s" in str(leader.error)


def test_a_missing_node_0_is_an_error_with_its_address(start):
    node = start(1, start_seconds=0.2)
    node.end()
    assert f"node 0 did not answer at {start.coordinator} within 0.2 s" in str(node.error)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"token": b"another token of the job"}, "its token is not the token of node 0"),
        ({"num_nodes": 3}, "it was started with --nodes 3, node 0 with 2"),
        ({"node": 2}, "its number is 2, expected 1 to 1"),
    ],
)
def test_a_node_that_does_not_fit_is_told_why_and_the_right_one_is_still_let_in(
    start, settings: dict, reason: str
):
    token = {"token": b"the token of the job"}
    leader = start(0, **token)
    wrong = start(settings.pop("node", 1), **token | settings)
    wrong.end()
    assert isinstance(wrong.error, ClusterError)
    assert f"node 0 refused this node: {reason}" in str(wrong.error)
    right = start(1, **token)
    assert (leader.end().code, right.end().code) == (0, 0)
    assert any(reason in notice for notice in leader.notices)


def test_a_second_node_of_the_same_number_is_refused(start):
    leader = start(0, num_nodes=3)
    twins = [start(1, num_nodes=3), start(1, num_nodes=3)]
    assert wait_until(lambda: any(node.error for node in twins))  # the other waits for node 2
    third = start(2, num_nodes=3)
    ends = [node.end() for node in (leader, *twins, third)]
    (refused,) = [node for node in twins if node.error is not None]
    assert "there is a node 1 already" in str(refused.error)
    assert ends[0].code == ends[3].code == 0


def test_a_node_that_comes_when_all_are_there_is_told_so_at_once(start, tmp_path: pathlib.Path):
    os.mkfifo(tmp_path / "fifo")
    source = f"""
    print("running")
    open({str(tmp_path / "fifo")!r}).read() if worker == 0 else None
    """
    running = threading.Event()
    leader = start(0, source, reactions={"running": running.set})
    first = start(1, source)
    assert running.wait(WAIT_SECONDS)
    second = start(1)
    second.end()
    assert isinstance(second.error, ClusterError)
    assert "node 0 refused this node: all 2 nodes are there already" in str(second.error)
    assert any("all 2 nodes are there already" in notice for notice in leader.notices)
    (tmp_path / "fifo").write_text("")
    assert [node.end().code for node in (leader, first)] == [0, 0]


def test_one_who_cannot_prove_itself_gets_nothing_but_a_challenge(start):
    leader = start(0, token=b"the token of the job")
    address = (start.coordinator.host, start.coordinator.port)
    connection = Connection(socket.create_connection(address), "node 0")
    assert connection.receive(WAIT_SECONDS)["type"] == "challenge"
    connection.send({"type": "join", "node": 1, "nodes": 2, "nonce": "a", "proof": "b"})
    assert connection.receive(WAIT_SECONDS)["type"] == "refused"
    with pytest.raises(ClusterPlatformError, match="is lost"):
        connection.receive(WAIT_SECONDS)
    connection.close()
    assert leader.summary is None


def test_a_false_node_0_is_found_out_by_its_missing_proof(start):
    with socket.create_server((start.coordinator.host, start.coordinator.port)) as listener:
        node = start(1, token=b"the token of the job")
        sock, _ = listener.accept()
        connection = Connection(sock, "node 1")
        connection.send({"type": "challenge", "nonce": "a"})
        assert connection.receive(WAIT_SECONDS)["type"] == "join"
        connection.send({"type": "welcome", "proof": "false"})
        node.end()
        connection.close()
    assert "does not hold the token of this job" in str(node.error)


def test_node_0_listens_at_the_coordinator_address_only_and_only_while_it_runs(start):
    leader = start(0)
    assert leader.nodes._listener.getsockname() == ("127.0.0.1", start.coordinator.port)
    start(1)
    assert leader.end().code == 0
    with pytest.raises(ConnectionRefusedError, match="refused"):
        socket.create_connection((start.coordinator.host, start.coordinator.port), 10)


def test_node_0_cannot_listen_at_an_address_of_another_machine():
    settings = {"num_nodes": 2, "num_workers": 1, "interruption": Interruption()}
    with pytest.raises(
        ClusterError, match=r"cannot listen at the coordinator address 192\.0\.2\.1:70"
    ):
        Leader(Address("192.0.2.1", 7000), host="192.0.2.1", **settings)


@pytest.mark.parametrize("host", ["0.0.0.0", "0", "::"])
def test_node_0_never_listens_on_all_interfaces(host: str):
    settings = {"num_nodes": 2, "num_workers": 1, "interruption": Interruption()}
    with pytest.raises(ClusterError, match=f"'{host}' means every interface of a machine"):
        Leader(Address(host, 7000), host="127.0.0.1", **settings)


@pytest.mark.parametrize("number", [0, 1])
def test_a_signal_ends_the_wait_for_other_nodes(start, number: int):
    node = start(number)
    node.interruption.add(signal.SIGINT)
    assert node.end().code == 130


# -- parts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"not json\n", "which is not JSON: Expecting value"),
        (b"[1]\n", "which is no JSON object"),
        (b"x" * (MAX_MESSAGE_BYTES + 70000), "a message of more than"),
        (b"", "it closed the connection"),
    ],
    ids=["no JSON", "no object", "too long", "nothing"],
)
def test_what_is_no_message_ends_a_connection(data: bytes, text: str):
    ours, theirs = socket.socketpair()
    connection = Connection(ours, "node 1")

    def send() -> None:
        with theirs, contextlib.suppress(OSError):
            theirs.sendall(data)

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(ClusterPlatformError, match=f"the connection to node 1 is lost: .*{text}"):
        connection.receive(WAIT_SECONDS)
    connection.close()
    sender.join(WAIT_SECONDS)


def test_the_worst_end_counts_and_of_equal_ones_the_first():
    failed = [Outcome(Ending.FAILED, code=code) for code in (3, 4)]
    done, preempted = Outcome(Ending.DONE), Outcome(Ending.PREEMPTED, code=75)
    assert combine([done, preempted, *failed]).code == 3
    assert combine([done, preempted]) == preempted
    lost = dataclasses.replace(failed[1], can_restart=False)
    assert combine([failed[0], lost]) == dataclasses.replace(failed[0], can_restart=False)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o606])
def test_a_token_that_others_can_read_is_refused(tmp_path: pathlib.Path, mode: int):
    path = tmp_path / "token"
    path.write_text("0123456789abcdef")
    path.chmod(mode)
    with pytest.raises(ClusterError, match=f"has mode {mode:04o}: others than its owner"):
        job_token.read_token(path)


def test_a_short_token_is_refused_and_a_long_one_read_without_its_newline(tmp_path: pathlib.Path):
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text("short\n")
    with pytest.raises(ClusterError, match="has 5 characters, expected at least 16"):
        job_token.read_token(path)
    path.write_text("0123456789abcdef\n")
    assert job_token.read_token(path) == b"0123456789abcdef"
