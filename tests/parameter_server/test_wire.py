"""Messages between parameter servers and workers: what travels, who may connect, what breaks."""

import contextlib
import os
import random
import socket
import threading
import time

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from replicax.parameter_server import wire
from replicax.parameter_server.calls import ServerStub, WorkerStub, written_error
from replicax.parameter_server.encoding import MAX_ARRAY_BYTES, MessageError, ReceivedText, encode
from replicax.parameter_server.messages import (
    Attempt,
    ClosureCall,
    InputSource,
    ProgramStage,
    ReadReply,
    ShardSpec,
    StageInput,
    Update,
    UpdateKind,
)
from replicax.parameter_server.transport import FencedError, ServerGoneError, WorkerGoneError
from replicax.parameter_server.wire import CallListener, TokenError
from tests.cluster import mutations
from tests.ray_cluster.clusters import is_loopback, listeners
from tests.tiers import full_only

TOKEN = b"the token of this job"


class UsersError(Exception):
    """Of a type that only one of the processes may know."""


SPEC = ShardSpec(3, 0, "v", (2, 3), "bfloat16", start=4)


def sent(message):
    text, buffers = encode(message)
    return ReceivedText.parse(text).decode([np.array(buffer) for buffer in buffers])


# -- what travels ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        None,
        True,
        -(2**40),
        0.1,
        "text",
        b"\x00bytes",
        [1, ("a", [None])],
        {3: "three", "x": (1,)},
        Attempt(1, 2, 3),
        SPEC,
        StageInput(InputSource.ROWS, 2),
        UpdateKind.ADD_ROWS,
    ],
)
def test_what_is_sent_comes_as_it_was(message):
    received = sent(message)
    assert received == message
    assert type(received) is type(message)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "uint32", "float16"])
@pytest.mark.parametrize("shape", [(), (0, 4), (3,), (2, 3, 4)])
def test_arrays_keep_dtype_shape_and_bits(dtype: str, shape: tuple[int, ...]):
    values = np.random.default_rng(0).integers(0, 2, shape)
    for array in (np.asarray(values, jnp.dtype(dtype)), jnp.asarray(values, dtype)):
        received = sent(("before", array))[1]
        assert (received.dtype, received.shape) == (jnp.dtype(dtype), shape)
        assert received.tobytes() == np.asarray(array).tobytes()


def test_an_array_that_is_a_view_of_another_is_sent_in_its_order():
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T[::2]
    np.testing.assert_array_equal(sent(array), array)


def test_messages_hold_arrays_at_any_place():
    update = Update(UpdateKind.ADD_ROWS, 3, np.ones((2, 3)), np.array([0, 1], np.int32))
    received = sent([ClosureCall(Attempt(0, 1), 5, (np.float32(2), update.value)), [update]])
    assert received[0].arguments[0] == 2.0
    np.testing.assert_array_equal(received[1][0].rows, update.rows)
    assert sent(ReadReply(7, (1, 2), (None, np.zeros(2)))).values[0] is None


def test_a_program_travels_as_stablehlo():
    exported = jax.export.export(jax.jit(lambda x: x * 2))(jnp.ones(3))
    stage = sent(ProgramStage(exported, (StageInput(InputSource.ARGUMENT),)))
    np.testing.assert_array_equal(stage.exported.call(jnp.ones(3)), np.full(3, 2.0))


@pytest.mark.parametrize("value", [object(), lambda: 0, {1, 2}, np.array(["a", None])])
def test_nothing_else_travels(value):
    with pytest.raises(MessageError, match="cannot travel between parameter servers and workers"):
        encode(["x", value])


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"nothing",
        b"[1]",
        b'{"message":1}',
        b'{"buffers":[["float32",[-1]]],"message":1}',
        b'{"buffers":[["no dtype",[1]]],"message":1}',
        b'{"buffers":[["float32",[1e3]]],"message":1}',
        b'{"buffers":[["object",[1]]],"message":1}',
        b'{"buffers":[["V0",[1]]],"message":1}',
        b'{"buffers":[["(1,)f4,f4",[1]]],"message":1}',
        b'{"buffers":[[["f4"],[1]]],"message":1}',
    ],
)
def test_a_text_that_is_none_is_an_error(text: bytes):
    with pytest.raises(MessageError, match="is no message"):
        ReceivedText.parse(text)


