"""Reach a server in your own way: here, JSON lines over a Unix socket."""

import asyncio
import itertools
import json
import tempfile
from typing import Any

from toolway import (
    Certainty,
    Disconnect,
    Hub,
    InboundHandler,
    JSONRPCError,
    Request,
    Transport,
    TransportError,
    TransportInfo,
)


class SocketServer:  # what `Hub` gets: it creates a transport for each connection
    def __init__(self, path: str) -> None:
        self.path = path

    def create_transport(self) -> Transport:
        return SocketTransport(self.path)


class SocketTransport(Transport):
    def __init__(self, path: str) -> None:
        self._path, self._ids = path, itertools.count(1)

    async def open(self, inbound: InboundHandler) -> None:
        _, writer = await self._connect()  # fails at once if nobody listens
        writer.close()

    async def request(self, request: Request) -> dict[str, Any]:
        reader, writer = await self._connect()
        try:
            request.call_state.mark_sent()  # from here on, the server may have executed it
            writer.write(request.encode(next(self._ids)) + b"\n")
            answer = json.loads(await reader.readline())
        except (OSError, ValueError) as exc:
            raise TransportError(f"no answer: {exc}", Certainty.UNKNOWN) from exc
        finally:
            writer.close()
        if "error" in answer:
            raise JSONRPCError(answer["error"]["code"], answer["error"]["message"])
        return dict(answer["result"])

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await asyncio.open_unix_connection(self._path)
        except OSError as exc:
            raise TransportError(str(exc), Certainty.NOT_SENT) from exc

    async def wait_closed(self) -> Disconnect:
        return await asyncio.Future[Disconnect]()  # no connection could end

    def info(self) -> TransportInfo:
        return TransportInfo(transport="unix socket")


# -- the rest is a server to try it with -------------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
ANSWERS = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "shout"}},
    "tools/list": {"tools": [{"name": "shout", "inputSchema": SCHEMA}]},
}


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    if line := await reader.readline():
        message = json.loads(line)
        reply = ANSWERS.get(message["method"])
        if message["method"] == "tools/call":
            reply = {"content": [{"type": "text", "text": message["params"]["arguments"]["text"].upper()}]}
        outcome = {"result": reply} if reply else {"error": {"code": -32601, "message": "unknown method"}}
        writer.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **outcome}).encode() + b"\n")
    writer.close()


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/shout.sock"
        async with await asyncio.start_unix_server(serve, path), Hub({"shout": SocketServer(path)}) as hub:
            print((await hub.call_tool("shout.shout", {"text": "hello"})).text)  # HELLO


if __name__ == "__main__":
    asyncio.run(main())
