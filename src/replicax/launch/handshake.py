"""How two launchers make sure of each other before they work together.

Each proves that it holds the token of the job without sending it, and the numbers of nodes
must be the same. Without a token this finds mistakes, not attackers.
"""

from __future__ import annotations

import secrets

from replicax.cluster.wire import Connection
from replicax.core.errors import ClusterError, ClusterPlatformError
from replicax.launch import job_token

SECONDS = 10.0
_LEADER = "leader"


def admit(connection: Connection, *, num_nodes: int, present: frozenset[int], token: bytes) -> int:
    """The node that asks to join, after it has proved itself.

    Args:
        connection: To the one who asks.
        num_nodes: How many nodes the job has.
        present: Which of them are here already.
        token: The secret of the job.

    Raises:
        ClusterError: If it was refused; it has been told why.
        ClusterPlatformError: If it went away or does not speak this protocol.
    """
    challenge = secrets.token_hex()
    connection.send({"type": "challenge", "nonce": challenge})
    asked = _expect(connection, "join")
    node, nonce = asked.get("node"), str(asked.get("nonce"))
    expected = job_token.proof(token, role=_role(node), challenge=challenge, answer=nonce)
    reason = None
    if not job_token.is_proof(asked.get("proof"), expected):
        reason = "its token is not the token of node 0. Give every node the same --token-file"
    elif asked.get("nodes") != num_nodes:
        reason = f"it was started with --nodes {asked.get('nodes')}, node 0 with {num_nodes}"
    elif isinstance(node, bool) or not isinstance(node, int) or not 0 < node < num_nodes:
        reason = f"its number is {node!r}, expected 1 to {num_nodes - 1}"
    elif node in present:
        reason = f"there is a node {node} already. Give every machine a --node of its own"
    if reason is not None:
        connection.send({"type": "refused", "reason": reason})
        raise ClusterError(f"a node was refused: {reason}.")
    proof = job_token.proof(token, role=_LEADER, challenge=nonce, answer=challenge)
    connection.send({"type": "welcome", "proof": proof})
    return int(node)  # pyright: ignore[reportArgumentType]


def join(connection: Connection, *, node: int, num_nodes: int, token: bytes) -> None:
    """Asks node 0 to be let in.

    Args:
        connection: To node 0.
        node: The number of this node.
        num_nodes: How many nodes the job has.
        token: The secret of the job.

    Raises:
        ClusterError: If this node was refused, or the other end does not hold the token.
        ClusterPlatformError: If it went away or does not speak this protocol.
    """
    asked = _expect(connection, "challenge", "refused")
    _require_not_refused(asked)
    challenge = str(asked.get("nonce"))
    nonce = secrets.token_hex()
    proof = job_token.proof(token, role=_role(node), challenge=challenge, answer=nonce)
    connection.send(
        {"type": "join", "node": node, "nodes": num_nodes, "nonce": nonce, "proof": proof}
    )
    answer = _expect(connection, "welcome", "refused")
    _require_not_refused(answer)
    expected = job_token.proof(token, role=_LEADER, challenge=nonce, answer=challenge)
    if not job_token.is_proof(answer.get("proof"), expected):
        raise ClusterError(f"{connection.peer} does not hold the token of this job.")


def refuse_late(connection: Connection, num_nodes: int) -> str:
    """Tells one who asks to join when all nodes are there; returns what it was told.

    Raises:
        ClusterPlatformError: If it went away.
    """
    reason = (
        f"all {num_nodes} nodes are there already. Give every machine a --node of its own, and "
        "start one launcher on each"
    )
    connection.send({"type": "refused", "reason": reason})
    return f"a node was refused: {reason}."


def _require_not_refused(answer: dict) -> None:
    if answer["type"] == "refused":
        raise ClusterError(f"node 0 refused this node: {answer.get('reason')}.")


def _role(node: object) -> str:
    return f"node {node}"


def _expect(connection: Connection, *types: str) -> dict:
    message = connection.receive(SECONDS)
    if message is None or message.get("type") not in types:
        raise ClusterPlatformError(
            f"{connection.peer} did not send {' or '.join(types)!r} within {SECONDS:g} s. Is it a "
            "launcher of this job?"
        )
    return message
