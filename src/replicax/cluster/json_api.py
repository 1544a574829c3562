"""Asks a platform's HTTP API, with the standard library.

A token is sent to the address that was asked for and to no other: redirects are not
followed, proxies not used, and over plain HTTP it only goes to this machine. It is
never part of a message.

An attempt ends after a fixed time, whatever the other end does, and an answer is read up to a
fixed size.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import http.client
import ipaddress
import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from replicax.cluster.reply import Reply
from replicax.core import bounded_json
from replicax.core.errors import ClusterError, ClusterPlatformError, PlatformReplyError

TIMEOUT_SECONDS = 10.0
WAITS_SECONDS = (0.2, 1.0)  # before the second and the third attempt

_MAX_ANSWER_BYTES = 64 * 2**20
_MAX_ERROR_BYTES = 2**16
_MAX_SHOWN = 300
_FIRST_ERROR = 300
_PASSING = frozenset({429, 500, 502, 503, 504})  # states that another attempt may find over


class PlatformApiError(ClusterPlatformError):
    """The API of the platform answered with an error.

    Args:
        message: What was asked and what the answer was.
        status: The HTTP status.

    Example:
        >>> PlatformApiError("GET http://127.0.0.1:8001/ answered 404 Not Found.", 404).status
        404
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes a redirect an error: following it would take the token along."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Follows none."""


def fetch_text(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    token: str | None = None,
    body: Any = None,
    ca_file: str | None = None,
    waits: Sequence[float] = WAITS_SECONDS,
) -> str:
    """What `url` answers, after as many attempts as it takes.

    Args:
        url: What to ask.
        headers: Further headers.
        token: Sent as a bearer token.
        body: Sent as JSON by POST; GET if None.
        ca_file: The certificates to trust; the machine's own if None.
        waits: Seconds before each further attempt, when there is no answer or a passing error.

    Raises:
        PlatformApiError: If the answer is an error.
        ClusterPlatformError: If there is none in time.
        PlatformReplyError: If it is too long, or no text.
        ClusterError: If the token would be sent over plain HTTP to another machine.

    Example:
        >>> fetch_text("http://host0/pods", token="secret")
        Traceback (most recent call last):
        ...
        replicax.core.errors.ClusterError: a token is not sent to 'host0' over plain HTTP. ...
    """
    if token is not None:
        _check_safe(url)
        _check_token(token)
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Accept": "application/json", **(headers or {})})
    if data is not None:
        request.add_header("Content-Type", "application/json")
    if token is not None:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    opener = _opener(url, ca_file)
    for wait in (*waits, None):
        try:
            answer = _within(TIMEOUT_SECONDS, lambda: _ask(opener, request))
            if answer.status < _FIRST_ERROR:
                return _text(url, answer.content)
            if wait is None or answer.status not in _PASSING:
                raise _refused(request, answer, token)
        except (OSError, http.client.HTTPException) as error:
            if wait is None:
                reason = getattr(error, "reason", error)
                raise ClusterPlatformError(
                    f"{request.get_method()} {url} got no answer: {reason}. Check that this "
                    "machine can reach the address."
                ) from None
        time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


def fetch_json(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    token: str | None = None,
    body: Any = None,
    ca_file: str | None = None,
    waits: Sequence[float] = WAITS_SECONDS,
) -> Reply:
    """The JSON object that `url` answers; arguments as for `fetch_text`.

    Raises:
        ClusterPlatformError: If there is no good answer.
        PlatformReplyError: If it is not a JSON object.
        ClusterError: If the token would be sent over plain HTTP to another machine.

    Example:
        >>> fetch_json("http://127.0.0.1:9/", waits=())
        Traceback (most recent call last):
        ...
        replicax.core.errors.ClusterPlatformError: GET http://127.0.0.1:9/ got no answer: ...
    """
    text = fetch_text(url, headers=headers, token=token, body=body, ca_file=ca_file, waits=waits)
    problem = "is none"
    try:
        answer = bounded_json.parse(text, max_bytes=_MAX_ANSWER_BYTES)
    except bounded_json.JsonError as error:
        answer, problem = None, str(error)
    if not isinstance(answer, dict):
        raise PlatformReplyError(
            f"{url} did not answer with a JSON object: {text[:_MAX_SHOWN]!r} {problem}."
        )
    return Reply(answer, f"the answer of {url}")


