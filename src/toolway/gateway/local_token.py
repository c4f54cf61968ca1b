"""Addresses from which a gateway accepts the token of its machine, which is an administrator's.

A gateway that other machines can reach, or that has a login, accepts this token from its own machine only, and from the
networks of `toolway.gateway.localTokenFrom`. No header of a proxy is trusted. A request that a proxy forwarded may be
from anywhere, so the token is refused with it, even if the proxy runs on this machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from toolway.http.exchange import THIS_MACHINE, HttpRequest

#: Headers by which a proxy says that it forwards a request.
FORWARDING_HEADERS: Final = frozenset(
    {
        *("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-port", "x-forwarded-proto"),
        *("x-forwarded-prefix", "x-forwarded-server", "x-original-forwarded-for", "x-original-host"),
        *("x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip", "cf-connecting-ip"),
        *("fastly-client-ip", "fly-client-ip", "x-envoy-external-address", "x-azure-clientip"),
    }
)


class LocalTokenRule:
    """Rule that says with which requests the token of this machine is accepted.

    `listens_on` is the address on which the gateway listens; "" if it does not listen. `networks` are addresses and
    networks besides this machine.
    """

    def __init__(self, listens_on: str = "", networks: Iterable[str] = (), *, has_login: bool = False) -> None:
        self.depends_on_peer = bool(listens_on) and not _is_loopback(listens_on)
        self._is_restricted = self.depends_on_peer or has_login
        self._networks = tuple(ip_network(each) for each in networks)

    def allows(self, request: HttpRequest) -> bool:
        """Return True if the token, or a browser session that it opened, is accepted with this request."""
        if not self._is_restricted:
            return True
        if not FORWARDING_HEADERS.isdisjoint(request.headers):
            return False
        return not self.depends_on_peer or self._is_near(request.peer)

    def _is_near(self, peer: str) -> bool:
        """Return True if an address is of this machine or of an accepted network. An unknown address is not."""
        if _is_loopback(peer):
            return True
        address = _parse_address(peer)
        return address is not None and any(address in network for network in self._networks)


def _is_loopback(host: str) -> bool:
    """Return True if `host` is `localhost` or a loopback address. 0.0.0.0 is none: it means all addresses."""
    address = _parse_address(host)
    return address.is_loopback if address is not None else host == THIS_MACHINE


def _parse_address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped if mapped is not None else address
