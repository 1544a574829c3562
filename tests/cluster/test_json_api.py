"""Requests to a platform's API: what is sent where, and what errors say."""

import contextlib
import logging
import re
import socket
import threading
import time

import pytest

from replicax.cluster import json_api
from replicax.core.errors import ClusterError, ClusterPlatformError
from tests.cluster.fake_api import CERTIFICATE, serve

TOKEN = "s3cret-t0ken"


def test_a_token_and_a_body_arrive():
    with serve({"/x?a=1": (200, {"ok": True})}) as api:
        answer = json_api.fetch_json(f"{api.url}/x?a=1", token=TOKEN, body={"n": 1})
    assert answer.fields == {"ok": True}
    (request,) = api.requests
    assert (request.method, request.body) == ("POST", {"n": 1})
    assert request.headers["Authorization"] == f"Bearer {TOKEN}"
    assert request.headers["Content-Type"] == "application/json"


def test_an_answer_is_trusted_by_its_certificate_only():
    with serve({"/x": (200, {"ok": True})}, with_tls=True) as api:
        url = f"{api.url}/x"
        assert json_api.fetch_json(url, token=TOKEN, ca_file=str(CERTIFICATE)).fields == {
            "ok": True
        }
        with pytest.raises(ClusterPlatformError, match=r"got no answer.*CERTIFICATE_VERIFY_FAILED"):
            json_api.fetch_json(url, token=TOKEN, waits=())
    assert len(api.requests) == 1


def test_certificates_that_are_not_there_are_an_error(tmp_path):
    with pytest.raises(ClusterPlatformError, match=r"ca\.crt' cannot be read: No such file"):
        json_api.fetch_json("https://127.0.0.1:9/", ca_file=str(tmp_path / "ca.crt"))


def test_a_redirect_is_not_followed_and_the_token_stays():
    with (
        serve({"/secret": (200, {})}) as elsewhere,
        serve({"/x": lambda _: (302, f"{elsewhere.url}/secret")}) as api,
        pytest.raises(json_api.PlatformApiError, match="/x answered 302 Found") as raised,
    ):
        json_api.fetch_json(f"{api.url}/x", token=TOKEN)
    assert raised.value.status == 302
    assert elsewhere.requests == []