@pytest.mark.parametrize(
    "message",
    [
        '{"array":1}',
        '{"what":1}',
        '{"message":["str",[]]}',
        '{"enum":["Attempt",1]}',
        '{"exported":"no program"}',
        '{"exported":{"array":0}}',
    ],
)
def test_a_structure_that_means_nothing_is_an_error(message: str):
    with pytest.raises(MessageError, match="what has come is no message"):
        text = b'{"buffers":[["",[9]]],"message":%s}' % message.encode()
        ReceivedText.parse(text).decode([np.zeros(9, np.uint8)])


def test_arrays_that_would_fill_the_memory_are_refused_before_they_are_read():
    text = b'{"buffers":[["float32",[%d]]],"message":1}' % MAX_ARRAY_BYTES
    with pytest.raises(MessageError, match=f"announces {4 * MAX_ARRAY_BYTES} bytes"):
        ReceivedText.parse(text)


# -- who may connect ---------------------------------------------------------------------------


@pytest.fixture
def listener():
    """Echoes; ``wait`` waits for ever, ``fail`` raises."""

    unknown = type("UnknownError", (Exception,), {})

    def answer(name, *arguments):
        if name == "wait":
            threading.Event().wait()
        if name == "fail":
            (kind,) = arguments
            raise {"fenced": FencedError, "known": UsersError, "unknown": unknown}[kind]("no data")
        return [name, *arguments]

    made = CallListener("127.0.0.1", TOKEN, answer, written_error)
    yield made
    made.close()


def test_it_listens_on_one_interface_only(listener):
    own = [a for a in listeners([os.getpid()]) if int(a.rpartition(":")[2], 16) == listener.port]
    assert len(own) == 1
    assert is_loopback(own[0])


def test_a_caller_with_a_wrong_token_is_refused(listener):
    with pytest.raises(TokenError, match="refused the token of this job, or is gone"):
        wire.connect("127.0.0.1", listener.port, b"another")


def test_a_caller_does_not_talk_to_somebody_else_who_listens():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        def play_along():
            sock, _ = other.accept()
            with sock:
                greeting = sock.recv(1000)
                sock.sendall(greeting)  # the caller's own nonce
                sock.sendall(sock.recv(32))  # and its own proof

        thread = threading.Thread(target=play_along)
        thread.start()
        with pytest.raises(TokenError, match="does not hold the token of this job"):
            wire.connect("127.0.0.1", port, TOKEN)
        thread.join()


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\n\r\n" * 9, bytes(range(256)) * 4])
def test_whatever_else_connects_disturbs_nobody(listener, data: bytes):
    with socket.create_connection(("127.0.0.1", listener.port)) as sock:
        sock.sendall(data)
        with contextlib.closing(wire.connect("127.0.0.1", listener.port, TOKEN)) as one:
            one.send(["hello", 1])
            assert one.receive() == ["done", ["hello", 1]]


def answers(listener):
    """Whether a caller of this job gets an answer."""
    with contextlib.closing(wire.connect("127.0.0.1", listener.port, TOKEN)) as one:
        one.send(["hello", 1])
        return one.receive() == ["done", ["hello", 1]]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count", [300, full_only(10_000)])
def test_no_message_of_a_stranger_stops_the_listener(listener, count: int):
    rng = random.Random(5)
    greeting = (wire._GREETING + bytes(32) + bytes(32)).decode()
    for number in range(count):
        with socket.create_connection(("127.0.0.1", listener.port)) as sock:
            message = mutations.mutated_text(rng, greeting) if number % 2 else rng.randbytes(99)
            with contextlib.suppress(OSError):
                sock.sendall(message)
        if number % 100 == 0:
            assert answers(listener)
    assert answers(listener)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count", [300, full_only(10_000)])
