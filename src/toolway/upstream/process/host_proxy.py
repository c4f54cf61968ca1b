"""Proxy for the hosts that a sandboxed server's entry grants, on a Unix socket.

It answers only `CONNECT host:port`, only for a granted host and port, and connects only to addresses that the network
policy allows. The server has no other way out of its sandbox.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from toolway._os.support import missing
from toolway.errors import PLATFORM_CODE
from toolway.http.dialer import Dialer
from toolway.http.limits import HttpError
from toolway.http.request import Origin
from toolway.network.policy import NetworkPolicy
from toolway.upstream.process.server_process import SpawnError

SOCKET_NAME: Final = "proxy.sock"
HEAD_TIMEOUT_S: Final = 10.0
CONNECT_TIMEOUT_S: Final = 15.0
MAX_HEAD_BYTES: Final = 16 * 1024
MAX_REFUSED: Final = 100  # remembered hosts
_CONNECT: Final = re.compile(rb"CONNECT ([A-Za-z0-9.-]{1,253}):(\d{1,5}) HTTP/1\.[01]\r\n")


class HostProxy:
    """Proxy for one sandboxed server. `hosts` are `host:port`, or `*.domain:port` for subdomains."""

    def __init__(self, hosts: Sequence[str], network_policy: NetworkPolicy) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)
        self._dialer = Dialer(network_policy, CONNECT_TIMEOUT_S)
        self._server: asyncio.Server | None = None
        self.folder = ""
        self.refused: list[str] = []  # that the server asked for

    async def start(self) -> None:
        """Listen on a Unix socket in a new private folder, whose path is then in `folder`.

        Raises `OSError`, and on Windows `SpawnError`.
        """
        if lacked := missing("sandbox"):
            raise SpawnError(PLATFORM_CODE, f"{lacked.message}: {lacked.detail}", lacked.hint)
        if sys.platform == "win32":
            raise OSError("asyncio has no Unix sockets on Windows")
        self.folder = tempfile.mkdtemp(prefix="toolway-proxy-")
        self._server = await asyncio.start_unix_server(
            self._serve, f"{self.folder}/{SOCKET_NAME}", limit=MAX_HEAD_BYTES
        )

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def allows(self, host: str, port: int) -> bool:
        """Return True if the server's entry grants connections to this host and port."""
        name = host.lower().rstrip(".")
        domains = (f"*.{name.split('.', number)[-1]}:{port}" for number in range(1, name.count(".") + 1))
        return f"{name}:{port}" in self._hosts or any(each in self._hosts for each in domains)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            found = _CONNECT.match(head)
            host, port = (found[1].decode(), int(found[2])) if found is not None else ("", 0)
            if found is None or not self.allows(host, port):
                self._refuse(writer, f"{host}:{port}" if host else "a request without CONNECT")
                return
            outside = _Outside(writer)
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._dialer.dial(Origin("http", host, port), None, lambda: outside)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await outside.copy_from(reader)
        except HttpError:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            with suppress(OSError):
                writer.close()

    def _refuse(self, writer: asyncio.StreamWriter, target: str) -> None:
        if target not in self.refused and len(self.refused) < MAX_REFUSED:
            self.refused.append(target)
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")


class _Outside(asyncio.Protocol):
    """Connection to a granted host. What it receives goes to the server in the sandbox."""

    def __init__(self, inside: asyncio.StreamWriter) -> None:
        self._inside = inside
        self._transport: asyncio.Transport | None = None
        self._ended = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._inside.write(data)
        if self._inside.transport.get_write_buffer_size() > 1 << 20 and self._transport is not None:
            self._transport.pause_reading()
            task = asyncio.get_running_loop().create_task(self._resume())
            task.add_done_callback(lambda done: done.exception())

    async def _resume(self) -> None:
        with suppress(OSError):
            await self._inside.drain()
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set()
        self._may_write.set()
        self._inside.close()

    async def copy_from(self, reader: asyncio.StreamReader) -> None:
        """Forward what the sandboxed server writes to the granted host, until the connection ends."""
        assert self._transport is not None
        try:
            while data := await reader.read(65536):
                self._transport.write(data)
                await self._may_write.wait()
            if self._transport.can_write_eof():
                self._transport.write_eof()
            await self._ended.wait()
        finally:
            self._transport.close()
