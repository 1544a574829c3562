"""The launcher of a node other than 0: says where its workers are, and does as node 0 decides."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Any

from replicax.cluster.addresses import Address
from replicax.cluster.wire import Connection
from replicax.core.errors import ClusterPlatformError
from replicax.launch import handshake
from replicax.launch.interruption import Interruption
from replicax.launch.nodes import StartCoordination, own_addresses
from replicax.launch.outcome import Ending, Outcome
from replicax.launch.plan import Layout
from replicax.launch.restart import Decision, RestartPolicy

_TURN_SECONDS = 0.1
_RETRY_SECONDS = 0.25
_CONNECT_SECONDS = 5.0


class Follower:
    """Node 1 or a later one of several.

    Args:
        coordinator: Where node 0 listens.
        node: The number of this node.
        host: The name or address of this machine that workers advertise; None for the address
            that the connection to node 0 has.
        num_nodes: How many nodes the job has.
        num_workers: How many workers this one has.
        interruption: Ends every wait.
        token: The secret of the job, if it has one.
        start_seconds: How long node 0 and the others may take to come.
        end_seconds: How long node 0 may take to answer an interruption.

    Example:
        >>> follower = Follower(
        ...     Address("127.0.0.1", 7000),
        ...     node=1,
        ...     host=None,
        ...     num_nodes=2,
        ...     num_workers=1,
        ...     interruption=Interruption(),
        ... )
        >>> follower.node_id
        1
        >>> follower.close()
    """

    def __init__(
        self,
        coordinator: Address,
        *,
        node: int,
        host: str | None,
        num_nodes: int,
        num_workers: int,
        interruption: Interruption,
        token: bytes = b"",
        start_seconds: float = 300.0,
        end_seconds: float = 60.0,
    ) -> None:
        self.node_id = node
        self._coordinator = coordinator
        self._host = host
        self._num_nodes = num_nodes
        self._num_workers = num_workers
        self._interruption = interruption
        self._token = token
        self._start_seconds = start_seconds
        self._end_seconds = end_seconds
        self._connection: Connection | None = None
        self._heard: Ending | None = None

    def meet(self, start: StartCoordination) -> Layout | None:
        """Joins node 0, tells it this node's addresses and learns all others."""
        deadline = time.monotonic() + self._start_seconds
        if self._connection is None:
            sock = self._connect(deadline)
            if sock is None:
                return None
            self._connection = Connection(sock, f"node 0 at {self._coordinator}")
            handshake.join(
                self._connection,
                node=self.node_id,
                num_nodes=self._num_nodes,
                token=self._token,
            )
        self._heard = None
        host = self._host or self._connection.local_host
        own = own_addresses(host, self._num_workers)
        self._connection.send({"type": "ready", "addresses": own})
        begin = self._wait_for("start", deadline)
        if begin is None:
            return None
        names = {str(name): str(value) for name, value in begin["environment"].items()}
        return Layout(tuple(map(str, begin["addresses"])), int(begin["first_id"]), names)

    def _connect(self, deadline: float) -> socket.socket | None:
        address = self._coordinator.host, self._coordinator.port
        while not self._interruption.count:
            try:
                return socket.create_connection(address, timeout=_CONNECT_SECONDS)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ClusterPlatformError(
                        f"node 0 did not answer at {self._coordinator} within "
                        f"{self._start_seconds:g} s ({error}). Is 'replicax launch --node 0' "
                        "running there, and may this machine reach the port?"
                    ) from error
            self._interruption.wait(_RETRY_SECONDS)
        return None

    def _wait_for(self, expected: str, deadline: float) -> dict[str, Any] | None:
        """The next message of this type, others before it left out; None when interrupted."""
        assert self._connection is not None
        while not self._interruption.count:
            message = self._connection.receive(_TURN_SECONDS)
            if message is not None and message.get("type") == expected:
                return message
            if time.monotonic() > deadline:
                raise ClusterPlatformError(
                    f"node 0 did not send {expected!r} within {self._start_seconds:g} s. Have all "
                    f"{self._num_nodes} nodes been started?"
                )
        return None

    def report(self, ending: Ending) -> None:
        """Tells node 0, which tells all."""
        self._send({"type": "ending", "ending": ending.value})

    def poll(self) -> Ending | None:
        """How another node is about to end, if node 0 said so; failed, if node 0 is gone."""
        if self._heard is None and self._connection is not None:
            try:
                message = self._connection.receive(0.0)
            except ClusterPlatformError:
                self._heard = Ending.FAILED
            else:
                if message is not None and message.get("type") == "ending":
                    self._heard = Ending(message["ending"])
        return self._heard

    def decide(self, outcome: Outcome, policy: RestartPolicy) -> Decision:
        """Tells node 0 how this node ended and waits for its decision; the policy is node 0's."""
        self._send({"type": "ended", "outcome": outcome.to_json()})
        deadline = None
        while deadline is None or time.monotonic() < deadline:
            if self._interruption.count and outcome.ending is Ending.DONE:
                break  # the workers of other nodes run on, and node 0 may decide without this one
            if self._interruption.count and deadline is None:
                deadline = time.monotonic() + self._end_seconds
            try:
                assert self._connection is not None
                message = self._connection.receive(_TURN_SECONDS)
            except ClusterPlatformError as error:
                lost = Outcome(Ending.FAILED, outcome.first, outcome.code or 1, str(error), False)
                return Decision(lost)
            if message is not None and message.get("type") == "decision":
                decided = Outcome.from_json(message["outcome"])
                return Decision(decided, bool(message["restart"]), float(message["pause"]))
        return Decision(outcome)

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._connection is not None
        with contextlib.suppress(ClusterPlatformError):  # noticed when it is read from
            self._connection.send(message)
