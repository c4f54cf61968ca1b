"""A server that no one may talk to: it answers everything, and keeps every byte that it was ever sent.

It can also stand for a server that sends everybody on: `Trap(redirect=(307, "https://elsewhere"))`.
"""

from __future__ import annotations

import asyncio
from typing import Self


class Trap:
    def __init__(self, redirect: tuple[int, str] | None = None) -> None:
        self._redirect = redirect
        self.seen = b""
        self.visits = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.visits += 1
        try:
            async with asyncio.timeout(5):
                self.seen += await reader.read(64 * 1024)
            status, fields = "200 OK", "Content-Type: application/json\r\n"
            if self._redirect is not None:
                status, fields = f"{self._redirect[0]} Elsewhere", f"Location: {self._redirect[1]}\r\n"
            writer.write(f"HTTP/1.1 {status}\r\n{fields}Content-Length: 2\r\nConnection: close\r\n\r\n{{}}".encode())
            await writer.drain()
        except (OSError, TimeoutError):
            pass
        finally:
            writer.close()
