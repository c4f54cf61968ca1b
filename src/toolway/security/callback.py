"""Where a browser comes to at the end of a login: a port of this machine alone (RFC 8252).

Whatever runs on this machine, and every web page, can ask for this port. So only a request for our path, by our name,
with the state of the login that was begun ends the wait; all others are refused, and nothing of them is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import parse_qs, urlsplit, urlunsplit

from toolway.security.urls import is_loopback

HEAD: Final = 16 * 1024  # bytes of a request
PATIENCE: Final = 10.0  # seconds for a request to come whole
MOST: Final = 32  # connections at a time

_PAGE: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Toolway</title>'
    "<body><h1>{title}</h1><p>{text}</p></body></html>"
)
_DONE: Final = _PAGE.format(title="You are logged in", text="You can close this window.")
_REFUSED: Final = _PAGE.format(title="The login did not succeed", text="See the terminal for the reason.")
_STRANGE: Final = _PAGE.format(title="Nothing to see here", text="This is not the end of the login that was begun.")
_FIELDS: Final = (
    "Content-Type: text/html; charset=utf-8\r\nContent-Security-Policy: default-src 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-store\r\n"
    "Connection: close\r\n"
)


class Callback:
    """`uri` is where it listens."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._parts = urlsplit(uri)
        self._states: dict[str, asyncio.Future[str]] = {}
        self._open = 0

    async def wait(self, url: str) -> str:
        """The address at which the login ends that begins at `url`."""
        state = state_of(url)
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._states[state] = ended
        try:
            return await ended
        finally:
            del self._states[state]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= MOST:
                async with asyncio.timeout(PATIENCE):
                    writer.write(self._answer(await reader.readuntil(b"\r\n\r\n")))
                    await writer.drain()
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            pass  # whoever it was, it was no browser
        finally:
            self._open -= 1
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        line, *fields = head.decode("latin-1").split("\r\n")
        method, _, rest = line.partition(" ")
        target, _, _ = rest.rpartition(" ")
        hosts = [
            value.strip() for name, _, value in (field.partition(":") for field in fields) if name.lower() == "host"
        ]
        path, _, query = target.partition("?")
        if method != "GET" or hosts != [self._parts.netloc] or path != self._parts.path:
            return _page("404 Not Found", _STRANGE)
        said = parse_qs(query, keep_blank_values=True)
        ended = self._states.get(said.get("state", [""])[0])
        if ended is None or ended.done():
            return _page("400 Bad Request", _STRANGE)
        ended.set_result(urlunsplit((self._parts.scheme, self._parts.netloc, path, query, "")))
        return _page("200 OK", _DONE if "code" in said else _REFUSED)


@asynccontextmanager
async def listening(uri: str, *, elsewhere: bool) -> AsyncIterator[Callback]:
    """A callback at this address; where its port is taken, at another one if `elsewhere`. Raises `OSError`, and
    `ValueError` for an address that is not of this machine."""
    parts = urlsplit(uri)
    host = parts.hostname or ""
    if parts.scheme != "http" or not is_loopback(host):
        raise ValueError("a login ends at http://127.0.0.1, on this machine")
    callback: Callback | None = None

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert callback is not None
        await callback.serve(reader, writer)

    address = "127.0.0.1" if host.endswith("localhost") else host
    try:
        server = await asyncio.start_server(serve, address, 80 if parts.port is None else parts.port, limit=HEAD)
    except OSError:
        if not elsewhere:
            raise
        server = await asyncio.start_server(serve, address, 0, limit=HEAD)
    port = server.sockets[0].getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    callback = Callback(urlunsplit((parts.scheme, f"{shown}:{port}", parts.path, "", "")))
    async with server:
        yield callback


def state_of(url: str) -> str:
    """What ties the end of a login to its beginning."""
    return parse_qs(urlsplit(url).query).get("state", [""])[0]


def _page(status: str, body: str) -> bytes:
    data = body.encode()
    return f"HTTP/1.1 {status}\r\n{_FIELDS}Content-Length: {len(data)}\r\n\r\n".encode() + data
