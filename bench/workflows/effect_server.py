"""MCP server over HTTP that counts how often each step of each run ran. It outlives the processes under test.

    python -m bench.workflows.effect_server PORT

Tools: `read` (read-only), `pay` (unsafe), `pay_once` (unsafe, one effect per idempotency key), `find` (read-only: was
there an effect with this id?). A call waits `delay` seconds before its effect and as long after it. `GET /` returns the
number of calls, the unsafe calls in flight, and the effects by id; `DELETE /` forgets them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from typing import Any

TOOLS = {"read": {"readOnlyHint": True}, "pay": {}, "pay_once": {}, "find": {"readOnlyHint": True}}
_ANNOTATED = [{"name": name, "inputSchema": {"type": "object"}, "annotations": each} for name, each in TOOLS.items()]


class Effects:
    """Effects by id, and the keys that had one."""

    def __init__(self) -> None:
        self.calls = 0
        self.underway = 0  # unsafe calls without an answer
        self.counts: Counter[str] = Counter()
        self._keys: set[str] = set()

    def clear(self) -> None:
        self.calls = 0
        self.counts.clear()
        self._keys.clear()

    async def call(self, name: str, arguments: dict[str, Any], key: str | None) -> dict[str, Any]:
        """Execute a tool and return its data."""
        self.calls += 1
        if name != "pay":
            return await self._execute(name, arguments, key)
        self.underway += 1
        try:
            return await self._execute(name, arguments, key)
        finally:
            self.underway -= 1

    async def _execute(self, name: str, arguments: dict[str, Any], key: str | None) -> dict[str, Any]:
        id_, delay = arguments.get("id", ""), arguments.get("delay", 0)
        if delay:
            await asyncio.sleep(delay)
        if name == "find":
            return {"found": self.counts[id_]}
        if name == "pay" or (name == "pay_once" and key not in self._keys):
            self.counts[id_] += 1
            self._keys.add(key or "")
        if delay:
            await asyncio.sleep(delay)
        return {"id": id_, "ok": True}


async def _answer(effects: Effects, message: dict[str, Any]) -> dict[str, Any] | None:
    if "id" not in message:
        return None
    method, params = message["method"], message.get("params") or {}
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    if method == "tools/call":
        data = await effects.call(params["name"], params.get("arguments") or {}, (params.get("_meta") or {}).get("key"))
        reply["result"] = {"content": [{"type": "text", "text": json.dumps(data)}], "structuredContent": data}
    elif method == "initialize":
        info = {"name": "effects", "version": "1"}
        reply["result"] = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    elif method == "tools/list":
        reply["result"] = {"tools": _ANNOTATED}
    elif method == "ping":
        reply["result"] = {}
    else:
        reply["error"] = {"code": -32601, "message": "unknown method"}
    return reply


async def _respond(effects: Effects, method: str, body: bytes) -> tuple[str, bytes]:
    if method == "GET":
        return "200 OK", json.dumps(
            {"calls": effects.calls, "underway": effects.underway, "effects": effects.counts}
        ).encode()
    if method == "DELETE":
        effects.clear()
        return "200 OK", b"{}"
    reply = await _answer(effects, json.loads(body))
    return ("202 Accepted", b"") if reply is None else ("200 OK", json.dumps(reply).encode())


async def _serve(effects: Effects, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection, one after the other."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.split("\r\n")
            method, path, _ = first.split(" ", 2)
            length = next((int(each[15:]) for each in lines if each.lower().startswith("content-length:")), 0)
            body = await reader.readexactly(length)
            if method == "GET" and path == "/mcp":  # no stream of messages
                status, reply = "405 Method Not Allowed", b""
            else:
                status, reply = await _respond(effects, method, body)
            kind = "content-type: application/json\r\n" if reply else ""
            writer.write(f"HTTP/1.1 {status}\r\n{kind}content-length: {len(reply)}\r\n\r\n".encode() + reply)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):  # the client was killed
        pass
    finally:
        writer.close()


async def main(port: int) -> None:
    effects = Effects()
    server = await asyncio.start_server(lambda *pair: _serve(effects, *pair), "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
