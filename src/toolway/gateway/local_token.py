"""Which requests may use the local token, which makes the sender an administrator.

The token is for programs on this machine and on the networks in `toolway.gateway.localTokenFrom`. A request through a
proxy may come from anywhere, even if the proxy runs on this machine. So a gateway never accepts the token together
with a proxy header, and a gateway on loopback only accepts it for a loopback host name. The content of proxy headers
is never trusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from toolway.config.exposure import is_loopback_host
from toolway.http.exchange import THIS_MACHINE, HttpRequest

#: Headers by which a proxy, a load balancer or a CDN says that it passes a request on.
FORWARDING_HEADERS: Final = frozenset(
    {
        *("forwarded", "forwarded-for", "via", "x-forwarded", "x-via", "x-real-ip", "x-real-host", "x-remote-addr"),
        *("x-original-forwarded-for", "x-original-host", "x-original-url", "x-rewrite-url", "x-host", "x-scheme"),
        *("client-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip", "x-proxyuser-ip", "x-originating-ip"),
        *("proxy-client-ip", "wl-proxy-client-ip", "incap-client-ip", "x-sucuri-clientip", "cdn-loop", "x-varnish"),
        *(
            "x-url-scheme",
            "front-end-https",
            "x-cloud-trace-context",
            "x-amz-cf-id",
            "x-appgw-trace-id",
            "x-arr-log-id",
        ),
    }
)
#: First letters of more such headers. Providers add names to their families.
FORWARDING_PREFIXES: Final = (
    *("x-forwarded-", "x-proxy-", "x-envoy-", "x-azure-", "x-appengine-", "x-vercel-", "x-nf-", "x-akamai-"),
    *("cf-", "fastly-", "fly-", "cloudfront-", "ngrok-", "tailscale-"),
)


def is_forwarded(headers: Mapping[str, str]) -> bool:
    """Return True if a header shows that the request came through a proxy. Names are in lower case."""
    return any(name in FORWARDING_HEADERS or name.startswith(FORWARDING_PREFIXES) for name in headers)


class LocalTokenRule:
    """Decides which requests may use the local token.

    `listens_on` is the address on which the gateway listens, or "" if it does not listen. `networks` are the accepted
    addresses and networks besides this machine.
    """

    def __init__(self, listens_on: str = "", networks: Iterable[str] = ()) -> None:
        self.depends_on_peer = bool(listens_on) and not is_loopback_host(listens_on)
        self._networks = tuple(ip_network(each) for each in networks)

    def allows(self, request: HttpRequest) -> bool:
        """Return True if this request may use the local token, or a browser session that the token opened."""
        if is_forwarded(request.headers):
            return False
        if self.depends_on_peer:
            return self._is_near(request.peer)
        host = request.headers.get("host")
        # Only a proxy leads a client here that knows the gateway by another name.
        return host is None or is_loopback_host(_without_port(host))

    def _is_near(self, peer: str) -> bool:
        """Return True if an address is on this machine or on an accepted network, False if it is unknown."""
        if peer == THIS_MACHINE:
            return True
        address = _parse_address(peer)
        return address is not None and (address.is_loopback or any(address in network for network in self._networks))


def _without_port(host: str) -> str:
    return host.partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _parse_address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped if mapped is not None else address
