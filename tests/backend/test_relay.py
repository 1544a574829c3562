"""The relay keeps JAX's side of a connection open, whatever happens on the other side."""

import socket
import struct
import time

import pytest

from replicax.backend.relay import Relay
from replicax.cluster.addresses import free_port
from tests.launch.programs import wait_until


@pytest.fixture
def service():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def connected(service):
    """A relay to the service, and both ends of a connection through it."""
    relay = Relay(f"127.0.0.1:{service.getsockname()[1]}", start_seconds=10.0)
    host, port = relay.address.split(":")
    near = socket.create_connection((host, int(port)), timeout=10.0)
    far, _ = service.accept()
    far.settimeout(10.0)
    return relay, near, far


def is_silent(near):
    """Whether the connection is open and nothing comes."""
    near.settimeout(0.2)
    try:
        near.recv(1)
    except TimeoutError:
        return True
    return False


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_a_connection_that_the_service_ends_stays_open_and_silent(service, how):
    relay, near, far = connected(service)
    with near:
        far.sendall(b"last words")
        if how == "reset":
            far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            assert near.recv(100) == b"last words"
        far.close()
        assert wait_until(lambda: relay.is_cut)
        if how == "closed":
            assert near.recv(100) == b"last words"
        near.sendall(b"x" * 1_000_000)  # nobody reads it, and nobody says so
        assert is_silent(near)


def test_a_new_connection_is_silent_too_once_the_service_has_gone(service):
    relay, near, far = connected(service)
    service.close()
    far.close()
    near.close()
    host, port = relay.address.split(":")
    with socket.create_connection((host, int(port)), timeout=10.0) as again:
        assert wait_until(lambda: relay.is_cut)
        assert is_silent(again)


def test_large_messages_arrive_whole_in_both_directions(service):
    relay, near, far = connected(service)
    message = bytes(range(256)) * 4000
    with near, far:
        for source, sink in ((near, far), (far, near)):
            source.sendall(message[:100_000])
            found = b""
            while len(found) < 100_000:
                found += sink.recv(65536)
            assert found == message[:100_000]
        assert not relay.is_cut


def test_a_service_that_comes_later_is_waited_for():
    port = free_port("127.0.0.1")
    relay = Relay(f"127.0.0.1:{port}", start_seconds=10.0)
    host, own = relay.address.split(":")
    with socket.create_connection((host, int(own)), timeout=10.0) as near:
        near.sendall(b"hello")
        with socket.create_server(("127.0.0.1", port)) as service:
            far, _ = service.accept()
            with far:
                assert far.recv(5) == b"hello"
                assert not relay.is_cut


def test_a_service_that_never_comes_is_an_ended_connection():
    relay = Relay(f"127.0.0.1:{free_port('127.0.0.1')}", start_seconds=0.2)
    host, own = relay.address.split(":")
    since = time.monotonic()
    with socket.create_connection((host, int(own)), timeout=10.0) as near:
        assert near.recv(1) == b""
    assert time.monotonic() - since < 5.0
    assert not relay.is_cut
