"""Dialer: opens connections to an origin, through DNS, TCP, proxy, and TLS.

If anything fails here, nothing has been sent. Only checked addresses are connected to (`toolway.network`), but the
name is still used for `Host` and for TLS. Plain text is never used instead of TLS. The environment sets the proxy,
and TLS goes through a CONNECT tunnel.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar, cast
from urllib.parse import unquote, urlsplit

from toolway.config.schema import Tls
from toolway.http.limits import HttpError
from toolway.http.request import Origin
from toolway.http.tls import explain_alert, get_tls_context
from toolway.network import AddressError, NetworkPolicy, ResolvedAddress, resolve_host
from toolway.network.policy import ALLOW_ALL
from toolway.network.resolver import check_ip_literal, env_proxy_url

P = TypeVar("P", bound=asyncio.Protocol)

_STAGGER_S: Final = 0.25  # seconds before the next address is tried in parallel
# A vanished peer is detected within a minute, for reads and for writes.
_KEEPALIVE_OPTIONS: Final = (("TCP_KEEPIDLE", 20), ("TCP_KEEPALIVE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
_USER_TIMEOUT: Final = ("TCP_USER_TIMEOUT", 50_000)


class Dialer:
    """Opens connections to addresses that the network policy allows.

    A DNS lookup fails after `lookup_timeout` seconds. `tls` are TLS settings that replace the system's. With
    `unix_path`, every connection goes to that Unix socket, without DNS, proxy, or TLS.
    """

    def __init__(
        self, network_policy: NetworkPolicy, lookup_timeout: float, tls: Tls | None = None, unix_path: str = ""
    ) -> None:
        self._network_policy = network_policy
        self._lookup_timeout = lookup_timeout
        self._tls = tls
        self._unix_path = unix_path

    async def dial(
        self, origin: Origin, proxy: Proxy | None, protocol_factory: Callable[[], P], *, tunnel: bool = False
    ) -> P:
        """Connect to `origin`, with TLS for https, and return the protocol from `protocol_factory`.

        With a proxy, https always uses a tunnel. http uses one only if `tunnel` is set, for a protocol other than HTTP.
        No time limit applies here; the caller sets one. Raises `HttpError` if DNS, TCP, proxy or TLS fails.
        """
        if self._unix_path:
            return await _connect_unix(self._unix_path, protocol_factory)
        return await self._dial(origin, proxy, protocol_factory, tunnel=tunnel)

    async def fetch_certificate(self, origin: Origin, proxy: Proxy | None) -> bytes:
        """Return the certificate that an https origin presents, as DER, even if it is not trusted.

        Nothing is sent on the connection, which is closed at once. No time limit applies here; the caller sets one.
        Raises `HttpError` if DNS, TCP, proxy or TLS fails.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        receiver = await self._dial(origin, proxy, _CertificateReceiver, tls_context=context)
        return receiver.certificate

    async def _dial(
        self,
        origin: Origin,
        proxy: Proxy | None,
        protocol_factory: Callable[[], P],
        *,
        tunnel: bool = False,
        tls_context: ssl.SSLContext | None = None,
    ) -> P:
        try:
            if origin.scheme == "https" and tls_context is None:
                tls_context = await get_tls_context(self._tls)
            sock = await self._connect(origin, proxy)
            if proxy is not None and (tls_context is not None or tunnel):
                return await _open_tunnel(sock, proxy, origin, tls_context, protocol_factory)
            loop = asyncio.get_running_loop()
            name = origin.host if tls_context is not None else None
            _, protocol = await loop.create_connection(
                protocol_factory, sock=sock, ssl=tls_context, server_hostname=name
            )
            return protocol
        except ssl.SSLError as exc:
            raise _tls_error(origin, exc) from None
        except OSError as exc:
            raise HttpError(
                f"{proxy or origin} closed the connection before it was ready ({_os_error_text(exc)})",
                code="E-HTTP-CONNECT" if tls_context is None else "E-HTTP-TLS",
                hint="" if tls_context is None else "check that the server uses TLS; if not, its url must be http://",
            ) from None

    async def _connect(self, origin: Origin, proxy: Proxy | None) -> socket.socket:
        host, port = (proxy.host, proxy.port) if proxy is not None else (origin.host, origin.port)
        try:
            return await _connect_first(await self._resolve(origin, proxy))
        except AddressError as exc:
            raise HttpError(exc.reason, code=exc.code, hint=exc.hint) from None
        except OSError as exc:
            raise HttpError(
                f"cannot connect to {proxy or origin} ({_os_error_text(exc)})",
                code="E-HTTP-CONNECT",
                hint=f"check that a server is running at {host} and listening on port {port}",
            ) from None

    async def _resolve(self, origin: Origin, proxy: Proxy | None) -> tuple[ResolvedAddress, ...]:
        if proxy is None:
            return await resolve_host(origin.host, origin.port, self._network_policy, self._lookup_timeout)
        check_ip_literal(origin.host, self._network_policy)  # the proxy resolves names
        # You chose the proxy by the environment.
        proxy_policy = replace(ALLOW_ALL, lookup=self._network_policy.lookup)
        return await resolve_host(proxy.host, proxy.port, proxy_policy, self._lookup_timeout)


