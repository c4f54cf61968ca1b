"""HTTP/1.1 from the server's side, by hand, so that every byte of an answer can be a wrong one."""

from __future__ import annotations

import asyncio
import contextlib
import http
import socket
import struct

from toolway.testing.fakes.wire import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from toolway.testing.fakes.wire import Json

_HEAD_LIMIT = 64 * 1024
JSON = {"Content-Type": "application/json"}
SSE = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class HttpRequest:
    """One request: a line, headers (their names in lower case), a body."""

    def __init__(self, head: bytes) -> None:
        line, *fields = head.decode("latin-1").split("\r\n")
        self.method, self.target, _ = line.split(" ", 2)
        pairs = (field.partition(":") for field in fields)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self.body = b""


class Connection:
    """One connection of a client, for one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self._reader = reader
        self._buffer = bytearray()

    async def next_request(self) -> HttpRequest | None:
        """The next request; None where the client has gone or sends what is no HTTP."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > _HEAD_LIMIT or not await self._fill():
                return None
        try:
            request = HttpRequest(bytes(self._buffer[:end]))
        except ValueError:
            return None
        del self._buffer[: end + 4]
        if "chunked" in request.headers.get("transfer-encoding", ""):
            request.body = await self._chunks()
        else:
            request.body = await self._exactly(int(request.headers.get("content-length", "0")))
        return request

    async def wait_gone(self) -> None:
        """Return when the client has closed the connection."""
        while await self._fill():
            pass

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        with contextlib.suppress(OSError):  # it is closed already
            raw = self.writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def _fill(self) -> bool:
        try:
            data = await self._reader.read(65536)
        except OSError:
            return False
        self._buffer += data
        return bool(data)

    async def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size and await self._fill():
            pass
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self._line(), 16):
            body += await self._exactly(size)
            await self._line()
        await self._line()
        return body

    async def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if not await self._fill():
                return b"0"
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line


class Exchange:
    """One request and the answer to it: whole, as a stream of events, or byte by byte."""

    def __init__(self, connection: Connection, request: HttpRequest) -> None:
        self.connection = connection
        self.request = request
        self.headers: dict[str, str] = {}  # added to whatever is answered
        self.streaming = False
        self.keep = True  # whether the connection serves another request
        self.outlives = False  # whether the work goes on when the client has gone
        self.over = asyncio.Event()  # the stream has ended

    def reply(self, status: int, body: bytes = b"", headers: Mapping[str, str] = JSON) -> None:
        """Answer whole."""
        self.head(status, {**(headers if body else {}), "Content-Length": str(len(body))})
        self.raw(body)

    def json(self, message: Json, status: int = 200) -> None:
        self.reply(status, encode(message))

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self.raw(self.head_bytes(status, headers))

    def head_bytes(self, status: int, headers: Mapping[str, str]) -> bytes:
        fields = "".join(f"{name}: {value}\r\n" for name, value in {**headers, **self.headers}.items())
        return f"HTTP/1.1 {status} {_reason(status)}\r\n{fields}\r\n".encode("latin-1")

    def raw(self, data: bytes) -> None:
        if not self.connection.writer.is_closing():
            self.connection.writer.write(data)

    def open_stream(self) -> None:
        """Begin to answer with events."""
        if not self.streaming:
            self.streaming = True
            self.head(200, {**SSE, "Transfer-Encoding": "chunked"})

    def send(self, message: Json) -> None:
        """Send one message as an event."""
        self.event(encode(message))

    def event(self, data: bytes, id: str = "") -> None:
        self.open_stream()
        self.chunk(event_bytes(data, id))

    def chunk(self, data: bytes) -> None:
        self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        """End the stream of events in order."""
        self.open_stream()
        self.raw(b"0\r\n\r\n")
        self.over.set()

    async def drain(self) -> None:
        await self.connection.writer.drain()

    def cut(self) -> None:
        """Close the connection after what has been written so far."""
        self.keep = False
        self.over.set()
        self.connection.writer.close()

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        self.keep = False
        self.over.set()
        self.connection.reset()


def event_bytes(data: bytes, id: str = "") -> bytes:
    name = f"id: {id}\n".encode() if id else b""
    return name + b"event: message\ndata: " + data + b"\n\n"


def _reason(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "Odd"
