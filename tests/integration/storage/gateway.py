"""A small gateway as Knox is one: one address with a prefix, behind which clients see neither name nor data nodes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, unquote

import requests

PREFIX = "/gateway/default/webhdfs"
DATA = f"{PREFIX}/data/v1/"


@contextmanager
def gateway_to(name_node: str, cut: int = 0) -> Iterator[str]:
    """The gateway's address for WebHDFS, as `webhdfs` has it. What redirects to data nodes, redirects to it.

    So many answers with content of a file, `cut`, end in their middle.
    """
    cuts = [None] * cut

    class Handler(BaseHTTPRequestHandler):
        def _ask(self) -> None:
            if self.path.startswith(DATA):
                url = unquote(self.path.removeprefix(DATA).partition("?")[0])
            elif self.path.startswith(f"{PREFIX}/v1"):
                url = f"{name_node}/webhdfs{self.path.removeprefix(PREFIX)}"
            else:
                self.send_error(404)
                return
            body = self._body() if self.headers.get("Transfer-Encoding") == "chunked" else None
            headers = {name: self.headers[name] for name in ("Content-Type",) if name in self.headers}
            answer = requests.request(
                self.command, url, data=body, headers=headers, allow_redirects=False, stream=True, timeout=60
            )
            self.send_response(answer.status_code)
            if "Location" in answer.headers:
                own = f"http://{self.headers['Host']}{DATA}{quote(answer.headers['Location'], safe='')}"
                self.send_header("Location", own)
            self.send_header("Content-Type", answer.headers.get("Content-Type", "application/octet-stream"))
            if "Content-Length" in answer.headers:
                self.send_header("Content-Length", answer.headers["Content-Length"])
            self.end_headers()
            for chunk in answer.iter_content(1 << 16):
                if "op=OPEN" in url and cuts:
                    cuts.pop()
                    self.wfile.write(chunk[: len(chunk) // 2])
                    return
                self.wfile.write(chunk)

        do_GET = do_PUT = do_DELETE = _ask

        def _body(self) -> Iterator[bytes]:
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}{PREFIX}/v1"
        server.shutdown()
