"""A server on this machine in the place of one on the network."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Served:
    """What a server on this machine was asked for: (method, path, headers) in order."""

    url: str
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)

    def paths(self, method: str = "GET") -> list[str]:
        return [path for used, path, _ in self.asked if used == method]


Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def serving(answer: Answer) -> Iterator[Served]:
    """A server whose every request is answered by `answer`, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append((self.command, self.path, dict(self.headers)))
            answer(self)

        do_HEAD = do_GET

        def log_message(self, *words: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *words: object) -> None:
            """A client that hangs up is no news here."""

    server = Quiet(("127.0.0.1", 0), Handler)
    served = Served(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def send(
    handler: BaseHTTPRequestHandler, data: bytes, headers: dict[str, str] | None = None, status: int = 200
) -> None:
    """Send an answer with its length."""
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(data)
