"""Messages between processes of a cluster: whatever comes is a message, or the end of one peer."""

import contextlib
import json
import random
import socket

import pytest

from replicax.cluster.wire import Connection
from replicax.core.errors import ClusterPlatformError
from tests.cluster import mutations
from tests.tiers import full_only

MALFORMED = {
    "half a character": (b'{"a": "\\ud800"}\n', r"which has half a character in it: '\\ud800'"),
    "nested without end": (b"[" * 200_000 + b"\n", "which is nested deeper than 100"),
    "a number without end": (b"9" * 5000 + b"\n", "which has a number of 5000 digits"),
    "no text": (b"\xff\n", "which is not UTF-8"),
    "too long": (b" " * 300_000, "a message of more than 250000 bytes"),
}


def received(data: bytes, seconds: float = 10.0) -> dict | None:
    """What a connection makes of `data`, after which the other end has gone."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1_000_000)
    with theirs, contextlib.closing(Connection(ours, "worker 1", max_bytes=250_000)) as connection:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        return connection.receive(seconds)


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_malformed_is_the_end_of_that_peer(name: str):
    data, why = MALFORMED[name]
    with pytest.raises(ClusterPlatformError, match=f"connection to worker 1 is lost: .*{why}"):
        received(data)


@pytest.mark.parametrize("count", [300, full_only(10_000)])
def test_every_message_is_an_object_or_one_error(count: int):
    rng = random.Random(8)
    text = json.dumps({"type": "here", "rank": 1, "facts": {"JAX": "0.10.2", "n": [1, 2.5, None]}})
    num_read = 0
    for _ in range(count):
        data = mutations.mutated_text(rng, text) + b"\n"
        try:
            message = received(data)
        except ClusterPlatformError as error:
            str(error).encode()
            continue
        json.dumps(message, ensure_ascii=False).encode()
        assert isinstance(message, dict), data
        num_read += 1
    assert 0 < num_read < count
