"""Faulty MCP servers for the browser test of the dashboard, with the standard library only.

python bad_servers.py hostile          sends text that would take over a page that executes it
python bad_servers.py leaky            writes its secret to stderr and exits
python bad_servers.py many PORT N M    N servers with M tools each on one port, at /<number>
"""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]
HTML = '<img src=x onerror="window.__owned=1"><script>window.__owned=2</script><svg onload=window.__owned=3>'
LINKS = (
    "[click](javascript:window.__owned=4) javascript:window.__owned=5 data:text/html,<script>window.__owned=6</script>"
)
HOSTILE = f"{HTML} {LINKS} {{{{7*7}}}} ${{window.__owned=7}} \u202egnp.exe \u0007 {'W' * 300}"


def tool(name: str, text: str, **more: Any) -> Json:
    schema = {"type": "object", "properties": {"text": {"type": "string", "description": text, "default": text}}}
    return {"name": name, "title": text, "description": text, "inputSchema": schema, **more}


def hostile(method: str, params: Json) -> Json:
    print(method, time.monotonic(), file=sys.stderr, flush=True)
    if method == "tools/list":
        return {"tools": [tool("speak", HOSTILE), tool("fail", HOSTILE)]}
    content = [{"type": "text", "text": HOSTILE}, {"type": HTML, "text": HTML}]
    content.append({"type": "image", "mimeType": "image/svg+xml", "data": "PHN2ZyBvbmxvYWQ9YWxlcnQoMSk+"})
    return {"content": content, "structuredContent": {HTML: HOSTILE}, "isError": params.get("name") == "fail"}


def many(method: str, params: Json, count: int = 25) -> Json:
    if method == "tools/list":
        hint = {"annotations": {"readOnlyHint": True}}
        return {"tools": [tool(f"find_thing_{n}", f"Find the thing of number {n}.", **hint) for n in range(count)]}
    return {"content": [{"type": "text", "text": "found"}]}


def reply_to(message: Json, handler: Any) -> Json | None:
    id_, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    if id_ is None:
        return None
    if method == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
        return {"jsonrpc": "2.0", "id": id_, "result": {**result, "serverInfo": {"name": "walk", "version": "1"}}}
    if method in ("tools/list", "tools/call"):
        return {"jsonrpc": "2.0", "id": id_, "result": handler(method, params)}
    if method == "ping":
        return {"jsonrpc": "2.0", "id": id_, "result": {}}
    return {"jsonrpc": "2.0", "id": id_, "error": {"code": -32601, "message": "method not found"}}


def serve_stdio(handler: Any) -> None:
    print(HOSTILE, file=sys.stderr, flush=True)
    for line in sys.stdin:
        reply = reply_to(json.loads(line), handler)
        if reply is not None:
            print(json.dumps(reply), flush=True)


class ManyHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        reply = reply_to(json.loads(self.rfile.read(int(self.headers["Content-Length"]))), many)
        body = json.dumps(reply).encode() if reply is not None else b""
        self.send_response(200 if reply is not None else 202)
        if reply is not None:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.send_response(405)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


class ManyServer(ThreadingHTTPServer):
    request_queue_size = 1024
    daemon_threads = True

    def handle_error(self, *args: Any) -> None:
        pass  # the client disconnected


if __name__ == "__main__":
    if sys.argv[1] == "hostile":
        serve_stdio(hostile)
    elif sys.argv[1] == "leaky":
        sys.exit(f"Error: the key {os.environ['CRM_API_KEY']} was refused")
    else:
        ManyServer(("127.0.0.1", int(sys.argv[2])), ManyHandler).serve_forever()
