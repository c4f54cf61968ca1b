"""Resolves a host to allowed IP addresses, and finds the proxy that the environment sets.

A name is resolved once per connection, and the connection uses the checked address, so a different DNS answer later
has no effect. Each name is resolved in its own thread, because a hanging lookup must only delay the callers of that
name.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Iterable
from functools import partial
from ipaddress import ip_address
from itertools import chain, zip_longest
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from toolway._async import run_in_daemon_thread
from toolway.network.address_classes import CLOUD_METADATA, AddressClass, classify_address
from toolway.network.policy import Lookup, NetworkPolicy

LOOKUP_TIMEOUT_S: Final = 5.0  # seconds for a lookup
MAX_ADDRESSES: Final = 8  # addresses of a name that are tried
MAX_LOOKUPS: Final = 256  # concurrent lookups; each is a thread

_PendingLookups = dict[tuple[Lookup, str], "asyncio.Future[list[str]]"]
_pending_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _PendingLookups] = WeakKeyDictionary()


class ResolvedAddress(NamedTuple):
    """An IP address that the network policy allows, as `family` and `sockaddr` for a socket."""

    family: int
    sockaddr: Any

    @property
    def host(self) -> str:
        return str(self.sockaddr[0])


class AddressError(Exception):
    """Raised when a host has no address or must not be connected to. Nothing was sent."""

    code = "E-HTTP-ADDRESS"

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


class NameNotFound(AddressError):
    """Raised when a host name has no address, or its lookup failed or took too long."""

    code = "E-HTTP-DNS"


class AddressDenied(AddressError):
    """Raised when the network policy denies all of a host's addresses, which are all non-public."""


async def resolve_host(
    host: str, port: int, policy: NetworkPolicy, timeout: float = LOOKUP_TIMEOUT_S
) -> tuple[ResolvedAddress, ...]:
    """Resolve `host` to the addresses that `policy` allows, in the order to try them.

    Raises `NameNotFound` if it has no address, or if the lookup fails or exceeds `timeout` seconds. Raises
    `AddressDenied` if `policy` denies all its addresses.
    """
    found = parse_ip_literal(host) or await _lookup_shared(host, policy.lookup or system_lookup, timeout)
    return _select_allowed(host, port, found, policy)


def resolve_host_blocking(host: str, port: int, policy: NetworkPolicy) -> tuple[ResolvedAddress, ...]:
    """Resolve `host` like `resolve_host`, but blocking the thread. Raises the same errors."""
    try:
        found = parse_ip_literal(host) or _lookup_addresses(policy.lookup or system_lookup, host)
    except (OSError, ValueError) as exc:
        raise _not_found(host, str(exc.args[-1]) if exc.args else type(exc).__name__) from None
    return _select_allowed(host, port, found, policy)


def _select_allowed(host: str, port: int, found: Iterable[str], policy: NetworkPolicy) -> tuple[ResolvedAddress, ...]:
    allowed, denied = [], []
    for text in dict.fromkeys(found):
        address_class = policy.check(host, ip_address(text))
        if address_class is None:
            allowed.append(text)
        else:
            denied.append((text, address_class))
    if denied and not allowed:
        raise _denied(host, *denied[0])
    if not allowed:
        raise _not_found(host, "it has no address")
    return _interleave_families([_to_resolved(text, port) for text in allowed])[:MAX_ADDRESSES]


def check_ip_literal(host: str, policy: NetworkPolicy) -> None:
    """Raise `AddressDenied` if `host` is an IP literal that `policy` denies.

    This is for requests through a proxy. The proxy resolves names, so a host name is not checked.
    """
    for text in parse_ip_literal(host):
        address_class = policy.check(host, ip_address(text))
        if address_class is not None:
            raise _denied(host, text, address_class)


def parse_ip_literal(host: str) -> list[str]:
    """Return the IP address that `host` spells out, even as 127.1 or 0x7f000001, or [] for a name."""
    try:
        return system_lookup(host, socket.AI_NUMERICHOST)
    except OSError:
        return []


