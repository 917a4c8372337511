"""A web server for tests: it can answer ranges, and cut connections."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit


class Server:
    """What it serves, how it misbehaves, what it was asked."""

    def __init__(self, folder: Path, *, ranges: bool = True) -> None:
        self.folder, self.ranges = folder, ranges
        self.cuts: list[int] = []
        """After how many bytes each of the next answers is cut."""
        self.asked: list[str] = []
        self.logins: list[str] = []
        self.url = ""


@contextmanager
def serving(folder: Path, *, ranges: bool = True, tags: bool = False) -> Iterator[Server]:
    state = Server(folder, ranges=ranges)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = state.folder / urlsplit(self.path).path.lstrip("/")
            wanted = self.headers.get("Range", "")
            state.asked.append(wanted)
            state.logins.append(self.headers.get("Authorization", ""))
            if not path.is_file():
                self.send_error(404)
                return
            content = path.read_bytes()
            tag = f'"{hash(content)}"'
            same = self.headers.get("If-Range", tag) == tag
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and state.ranges and same else 0
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            if tags:
                self.send_header("ETag", tag)
            self.end_headers()
            cut = state.cuts.pop(0) if state.cuts else None
            self.wfile.write(content[start:][:cut])

        def do_HEAD(self) -> None:
            path = state.folder / self.path.lstrip("/")
            self.send_response(200 if path.is_file() else 404)
            self.send_header("Content-Length", str(path.stat().st_size if path.is_file() else 0))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield state
        finally:
            server.shutdown()
