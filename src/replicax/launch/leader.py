"""The launcher of node 0: lets the others in, and decides for all.

It listens at the coordinator address only. When all nodes are there, one that comes later is told
so and nothing is read from it: if nobody listened, it could not tell that from a node 0 that has
not started, and would wait. A node that is lost ends the run: what started the launchers has to
start them again.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from typing import Any

from replicax.cluster import addresses
from replicax.cluster.addresses import Address
from replicax.cluster.wire import Connection
from replicax.core.errors import ClusterError, ClusterPlatformError
from replicax.launch import handshake
from replicax.launch.interruption import Interruption
from replicax.launch.nodes import StartCoordination, check_one_interface, own_addresses
from replicax.launch.outcome import Ending, Outcome, combine
from replicax.launch.plan import Layout
from replicax.launch.restart import Decision, RestartPolicy

_TURN_SECONDS = 0.1


class Leader:
    """Node 0 of several.

    Args:
        coordinator: Where it listens: an address of this machine.
        host: The name or address of this machine that workers advertise.
        num_nodes: How many nodes the job has.
        num_workers: How many workers this one has.
        interruption: Ends every wait.
        token: The secret of the job, if it has one.
        start_seconds: How long the other nodes may take to come.
        end_seconds: How long they may take to end once one of them has.
        on_notice: Told of a node that was refused.

    Raises:
        ClusterError: If the coordinator is not an address of this machine.

    Example:
        >>> leader = Leader(
        ...     Address("127.0.0.1", addresses.free_port()),
        ...     host="127.0.0.1",
        ...     num_nodes=1,
        ...     num_workers=2,
        ...     interruption=Interruption(),
        ... )
        >>> layout = leader.meet(lambda addresses: {})
        >>> len(layout.addresses)
        2
        >>> leader.close()
    """

    node_id = 0

    def __init__(
        self,
        coordinator: Address,
        *,
        host: str,
        num_nodes: int,
        num_workers: int,
        interruption: Interruption,
        token: bytes = b"",
        start_seconds: float = 300.0,
        end_seconds: float = 60.0,
        on_notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._host = host
        self._num_nodes = num_nodes
        self._num_workers = num_workers
        self._interruption = interruption
        self._token = token
        self._start_seconds = start_seconds
        self._end_seconds = end_seconds
        self._on_notice = on_notice
        self._connections: dict[int, Connection] = {}
        self._ended: dict[int, Outcome] = {}
        self._troubled: dict[int, Ending] = {}  # in the order in which trouble came
        self._listener = _listen(coordinator)

    # -- before an attempt ---------------------------------------------------------------------

    def meet(self, start: StartCoordination) -> Layout | None:
        """Waits for all nodes, and tells each of them where all workers are."""
        deadline = time.monotonic() + self._start_seconds
        if not self._let_in(deadline):
            return None
        found = {0: own_addresses(self._host, self._num_workers)}
        while len(found) < self._num_nodes:
            if self._interruption.count:
                return None
            self._check_time(deadline, "has not said where its workers are", found)
            self._turn_away()
            for node, connection in self._connections.items():
                if node not in found and (ready := connection.receive(_TURN_SECONDS)):
                    found[node] = tuple(map(str, _of_type(ready, "ready")["addresses"]))
        everyone = tuple(address for node in sorted(found) for address in found[node])
        environment = dict(start(everyone))
        for node, connection in self._connections.items():
            first_id = sum(len(found[before]) for before in range(node))
            fields = {"addresses": everyone, "first_id": first_id, "environment": environment}
            connection.send({"type": "start", **fields})
        self._ended.clear()
        self._troubled.clear()
        return Layout(everyone, 0, environment)

    def _let_in(self, deadline: float) -> bool:
        while len(self._connections) < self._num_nodes - 1:
            if self._interruption.count:
                return False
            self._check_time(deadline, "has not come", {0, *self._connections})
            self._listener.settimeout(_TURN_SECONDS)
            try:
                sock, peer = self._listener.accept()
            except TimeoutError:
                continue
            connection = Connection(sock, f"the launcher at {peer[0]}")
            try:
                present = frozenset(self._connections)
                node = handshake.admit(
                    connection, num_nodes=self._num_nodes, present=present, token=self._token
                )
            except (ClusterError, ClusterPlatformError) as error:
                connection.close()
                self._on_notice(f"{peer[0]}: {error}")
                continue
            connection.peer = f"node {node}"
            self._connections[node] = connection
        return True

    def _turn_away(self) -> None:
        """Tells one who comes when all nodes are there."""
        self._listener.settimeout(0.0)
        try:
            sock, peer = self._listener.accept()
        except OSError:  # nobody has come
            return
        connection = Connection(sock, f"the launcher at {peer[0]}")
        with contextlib.suppress(ClusterPlatformError):
            self._on_notice(f"{peer[0]}: {handshake.refuse_late(connection, self._num_nodes)}")
        connection.close()

    def _check_time(self, deadline: float, what: str, present: Any) -> None:
        if time.monotonic() > deadline:
            missing = ", ".join(str(n) for n in range(self._num_nodes) if n not in present)
            raise ClusterPlatformError(
                f"node {missing} {what} within {self._start_seconds:g} s. Start "
                f"'replicax launch' on every machine with --nodes {self._num_nodes}, its own "
                "--node and the same --coordinator, and check that it can reach that address."
            )

    # -- during and after an attempt -----------------------------------------------------------

    def report(self, ending: Ending) -> None:
        """Tells all nodes."""
        self._note(self.node_id, ending)

    def poll(self) -> Ending | None:
        """How another node is about to end, if one is."""
        self._read(0.0)
        return next((e for node, e in self._troubled.items() if node != self.node_id), None)

    def decide(self, outcome: Outcome, policy: RestartPolicy) -> Decision:
        """Waits for the other nodes' ends, decides, and tells them."""
        self._ended[self.node_id] = outcome
        deadline = None
        while len(self._ended) < self._num_nodes:
            if self._interruption.count and self.node_id not in self._troubled:
                self.report(Ending.INTERRUPTED)
            if self._troubled and deadline is None:
                deadline = time.monotonic() + self._end_seconds
            if deadline is not None and time.monotonic() > deadline:
                for node in set(self._connections) - set(self._ended):
                    self._lose(node, f"node {node} has not ended its workers in time.")
            self._read(_TURN_SECONDS)
        nodes = [*self._troubled, *(n for n in self._ended if n not in self._troubled)]
        decision = policy.decide(combine([self._ended[node] for node in nodes]))
        if self._interruption.count:  # or the others would wait for a node 0 that leaves
            decision = Decision(decision.outcome)
        fields = {"restart": decision.restart, "pause": decision.pause}
        self._send_all({"type": "decision", "outcome": decision.outcome.to_json(), **fields})
        return decision

    def close(self) -> None:
        """Closes all connections."""
        self._listener.close()
        for connection in self._connections.values():
            connection.close()

    def _read(self, seconds: float) -> None:
        self._turn_away()
        for node, connection in self._connections.items():
            if node in self._ended:
                continue
            try:
                message = connection.receive(seconds)
            except ClusterPlatformError as error:
                self._lose(node, str(error))
                continue
            if message is None:
                continue
            if message.get("type") == "ending":
                self._note(node, Ending(message["ending"]))
            else:
                self._ended[node] = Outcome.from_json(_of_type(message, "ended")["outcome"])

    def _note(self, node: int, ending: Ending) -> None:
        if node not in self._troubled:
            self._troubled[node] = ending
            self._send_all({"type": "ending", "ending": ending.value}, besides=node)

    def _lose(self, node: int, reason: str) -> None:
        self._ended[node] = Outcome(Ending.FAILED, None, 1, reason, can_restart=False)
        self._note(node, Ending.FAILED)

    def _send_all(self, message: dict[str, Any], besides: int | None = None) -> None:
        for node, connection in self._connections.items():
            if node != besides:
                with contextlib.suppress(ClusterPlatformError):  # noticed when it is read from
                    connection.send(message)


def _of_type(message: dict[str, Any], expected: str) -> dict[str, Any]:
    if message.get("type") != expected:
        raise ClusterPlatformError(
            f"a node sent {message.get('type')!r} where {expected!r} was expected. Do all nodes "
            "have the same version of replicax?"
        )
    return message


def _listen(coordinator: Address) -> socket.socket:
    ip = addresses.resolve_host(coordinator.host)[0]
    check_one_interface(coordinator.host)
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ip, coordinator.port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise ClusterError(
            f"node 0 cannot listen at the coordinator address {coordinator} ({error}). Give an "
            "address of the machine of node 0, and a port that is free there."
        ) from error
    return listener
