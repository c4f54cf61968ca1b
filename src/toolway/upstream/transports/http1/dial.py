"""From an origin to a connected protocol: name look-up, TCP, proxy, TLS. Whatever fails here was not sent.

Only addresses that were checked are connected to (`toolway.addresses`); the name is kept for `Host` and for TLS.
Plaintext is never tried in place of TLS.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, TypeVar

from toolway.addresses import AddressError, Addresses, Pinned, resolve
from toolway.addresses.aside import in_thread
from toolway.addresses.policy import ANYWHERE
from toolway.addresses.resolving import check_literal
from toolway.upstream.transports.http1.limits import HttpFault
from toolway.upstream.transports.http1.proxy import Proxy, Tunnel
from toolway.upstream.transports.http1.request import Origin

P = TypeVar("P", bound=asyncio.Protocol)

_STAGGER: Final = 0.25  # seconds an address has before the next one is tried beside it
# A peer that vanished is noticed within a minute, whether we wait for it or it for us.
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 20), ("TCP_KEEPALIVE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
_USER_TIMEOUT: Final = ("TCP_USER_TIMEOUT", 50_000)


class Dialer:
    """Opens connections, and keeps nothing of them. `addresses` are those that it may connect to; a name server has
    `limit` seconds."""

    def __init__(self, addresses: Addresses, limit: float) -> None:
        self._addresses = addresses
        self._limit = limit

    async def dial(self, origin: Origin, proxy: Proxy | None, make: Callable[[], P]) -> P:
        """A protocol of `make`, connected to `origin`. Raises `HttpFault`; the caller bounds the time."""
        context = None
        try:
            if origin.scheme == "https":
                context = await _tls_context()
            sock = await self._connect(origin, proxy)
            if proxy is not None and context is not None:
                return await _through_tunnel(sock, proxy, origin, context, make)
            loop = asyncio.get_running_loop()
            name = origin.host if context is not None else None
            _, protocol = await loop.create_connection(make, sock=sock, ssl=context, server_hostname=name)
            return protocol
        except ssl.SSLError as exc:
            raise _tls_fault(origin, exc) from None
        except OSError as exc:
            raise HttpFault(
                f"{proxy or origin} closed the connection before it was ready ({_why(exc)})",
                code="E-HTTP-CONNECT" if context is None else "E-HTTP-TLS",
                fix="" if context is None else "check that the address speaks TLS; its url is http:// if it does not",
            ) from None

    async def _connect(self, origin: Origin, proxy: Proxy | None) -> socket.socket:
        host, port = (proxy.host, proxy.port) if proxy is not None else (origin.host, origin.port)
        try:
            return await _first_of(await self._addresses_of(origin, proxy))
        except AddressError as exc:
            raise HttpFault(exc.reason, code=exc.code, fix=exc.fix) from None
        except OSError as exc:
            raise HttpFault(
                f"cannot connect to {proxy or origin} ({_why(exc)})",
                code="E-HTTP-CONNECT",
                fix=f"check that something listens on port {port} of {host}",
            ) from None

    async def _addresses_of(self, origin: Origin, proxy: Proxy | None) -> tuple[Pinned, ...]:
        if proxy is None:
            return await resolve(origin.host, origin.port, self._addresses, self._limit)
        check_literal(origin.host, self._addresses)  # the proxy looks up names
        anywhere = replace(ANYWHERE, lookup=self._addresses.lookup)  # whoever set our environment chose the proxy
        return await resolve(proxy.host, proxy.port, anywhere, self._limit)


# -- connections


async def _first_of(addresses: Iterable[Pinned]) -> socket.socket:
    """The first that connects. The next is tried when one has failed or has taken a moment. Raises `OSError`."""
    waiting: set[asyncio.Task[socket.socket]] = set()
    left = list(addresses)
    failure = OSError("no address")
    try:
        while left or waiting:
            if left:
                waiting.add(asyncio.create_task(_open(left.pop(0))))
            stagger = _STAGGER if left else None
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


async def _open(address: Pinned) -> socket.socket:
    sock = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (*_KEEPALIVE, _USER_TIMEOUT):
            if hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        await asyncio.get_running_loop().sock_connect(sock, address.sockaddr)
    except BaseException:
        sock.close()
        raise
    return sock


def _why(exc: OSError) -> str:
    if isinstance(exc, socket.gaierror) or exc.errno is None:
        return str(exc.args[-1]) if exc.args else type(exc).__name__
    return os.strerror(exc.errno).lower()


# -- TLS

_Files = tuple[str | None, str | None]
_contexts: dict[_Files, ssl.SSLContext] = {}
_one_at_a_time: Final = threading.Lock()


async def _tls_context() -> ssl.SSLContext:
    """The context for all connections. Made in a thread: it reads every authority of the system."""
    # OpenSSL itself reads these two, once, when a context is made.
    files = (os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    found = _contexts.get(files)
    return found if found is not None else await in_thread(_made_once, files)


def _made_once(files: _Files) -> ssl.SSLContext:
    """Many servers start at once, and one context does for all of them."""
    with _one_at_a_time:
        if files not in _contexts:
            _contexts[files] = _new_context()
        return _contexts[files]


def _new_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


async def _through_tunnel(
    sock: socket.socket, proxy: Proxy, origin: Origin, context: ssl.SSLContext, make: Callable[[], P]
) -> P:
    loop = asyncio.get_running_loop()
    transport, tunnel = await loop.create_connection(lambda: Tunnel(proxy, origin), sock=sock)
    try:
        await tunnel.wait_open()
        protocol = make()
        secured = await loop.start_tls(transport, protocol, context, server_hostname=origin.host)
    except BaseException:
        transport.abort()
        raise
    assert secured is not None
    protocol.connection_made(secured)
    return protocol


def _tls_fault(origin: Origin, exc: ssl.SSLError) -> HttpFault:
    if isinstance(exc, ssl.SSLCertVerificationError):
        return HttpFault(
            f"the certificate of {origin} was not accepted ({exc.verify_message})",
            code="E-HTTP-TLS",
            fix="correct the host or the certificate; for a private authority, set SSL_CERT_FILE to its certificate",
        )
    why = getattr(exc, "reason", None) or "the handshake failed"
    return HttpFault(
        f"no TLS connection to {origin} ({why.replace('_', ' ').lower()})",
        code="E-HTTP-TLS",
        fix="check that the address speaks TLS; its url is http:// if it does not",
    )
