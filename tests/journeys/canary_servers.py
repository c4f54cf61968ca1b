"""Servers that blurt out whatever secret they were given: programs, and one over HTTP."""

from __future__ import annotations

import contextlib
import http.server
import re
import socketserver
import threading
from collections.abc import Iterator
from typing import Any

SPEAKER = """
import os, sys
told = [f"{name}={value}" for name, value in os.environ.items()] + [f"argv {sys.argv}"]
"""
SERVERS = {
    # It works, and writes all it was given to stderr.
    "leaky.py": "print(*told, sep='\\n', file=sys.stderr, flush=True)\n" + "RUN",
    "dead.py": "print('cannot log in with', *told, sep='\\n', file=sys.stderr)\nsys.exit(3)",
    "banner.py": "print('welcome', *told, sep='\\n', flush=True)\n" + "RUN",
    "refuses.py": """
        import json
        for line in sys.stdin:
            request = json.loads(line)
            if "id" in request:
                error = {"code": -32603, "message": "wrong token: " + " ".join(told), "data": told}
                print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}), flush=True)
    """,
}
# As little of a server as works: many of them are started many times.
RUN = """
import json
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    results = {
        "initialize": {
            "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"},
        },
        "tools/list": {"tools": [{"name": "add", "description": "Adds.", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "done"}]},
        "ping": {},
    }
    known = request["method"] in results
    answer = {"result": results[request["method"]]} if known else {"error": {"code": -32601, "message": "unknown"}}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
"""


class _Echo(http.server.BaseHTTPRequestHandler):
    """Rejects requests in the way that the path says, and repeats all that it was sent."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        said = f"{self.path} {dict(self.headers)}"
        kind = self.path.split("?")[0].strip("/")
        status = {"401": 401, "403": 403, "500": 500, "moved": 307}.get(kind, 200)
        self.send_response(status, re.sub(r"[^ -~]", "", said)[:500])
        if status in (401, 403):
            self.send_header("WWW-Authenticate", f'Bearer error="invalid_token", error_description="{self._flat()}"')
        if status == 307:
            self.send_header("Location", f"http://127.0.0.1:1/{self._flat()}")
        body = f"<html>{said}</html>".encode()
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_DELETE = do_POST

    def _flat(self) -> str:
        return re.sub(r"[^\w-]", "-", f"{self.path} {dict(self.headers)}")

    def log_message(self, *_: Any) -> None: ...


@contextlib.contextmanager
def echo_server() -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Echo) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
