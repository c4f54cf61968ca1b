"""httpx2 transport that connects each request to a checked address of its host.

    async with httpx2.AsyncClient(transport=PinnedTransport(policy, ssl_context)) as client: …

Connections are not reused, because the pool of httpx2 identifies a connection by its address and would reuse it for
another host name. The environment's proxy is used as usual. It resolves names itself, so only IP literals in a URL
can be checked in advance.
"""

from __future__ import annotations

import ssl

import httpx2

from toolway.network.policy import NetworkPolicy
from toolway.network.resolver import ResolvedAddress, check_ip_literal, env_proxy_url, resolve_host

_DEFAULT_PORTS = {"http": 80, "https": 443}
_NO_KEEPALIVE = httpx2.Limits(max_keepalive_connections=0)


class PinnedTransport(httpx2.AsyncBaseTransport):
    """httpx2 transport that resolves the host itself and connects only to allowed addresses.

    Besides httpx2 errors, a request raises `AddressError` if its host is not found or not allowed.
    """

    def __init__(self, policy: NetworkPolicy, ssl_context: ssl.SSLContext) -> None:
        self._policy = policy
        self._ssl_context = ssl_context
        self._direct = httpx2.AsyncHTTPTransport(verify=ssl_context, trust_env=False, limits=_NO_KEEPALIVE)
        self._proxied: dict[str, httpx2.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        host = url.raw_host.decode("ascii")
        port = url.port or _DEFAULT_PORTS.get(url.scheme, 0)
        proxy = env_proxy_url(url.scheme, host, port)
        if proxy is not None:
            check_ip_literal(host, self._policy)
            return await self._proxy_transport(proxy).handle_async_request(request)
        return await self._send_to_first(await resolve_host(host, port, self._policy), request, host)

    async def _send_to_first(
        self, resolved: tuple[ResolvedAddress, ...], request: httpx2.Request, host: str
    ) -> httpx2.Response:
        for each in resolved[:-1]:
            try:
                return await self._direct.handle_async_request(_pin_request(each, request, host))
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                continue  # nothing was sent
        return await self._direct.handle_async_request(_pin_request(resolved[-1], request, host))

    def _proxy_transport(self, proxy: str) -> httpx2.AsyncHTTPTransport:
        if proxy not in self._proxied:
            self._proxied[proxy] = httpx2.AsyncHTTPTransport(
                verify=self._ssl_context, trust_env=False, limits=_NO_KEEPALIVE, proxy=proxy
            )
        return self._proxied[proxy]

    async def aclose(self) -> None:
        for transport in (self._direct, *self._proxied.values()):
            await transport.aclose()


def _pin_request(resolved: ResolvedAddress, request: httpx2.Request, host: str) -> httpx2.Request:
    """Return a copy of the request with the checked IP address as host of its URL.

    TLS still verifies the original host name.
    """
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=resolved.host),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": host},
    )