def system_lookup(host: str, flags: int = 0) -> list[str]:
    """Look up a host's IP addresses with the system resolver.

    Blocks the thread. Raises `OSError` if the name is invalid or cannot be resolved.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=flags)
    except ValueError as exc:  # an invalid name
        raise OSError(str(exc)) from None
    return [str(sockaddr[0]) for _, _, _, _, sockaddr in found]


async def _lookup_shared(host: str, lookup: Lookup, timeout: float) -> list[str]:
    pending = _pending_by_loop.setdefault(asyncio.get_running_loop(), {})
    future = pending.get((lookup, host))
    if future is None:
        if len(pending) >= MAX_LOOKUPS:
            raise _not_found(host, "too many pending lookups; check that the name server answers")
        future = pending[lookup, host] = run_in_daemon_thread(_lookup_addresses, lookup, host)
        future.add_done_callback(partial(_on_lookup_done, pending, (lookup, host)))
    try:
        async with asyncio.timeout(timeout):
            return await asyncio.shield(future)
    except TimeoutError:
        raise _not_found(host, f"the name server did not answer within {timeout:g} s") from None
    except (OSError, ValueError) as exc:
        raise _not_found(host, str(exc.args[-1]) if exc.args else type(exc).__name__) from None


def _lookup_addresses(lookup: Lookup, host: str) -> list[str]:
    """Return the IP addresses that `lookup` finds for `host`, in normal form.

    Raises `ValueError` if `lookup` returns a string that is not an IP address.
    """
    return [str(ip_address(text)) for text in lookup(host)]


def _on_lookup_done(pending: _PendingLookups, key: tuple[Lookup, str], future: asyncio.Future[list[str]]) -> None:
    pending.pop(key, None)
    if not future.cancelled():
        future.exception()  # mark it as retrieved: its callers may be gone


def _to_resolved(text: str, port: int) -> ResolvedAddress:
    """Return the socket address for an IP address and a port.

    An interface in the address (`fe80::1%eth0`) becomes the interface index.
    """
    family, _, _, _, sockaddr = socket.getaddrinfo(text, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0]
    return ResolvedAddress(family, sockaddr)


def _interleave_families(found: list[ResolvedAddress]) -> tuple[ResolvedAddress, ...]:
    """Alternate IPv4 and IPv6 addresses, so an unreachable family costs only one attempt."""
    first = [each for each in found if each.family == found[0].family]
    other = [each for each in found if each.family != found[0].family]
    return tuple(each for each in chain.from_iterable(zip_longest(first, other)) if each is not None)


def _not_found(host: str, reason: str) -> NameNotFound:
    return NameNotFound(
        f"host {host} not found ({reason})", hint="check the host name in the URL, and your DNS settings"
    )


def _denied(host: str, ip: str, address_class: AddressClass) -> AddressDenied:
    subject = host if host == ip else f"{host} resolves to {ip}, which"
    rules = [host]
    if address_class.name == CLOUD_METADATA:
        rules = [ip]
    elif parse_ip_literal(host):
        rules = [ip, *(str(each) for each in address_class.embedded if classify_address(each) is not None)]
    allow = json.dumps({"toolway": {"addresses": {"allow": rules}}})[1:-1]
    return AddressDenied(
        f"{subject} is {address_class}; connections to it are denied",
        f"if this is intended, allow it in the config file: {allow}",
    )


# -- proxy of the environment ------------------------------------------------------------------------------------------


def env_proxy_url(scheme: str, host: str, port: int) -> str | None:
    """Return the environment's proxy URL for an origin, or None if no proxy applies.

    Reads `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`. A loopback host never uses a proxy.
    """
    if not any(name.lower().endswith("_proxy") and value for name, value in os.environ.items()):
        return None
    from urllib import request as environment  # slow to import and rarely needed

    proxies = environment.getproxies_environment()
    url = proxies.get(scheme) or proxies.get("all")
    if not url or _is_loopback(host):
        return None
    if environment.proxy_bypass_environment(f"{host}:{port}", proxies):  # type: ignore[attr-defined] # unknown to its types
        return None
    return url if "://" in url else f"http://{url}"


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
