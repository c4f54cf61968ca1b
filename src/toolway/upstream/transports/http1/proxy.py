"""The proxy of the environment: which one an origin has, and the tunnel through it that TLS needs."""

from __future__ import annotations

import asyncio
import base64
from typing import Final, NamedTuple, cast
from urllib.parse import unquote, urlsplit

from toolway.addresses.proxies import proxy_of
from toolway.upstream.transports.http1.limits import HttpFault
from toolway.upstream.transports.http1.request import Origin

_MAX_HEAD: Final = 16 * 1024


class Proxy(NamedTuple):
    host: str
    port: int
    authorization: str = ""  # the value of `Proxy-Authorization`, empty without credentials

    def __str__(self) -> str:
        return f"proxy {self.host}:{self.port}"


def proxy_for(origin: Origin) -> Proxy | None:
    """The proxy that `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` name. Loopback never has one."""
    url = proxy_of(*origin)
    if url is None:
        return None
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise HttpFault(
            f"the environment names a proxy of an unknown kind for {origin}: {parts.scheme}://{parts.hostname}",
            code="E-HTTP-PROXY",
            fix="name an http:// proxy, or add the host to NO_PROXY",
        )
    authorization = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = "Basic " + base64.b64encode(pair.encode()).decode("ascii")
    return Proxy(parts.hostname, parts.port or 80, authorization)


class Tunnel(asyncio.Protocol):
    """Asks a proxy for a tunnel. What is asked for here is not the request, so a failure is still "not sent"."""

    def __init__(self, proxy: Proxy, origin: Origin) -> None:
        self._proxy = proxy
        self._origin = origin
        self._head = bytearray()
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait_open(self) -> None:
        """Raises `HttpFault`."""
        await self._opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        host = f"[{self._origin.host}]" if ":" in self._origin.host else self._origin.host
        where = f"{host}:{self._origin.port}"
        secret = f"Proxy-Authorization: {self._proxy.authorization}\r\n" if self._proxy.authorization else ""
        cast(asyncio.Transport, transport).write(
            f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n{secret}\r\n".encode("ascii")
        )

    def data_received(self, data: bytes) -> None:
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._head) > _MAX_HEAD:
                self._refuse("answered with too long a head")
            return
        status = self._head[:end].split(b"\r\n")[0].split(b" ")[1:2]
        if status != [b"200"]:
            self._refuse(f"refused a tunnel to {self._origin} ({bytes(self._head[:60]).splitlines()[0]!r})")
        elif end + 4 != len(self._head):
            self._refuse("sent bytes into the tunnel of its own")
        elif not self._opened.done():
            self._opened.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._refuse("closed the connection without opening a tunnel")

    def _refuse(self, what: str) -> None:
        if not self._opened.done():
            fix = "check HTTPS_PROXY and its credentials, or add the host to NO_PROXY"
            self._opened.set_exception(HttpFault(f"{self._proxy} {what}", code="E-HTTP-PROXY", fix=fix))
