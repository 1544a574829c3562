"""Asks a platform's HTTP API, with the standard library.

A token is sent to the address that was asked for and to no other: redirects are not
followed, proxies not used, and over plain HTTP it only goes to this machine. It is
never part of a message.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from replicax.core.errors import ClusterError, ClusterPlatformError

TIMEOUT_SECONDS = 10.0
WAITS_SECONDS = (0.2, 1.0)  # before the second and the third attempt

_MAX_ANSWER_BYTES = 64 * 2**20
_MAX_SHOWN = 300
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
        ClusterPlatformError: If there is none.
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
            with opener.open(request, timeout=TIMEOUT_SECONDS) as response:
                return response.read(_MAX_ANSWER_BYTES).decode("utf-8", "replace")
        except urllib.error.HTTPError as error:
            with error:
                if wait is None or error.code not in _PASSING:
                    raise _refused(request, error, token) from None
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
) -> dict[str, Any]:
    """The JSON object that `url` answers; arguments as for `fetch_text`.

    Raises:
        ClusterPlatformError: If there is no good answer, or it is not a JSON object.
        ClusterError: If the token would be sent over plain HTTP to another machine.

    Example:
        >>> fetch_json("http://127.0.0.1:9/", waits=())
        Traceback (most recent call last):
        ...
        replicax.core.errors.ClusterPlatformError: GET http://127.0.0.1:9/ got no answer: ...
    """
    text = fetch_text(url, headers=headers, token=token, body=body, ca_file=ca_file, waits=waits)
    try:
        answer = json.loads(text)
    except json.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise ClusterPlatformError(f"{url} did not answer with a JSON object.")
    return answer


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


def _check_token(token: str) -> None:
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
    request: urllib.request.Request, error: urllib.error.HTTPError, token: str | None
) -> PlatformApiError:
    detail = _explanation(error.read(_MAX_ANSWER_BYTES))
    if token:
        detail = detail.replace(token, "...")
    said = f"{request.get_method()} {request.full_url} answered {error.code} {error.reason}"
    return PlatformApiError(f"{said}: {detail}" if detail else f"{said}.", error.code)


def _explanation(content: bytes) -> str:
    """What Kubernetes or Google say about an error."""
    try:
        answer = json.loads(content)
        nested = answer.get("error", answer)
        return str(nested.get("message", ""))[:_MAX_SHOWN]
    except (ValueError, AttributeError):
        return ""
