"""The same for httpx2: each request goes to an address that was checked, under the name that it was made for.

    async with httpx2.AsyncClient(transport=PinnedTransport(addresses, context)) as client: …

No connection is kept: the pool of httpx2 would know one by its address, and give it to another name there. A proxy of
the environment is used as ever; it looks up names itself, so only what a URL spells out can be checked before.
"""

from __future__ import annotations

import ssl

import httpx2

from toolway.addresses.policy import Addresses
from toolway.addresses.proxies import proxy_of
from toolway.addresses.resolving import Pinned, check_literal, resolve

_PORTS = {"http": 80, "https": 443}
_ALONE = httpx2.Limits(max_keepalive_connections=0)


class PinnedTransport(httpx2.AsyncBaseTransport):
    """Raises `AddressError` beside the exceptions of httpx2."""

    def __init__(self, addresses: Addresses, trust: ssl.SSLContext) -> None:
        self._addresses = addresses
        self._trust = trust
        self._direct = httpx2.AsyncHTTPTransport(verify=trust, trust_env=False, limits=_ALONE)
        self._proxied: dict[str, httpx2.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        host = url.raw_host.decode("ascii")
        port = url.port or _PORTS.get(url.scheme, 0)
        proxy = proxy_of(url.scheme, host, port)
        if proxy is not None:
            check_literal(host, self._addresses)
            return await self._through(proxy).handle_async_request(request)
        return await self._at_one_of(await resolve(host, port, self._addresses), request, host)

    async def _at_one_of(self, pinned: tuple[Pinned, ...], request: httpx2.Request, host: str) -> httpx2.Response:
        for each in pinned[:-1]:
            try:
                return await self._direct.handle_async_request(_at(each, request, host))
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                continue  # nothing of it was sent
        return await self._direct.handle_async_request(_at(pinned[-1], request, host))

    def _through(self, proxy: str) -> httpx2.AsyncHTTPTransport:
        if proxy not in self._proxied:
            self._proxied[proxy] = httpx2.AsyncHTTPTransport(
                verify=self._trust, trust_env=False, limits=_ALONE, proxy=proxy
            )
        return self._proxied[proxy]

    async def aclose(self) -> None:
        for transport in (self._direct, *self._proxied.values()):
            await transport.aclose()


def _at(pinned: Pinned, request: httpx2.Request, host: str) -> httpx2.Request:
    """`Host` stands in the headers already; TLS is told whose certificate it must be."""
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=pinned.host),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": host},
    )