def test_no_message_of_a_caller_disturbs_the_others(listener, count: int):
    rng = random.Random(6)
    update = Update(UpdateKind.ADD_ROWS, 3, np.ones((2, 3)), np.array([0, 1], np.int32))
    calls = [["echo", 1.5, (None, {"x": [True]})], ["echo", Attempt(0, 1), update, b"bytes"]]
    written = [encode(call) for call in calls]
    for number in range(count):
        text, buffers = written[number % 2]
        mutated = mutations.mutated_text(rng, text.decode())
        with contextlib.closing(wire.connect("127.0.0.1", listener.port, TOKEN)) as one:
            data = (
                wire._LENGTH.pack(len(mutated)) + mutated + b"".join(b.tobytes() for b in buffers)
            )
            with contextlib.suppress(OSError):
                one._socket.sendall(data)
                one._socket.shutdown(socket.SHUT_WR)
            with contextlib.suppress(OSError, MessageError):
                assert one.receive()[0] in ("done", "raised")
    assert answers(listener)


@pytest.mark.parametrize("message", [1, None, {}, [], [None], "echo"], ids=repr)
def test_what_is_no_call_ends_its_connection_only(listener, message):
    with contextlib.closing(wire.connect("127.0.0.1", listener.port, TOKEN)) as one:
        one.send(message)
        with pytest.raises(ConnectionError, match="the other end closed the connection"):
            one.receive()
    assert answers(listener)


def test_a_stranger_who_drips_bytes_is_turned_away_in_time(listener, monkeypatch):
    monkeypatch.setattr(wire, "_HANDSHAKE_SECONDS", 0.4)
    since = time.monotonic()
    stranger = socket.create_connection(("127.0.0.1", listener.port), timeout=0.1)
    with stranger, contextlib.suppress(ConnectionError):
        while time.monotonic() - since < 5:
            stranger.sendall(b"r")
            with contextlib.suppress(TimeoutError):
                if not stranger.recv(1000):
                    break
    assert time.monotonic() - since < 3
    assert answers(listener)


# -- calls -------------------------------------------------------------------------------------


@pytest.fixture
def server(listener):
    stub = ServerStub(4, TOKEN)
    stub.found_at("127.0.0.1", listener.port)
    yield stub
    stub.lost("the test is over")


def test_many_threads_call_at_a_time_and_large_arrays_arrive(server):
    arrays = [np.full((index + 1) * 100_000, index, np.float32) for index in range(6)]
    replies: dict[int, np.ndarray] = {}

    def call(index):
        for _ in range(3):
            replies[index] = server.call("echo", arrays[index], [np.float32(1)] * 300)[1]

    threads = [threading.Thread(target=call, args=(index,)) for index in range(len(arrays))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, array in enumerate(arrays):
        np.testing.assert_array_equal(replies[index], array)


def test_a_call_that_waits_for_a_task_that_is_lost_raises_and_names_it(server):
    errors = []

    def wait():
        with pytest.raises(ServerGoneError, match="server 4 is gone: it was stopped") as raised:
            server.call("wait")
        errors.append(raised.value)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    server.lost("it was stopped")
    thread.join(10)
    assert errors[0].index == 4
    with pytest.raises(ServerGoneError, match="server 4 is gone: it was stopped"):
        server.call("echo")


def test_a_task_that_never_started_and_one_whose_process_ended_are_gone(listener):
    worker = WorkerStub(1, TOKEN)
    with pytest.raises(WorkerGoneError, match="worker 1 is gone: it has not started"):
        worker.call("echo")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    worker.found_at("127.0.0.1", port)
    with pytest.raises(WorkerGoneError, match=r"worker 1 is gone: .*refused"):
        worker.call("echo")


def test_errors_keep_their_type_and_say_where_they_were_raised(server):
    with pytest.raises(FencedError, match="no data") as raised:
        server.call("fail", "fenced")
    assert "Raised on server 4:\nTraceback" in raised.value.__notes__[0]
    assert server.call("echo", 1) == ["echo", 1]  # the connection goes on


def test_an_error_of_a_users_own_type_keeps_it_where_the_type_is_known(server):
    with pytest.raises(UsersError, match="no data"):
        server.call("fail", "known")
    with pytest.raises(RuntimeError, match="UnknownError: no data"):
        server.call("fail", "unknown")


def test_a_message_that_cannot_be_written_leaves_the_task_as_it_is(server):
    with pytest.raises(MessageError, match="cannot travel"):
        server.call("echo", object())
    assert server.call("echo") == ["echo"]