async def _connect_unix(path: str, protocol_factory: Callable[[], P]) -> P:
    """Connect to a Unix socket on this machine. Raises `HttpError` if no program is listening on it."""
    try:
        _, protocol = await asyncio.get_running_loop().create_unix_connection(protocol_factory, path)
        return protocol
    except OSError as exc:
        raise HttpError(
            f"cannot connect to the socket {path} ({_os_error_text(exc)})",
            code="E-HTTP-CONNECT",
            hint="check that the process behind the socket is running",
        ) from None


# -- TCP --------------------------------------------------------------------------------------------------------------


async def _connect_first(addresses: Iterable[ResolvedAddress]) -> socket.socket:
    """Connect to the addresses in order and return the first socket that is connected.

    The next address is tried after a failure, or in parallel after a short delay. Raises `OSError` if all attempts
    fail.
    """
    waiting: set[asyncio.Task[socket.socket]] = set()
    left = list(addresses)
    failure = OSError("no address")
    try:
        while left or waiting:
            if left:
                waiting.add(asyncio.create_task(_connect_address(left.pop(0))))
            stagger = _STAGGER_S if left else None
            done, waiting = await asyncio.wait(waiting, timeout=stagger, return_when=asyncio.FIRST_COMPLETED)
            connected = [task.result() for task in done if task.exception() is None]
            if connected:
                for spare in connected[1:]:
                    spare.close()
                return connected[0]
            failure = next((exc for task in done if isinstance(exc := task.exception(), OSError)), failure)
        raise failure
    finally:
        for task in waiting:
            task.cancel()
        for late in await asyncio.gather(*waiting, return_exceptions=True):
            if isinstance(late, socket.socket):
                late.close()


async def _connect_address(address: ResolvedAddress) -> socket.socket:
    sock = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (*_KEEPALIVE_OPTIONS, _USER_TIMEOUT):
            if hasattr(socket, option):
                with contextlib.suppress(OSError):  # a refused option is not a reason to give up the connection
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        await asyncio.get_running_loop().sock_connect(sock, address.sockaddr)
    except BaseException:
        sock.close()
        raise
    return sock


def _os_error_text(exc: OSError) -> str:
    if isinstance(exc, socket.gaierror) or exc.errno is None:
        return str(exc.args[-1]) if exc.args else type(exc).__name__
    return os.strerror(exc.errno).lower()


# -- TLS --------------------------------------------------------------------------------------------------------------


class _CertificateReceiver(asyncio.Protocol):
    """Asyncio protocol that stores the certificate of the TLS peer, and then closes the connection."""

    certificate = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tls = transport.get_extra_info("ssl_object")
        self.certificate = (tls.getpeercert(binary_form=True) if tls is not None else None) or b""
        cast(asyncio.Transport, transport).abort()