def test_a_proxy_in_the_environment_is_not_used(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with serve({"/x": (200, {"ok": True})}) as api:
        assert json_api.fetch_json(f"{api.url}/x", token=TOKEN).fields == {"ok": True}


@pytest.mark.parametrize("host", ["10.0.0.1", "example.com", "localhost.example.com"])
def test_a_token_is_not_sent_in_the_clear_to_another_machine(host):
    message = f"a token is not sent to '{host}' over plain HTTP. Use an https:// address"
    with pytest.raises(ClusterError, match=re.escape(message)):
        json_api.fetch_json(f"http://{host}/x", token=TOKEN)


ANSWERS = {
    "Kubernetes": (403, {"kind": "Status", "message": "pods is forbidden"}, "pods is forbidden"),
    "Google": (404, {"error": {"code": 404, "message": "no such group"}}, "no such group"),
    "text": (401, "<html>", "answered 401 Unauthorized."),
    "a list": (400, [1], "answered 400 Bad Request."),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_error_says_what_was_asked_and_what_the_answer_was(name):
    status, content, message = ANSWERS[name]
    with (
        serve({"/x": (status, content)}) as api,
        pytest.raises(json_api.PlatformApiError, match=re.escape(message)) as raised,
    ):
        json_api.fetch_json(f"{api.url}/x")
    assert str(raised.value).startswith(f"GET {api.url}/x answered {status}")
    assert raised.value.status == status
    assert len(api.requests) == 1


def test_a_token_is_in_no_message_and_no_log(caplog):
    def echo(request):
        return 403, {"message": f"bad header {request.headers['Authorization']}"}

    with (
        caplog.at_level(logging.DEBUG),
        serve({"/x": echo}) as api,
        pytest.raises(
            ClusterPlatformError, match=r"answered 403.*bad header Bearer \.\.\."
        ) as raised,
    ):
        json_api.fetch_json(f"{api.url}/x", token=TOKEN)
    assert TOKEN not in str(raised.value)
    assert TOKEN not in caplog.text


@pytest.mark.parametrize("token", ["", "a b", f"{TOKEN}\n", "t\u00f6ken"])
def test_what_cannot_be_a_token_is_refused_without_being_shown(token):
    with pytest.raises(
        ClusterError, match=f"the token of {len(token)} characters is none"
    ) as raised:
        json_api.fetch_json("https://127.0.0.1:9/", token=token)
    assert TOKEN not in str(raised.value)


def test_a_passing_error_is_tried_again_and_a_lasting_one_given_up():
    answers = iter([(503, ""), (429, ""), (200, {"ok": True})])
    with serve({"/x": lambda _: next(answers), "/down": (503, "")}) as api:
        assert json_api.fetch_json(f"{api.url}/x", waits=(0, 0)).fields == {"ok": True}
        with pytest.raises(json_api.PlatformApiError, match="/down answered 503"):
            json_api.fetch_json(f"{api.url}/down", waits=(0, 0))
    assert [request.path for request in api.requests] == ["/x"] * 3 + ["/down"] * 3


def test_nobody_there_is_an_error():
    with serve({}) as api:
        url = f"{api.url}/x"
    with pytest.raises(ClusterPlatformError, match=r"x got no answer: .*refused.* Check that"):
        json_api.fetch_json(url, waits=(0,))


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_an_answer_that_is_no_object_is_an_error(content):
    with (
        serve({"/x": (200, content)}) as api,
        pytest.raises(ClusterPlatformError, match="/x did not answer with a JSON object"),
    ):
        json_api.fetch_json(f"{api.url}/x")


@pytest.mark.parametrize("content", ["[" * 200_000, '{"n": ' + "9" * 5000 + "}", '"\\ud800"'])
def test_an_answer_beyond_the_bounds_is_an_error_that_shows_it(content):
    with serve({"/x": (200, content)}) as api:
        with pytest.raises(ClusterError, match="/x did not answer with a JSON object: "):
            json_api.fetch_json(f"{api.url}/x")
        api.routes["/x"] = (403, content)
        with pytest.raises(json_api.PlatformApiError, match=r"/x answered 403 Forbidden\.$"):
            json_api.fetch_json(f"{api.url}/x")


def test_an_answer_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(json_api, "_MAX_ANSWER_BYTES", 1000)
    with (
        serve({"/x": (200, "x" * 1001)}) as api,
        pytest.raises(ClusterError, match="/x answered with more than 1000 bytes"),
    ):
        json_api.fetch_text(f"{api.url}/x")


def test_bytes_that_are_no_text_are_an_error():
    with (
        serve({"/x": (200, "abc\udcff")}) as api,
        pytest.raises(ClusterError, match=r"/x did not answer with text: b'\\xff' at byte 3"),
    ):
        json_api.fetch_text(f"{api.url}/x")


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"


@pytest.mark.parametrize("head", [b"", HEAD], ids=["headers", "body"])
def test_an_api_that_drips_bytes_is_cut_off(monkeypatch: pytest.MonkeyPatch, head: bytes):
    monkeypatch.setattr(json_api, "TIMEOUT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
        end = threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError), listener.accept()[0] as connection:
                connection.sendall(head)
                while not end.wait(0.05):
                    connection.sendall(b"H")

        thread = threading.Thread(target=drip)
        thread.start()
        stack.callback(thread.join)
        stack.callback(end.set)
        since = time.monotonic()
        with pytest.raises(ClusterPlatformError, match=r"got no answer: not complete after 0\.3 s"):
            json_api.fetch_text(f"http://127.0.0.1:{listener.getsockname()[1]}/x", waits=())
        assert time.monotonic() - since < 5.0