@dataclasses.dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    reason: str
    content: bytes


def _ask(opener: urllib.request.OpenerDirector, request: urllib.request.Request) -> _Answer:
    try:
        with opener.open(request, timeout=TIMEOUT_SECONDS) as response:
            return _Answer(response.status, "", response.read(_MAX_ANSWER_BYTES + 1))
    except urllib.error.HTTPError as error:
        with error:
            return _Answer(error.code, str(error.reason), error.read(_MAX_ERROR_BYTES))


def _within(seconds: float, action: Callable[[], _Answer]) -> _Answer:
    """What `action` returns, in a thread: the limit of a socket is for each byte of the answer."""
    future: concurrent.futures.Future[_Answer] = concurrent.futures.Future()

    def act() -> None:
        try:
            future.set_result(action())
        except BaseException as error:
            future.set_exception(error)

    # A daemon, and no pool: one that drips for ever must not hold up the exit.
    threading.Thread(target=act, name="replicax-ask", daemon=True).start()
    try:
        return future.result(seconds)
    except concurrent.futures.TimeoutError:
        raise TimeoutError(f"not complete after {seconds:g} s") from None


def _text(url: str, content: bytes) -> str:
    if len(content) > _MAX_ANSWER_BYTES:
        raise PlatformReplyError(f"{url} answered with more than {_MAX_ANSWER_BYTES} bytes.")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        near = content[error.start : error.start + 20]
        raise PlatformReplyError(
            f"{url} did not answer with text: {near!r} at byte {error.start}."
        ) from error


def _opener(url: str, ca_file: str | None) -> urllib.request.OpenerDirector:
    handlers: list[urllib.request.BaseHandler] = [
        urllib.request.ProxyHandler({}),
        _NoRedirects(),
    ]
    if url.startswith("https:"):
        try:
            context = ssl.create_default_context(cafile=ca_file)
        except OSError as error:
            raise ClusterPlatformError(
                f"the certificates {ca_file!r} cannot be read: {error.strerror or error}."
            ) from error
        handlers.append(urllib.request.HTTPSHandler(context=context))
    return urllib.request.build_opener(*handlers)


def _check_safe(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "https" and not _is_this_machine(host):
        raise ClusterError(
            f"a token is not sent to {host!r} over plain HTTP. Use an https:// address, or a proxy "
            "on this machine such as the one that 'kubectl proxy' starts."
        )


def _check_token(token: object) -> None:
    if not isinstance(token, str):
        raise ClusterError(f"the token is of type {type(token).__name__}; expected a string.")
    # What http.client would say of such a header has the token in it.
    if not (token.isascii() and token.isprintable() and " " not in token and token):
        raise ClusterError(
            f"the token of {len(token)} characters is none: it is empty, or has spaces or line "
            "breaks in it. Check the file or the function that it comes from."
        )


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refused(
    request: urllib.request.Request, answer: _Answer, token: str | None
) -> PlatformApiError:
    detail = _explanation(answer.content)
    if token:
        detail = detail.replace(token, "...")
    reason = answer.reason[:_MAX_SHOWN]
    said = f"{request.get_method()} {request.full_url} answered {answer.status} {reason}"
    return PlatformApiError(f"{said}: {detail}" if detail else f"{said}.", answer.status)


def _explanation(content: bytes) -> str:
    """What Kubernetes or Google say about an error."""
    try:
        answer = bounded_json.parse(content, max_bytes=_MAX_ERROR_BYTES)
        nested = answer.get("error", answer)
        return str(nested.get("message", ""))[:_MAX_SHOWN]
    except (bounded_json.JsonError, AttributeError):
        return ""