def _tls_error(origin: Origin, exc: ssl.SSLError) -> HttpError:
    if isinstance(exc, ssl.SSLCertVerificationError):
        return HttpError(
            f"the certificate of {origin} was rejected ({exc.verify_message})",
            code="E-HTTP-TLS",
            hint="fix the host name or the certificate; for a private CA, set tls.caFile, or SSL_CERT_FILE",
        )
    objection = explain_alert(exc)
    if objection is not None:
        return HttpError(f"{origin} {objection[0]}", code="E-HTTP-TLS", hint=objection[1])
    why = getattr(exc, "reason", None) or "the TLS handshake failed"
    return HttpError(
        f"no TLS connection to {origin} ({why.replace('_', ' ').lower()})",
        code="E-HTTP-TLS",
        hint="check that the server uses TLS; if not, its url must be http://",
    )


# -- proxy ------------------------------------------------------------------------------------------------------------

_MAX_HEAD_BYTES: Final = 16 * 1024


class Proxy(NamedTuple):
    """Address and credential of an HTTP proxy."""

    host: str
    port: int
    authorization: str = ""  # value of `Proxy-Authorization`; empty without credentials

    def __str__(self) -> str:
        return f"proxy {self.host}:{self.port}"


def proxy_for(origin: Origin) -> Proxy | None:
    """Return the proxy that the `*_PROXY` environment variables set for an origin, or None.

    Loopback addresses never use a proxy. Raises `HttpError` if the proxy's URL is not an http:// URL.
    """
    url = env_proxy_url(*origin)
    if url is None:
        return None
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise HttpError(
            f"the proxy set for {origin} has an unsupported scheme: {parts.scheme}://{parts.hostname}",
            code="E-HTTP-PROXY",
            hint="set an http:// proxy, or add the host to NO_PROXY",
        )
    authorization = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = "Basic " + base64.b64encode(pair.encode()).decode("ascii")
    return Proxy(parts.hostname, parts.port or 80, authorization)


async def _open_tunnel(
    sock: socket.socket,
    proxy: Proxy,
    origin: Origin,
    context: ssl.SSLContext | None,
    protocol_factory: Callable[[], P],
) -> P:
    """Open a tunnel to `origin` through an HTTP proxy, and start TLS in it if there is a TLS `context`.

    Return the protocol from `protocol_factory`, which is now connected.
    """
    loop = asyncio.get_running_loop()
    transport, tunnel = await loop.create_connection(lambda: Tunnel(proxy, origin), sock=sock)
    try:
        await tunnel.wait_open()
        protocol = protocol_factory()
        if context is not None:
            secured = await loop.start_tls(transport, protocol, context, server_hostname=origin.host)
            assert secured is not None
            transport = secured
        else:
            transport.set_protocol(protocol)
    except BaseException:
        transport.abort()
        raise
    protocol.connection_made(transport)
    return protocol


class Tunnel(asyncio.Protocol):
    """Protocol that requests a tunnel to an origin from an HTTP proxy (CONNECT).

    After a failure, the MCP request itself was not sent.
    """

    def __init__(self, proxy: Proxy, origin: Origin) -> None:
        self._proxy = proxy
        self._origin = origin
        self._head = bytearray()
        self._opened_future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait_open(self) -> None:
        """Wait until the proxy has opened the tunnel. Raises `HttpError` if the proxy rejects it."""
        await self._opened_future

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
            if len(self._head) > _MAX_HEAD_BYTES:
                self._fail("responded with a head that is too long")
            return
        status = self._head[:end].split(b"\r\n")[0].split(b" ")[1:2]
        if status != [b"200"]:
            self._fail(f"rejected a tunnel to {self._origin} ({bytes(self._head[:60]).splitlines()[0]!r})")
        elif end + 4 != len(self._head):
            self._fail("sent its own bytes into the tunnel")
        elif not self._opened_future.done():
            self._opened_future.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("closed the connection without opening a tunnel")

    def _fail(self, problem: str) -> None:
        if not self._opened_future.done():
            hint = "check HTTPS_PROXY and its credentials, or add the host to NO_PROXY"
            self._opened_future.set_exception(HttpError(f"{self._proxy} {problem}", code="E-HTTP-PROXY", hint=hint))
