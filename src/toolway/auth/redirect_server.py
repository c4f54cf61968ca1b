"""Loopback server for the OAuth redirect at the end of a login (RFC 8252).

Every program on this machine, and every web page, can send requests to this port. So only a request for the right
path and Host, with the state of a login in progress, ends the wait. All other requests get an error page that
contains nothing from them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import parse_qs, urlsplit, urlunsplit

from toolway.auth.urls import is_loopback

MAX_HEAD_BYTES: Final = 16 * 1024  # bytes of a request head
READ_TIMEOUT_S: Final = 10.0  # seconds to receive a whole request
MAX_CONNECTIONS: Final = 32  # simultaneous connections

_PAGE_TEMPLATE: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Toolway</title>'
    "<body><h1>{title}</h1><p>{text}</p></body></html>"
)
_SUCCESS_PAGE: Final = _PAGE_TEMPLATE.format(title="You are logged in", text="You can close this window.")
_FAILURE_PAGE: Final = _PAGE_TEMPLATE.format(title="The login failed", text="See the terminal for the reason.")
_NOT_FOUND_PAGE: Final = _PAGE_TEMPLATE.format(
    title="Not found", text="This is not the redirect of a login in progress."
)
_RESPONSE_HEADERS: Final = (
    "Content-Type: text/html; charset=utf-8\r\nContent-Security-Policy: default-src 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-store\r\n"
    "Connection: close\r\n"
)


class RedirectServer:
    """HTTP server that receives the browser's OAuth redirect. `uri` is its redirect URI."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._parts = urlsplit(uri)
        self._waiting: dict[str, asyncio.Future[str]] = {}
        self._open_connections = 0

    async def wait_for_redirect(self, url: str) -> str:
        """Wait for the browser's redirect after the login page at `url`; return the redirect URL.

        The wait has no time limit.
        """
        state = state_from_url(url)
        redirect: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[state] = redirect
        try:
            return await redirect
        finally:
            del self._waiting[state]

    async def handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one HTTP request from a browser, answer it with a page, and close the connection.

        The redirect of a login in progress ends `wait_for_redirect`. A connection that is too slow, or exceeds the
        limit, is closed without a response.
        """
        self._open_connections += 1
        try:
            if self._open_connections <= MAX_CONNECTIONS:
                async with asyncio.timeout(READ_TIMEOUT_S):
                    writer.write(self._respond(await reader.readuntil(b"\r\n\r\n")))
                    await writer.drain()
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            pass  # not a browser
        finally:
            self._open_connections -= 1
            writer.close()

    def _respond(self, head: bytes) -> bytes:
        line, *fields = head.decode("latin-1").split("\r\n")
        method, _, rest = line.partition(" ")
        target, _, _ = rest.rpartition(" ")
        hosts = [
            value.strip() for name, _, value in (field.partition(":") for field in fields) if name.lower() == "host"
        ]
        path, _, query = target.partition("?")
        if method != "GET" or hosts != [self._parts.netloc] or path != self._parts.path:
            return _http_response("404 Not Found", _NOT_FOUND_PAGE)
        params = parse_qs(query, keep_blank_values=True)
        redirect = self._waiting.get(params.get("state", [""])[0])
        if redirect is None or redirect.done():
            return _http_response("400 Bad Request", _NOT_FOUND_PAGE)
        redirect.set_result(urlunsplit((self._parts.scheme, self._parts.netloc, path, query, "")))
        return _http_response("200 OK", _SUCCESS_PAGE if "code" in params else _FAILURE_PAGE)


@asynccontextmanager
async def open_redirect_server(uri: str, *, any_port: bool) -> AsyncIterator[RedirectServer]:
    """Run a redirect server at the loopback URL `uri` inside the `async with` block.

    If the port is in use and `any_port` is set, any free port is used. Raises `OSError` if the port cannot be bound,
    and `ValueError` if `uri` is not an http URL of a loopback address.
    """
    parts = urlsplit(uri)
    host = parts.hostname or ""
    if parts.scheme != "http" or not is_loopback(host):
        raise ValueError("a redirect URI must be http://127.0.0.1, on this machine")
    redirect_server: RedirectServer | None = None

    async def handle_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert redirect_server is not None
        await redirect_server.handle_connection(reader, writer)

    address = "127.0.0.1" if host.endswith("localhost") else host
    try:
        server = await asyncio.start_server(
            handle_connection, address, 80 if parts.port is None else parts.port, limit=MAX_HEAD_BYTES
        )
    except OSError:
        if not any_port:
            raise
        server = await asyncio.start_server(handle_connection, address, 0, limit=MAX_HEAD_BYTES)
    port = server.sockets[0].getsockname()[1]
    url_host = f"[{host}]" if ":" in host else host
    redirect_server = RedirectServer(urlunsplit((parts.scheme, f"{url_host}:{port}", parts.path, "", "")))
    async with server:
        yield redirect_server


def state_from_url(url: str) -> str:
    """Return the OAuth `state` parameter of a URL, or an empty string if it has none.

    The parameter ties the redirect to its login.
    """
    return parse_qs(urlsplit(url).query).get("state", [""])[0]


def _http_response(status: str, body: str) -> bytes:
    data = body.encode()
    return f"HTTP/1.1 {status}\r\n{_RESPONSE_HEADERS}Content-Length: {len(data)}\r\n\r\n".encode() + data
