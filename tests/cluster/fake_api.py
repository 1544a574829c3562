"""A platform's HTTP API on the loopback interface: real requests, recorded and answered."""

import contextlib
import dataclasses
import http.server
import json
import pathlib
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

CERTIFICATE = pathlib.Path(__file__).with_name("loopback.pem")


@dataclasses.dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclasses.dataclass
class FakeApi:
    """Answers by path, query included: a status and JSON or text, or a function of the request."""

    routes: dict[str, Any]
    url: str = ""
    requests: list[Request] = dataclasses.field(default_factory=list)

    @property
    def host(self) -> str:
        return self.url.partition("://")[2]

    def answer(self, request: Request) -> tuple[int, Any]:
        self.requests.append(request)
        found: Callable[[Request], Any] | Any = self.routes.get(request.path, (404, ""))
        return found(request) if callable(found) else found


@contextlib.contextmanager
def serve(routes: dict[str, Any], *, with_tls: bool = False) -> Iterator[FakeApi]:
    api = FakeApi(routes)

    class Handler(http.server.BaseHTTPRequestHandler):
        def _handle(self):
            size = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(size)) if size else None
            request = Request(self.command, self.path, dict(self.headers.items()), body)
            status, content = api.answer(request)
            text = content if isinstance(content, str) else json.dumps(content)
            self.send_response(status)
            if status == 302:
                self.send_header("Location", text)
            data = text.encode("utf-8", "surrogateescape")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _handle

        def log_message(self, format, *args):
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request, client_address):
            pass  # a client that refuses the certificate hangs up

    with Server(("127.0.0.1", 0), Handler) as server:
        if with_tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATE)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        api.url = f"{'https' if with_tls else 'http'}://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield api
        finally:
            server.shutdown()
            thread.join()
