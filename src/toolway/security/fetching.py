"""Requests to authorization servers: few, small and bounded, each to an address that was checked. Loaded only where
one is made."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

import httpx2

from toolway.addresses import AddressError, Addresses
from toolway.addresses.pinned import PinnedTransport
from toolway.model import NotAuthorized
from toolway.security.urls import check_url, unusable

LIMIT: Final = 10.0  # seconds for one request, however slowly its answer comes
LARGEST: Final = 256 * 1024  # bytes of an answer

_trusted: ssl.SSLContext | None = None


async def fetch(request: httpx2.Request, reach: Addresses, limit: float = LIMIT) -> httpx2.Response:
    """The whole response, whatever its status; no redirect is followed. Raises `NotAuthorized`."""
    check_url(str(request.url))
    try:
        transport = PinnedTransport(reach, await _trust())
        async with asyncio.timeout(limit), httpx2.AsyncClient(transport=transport, timeout=limit) as client:
            request.headers["Accept-Encoding"] = "identity"
            response = await client.send(request, stream=True, follow_redirects=False)
            try:
                return _whole(response, await _read(response))
            finally:
                await response.aclose()
    except AddressError as exc:
        raise NotAuthorized(exc.reason, code=exc.code, fix=exc.fix) from None
    except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as exc:
        why = "took too long" if isinstance(exc, TimeoutError | httpx2.TimeoutException) else "cannot be reached"
        raise NotAuthorized(
            f"the authorization server at {request.url.host} {why}",
            code="E-AUTH-SERVER",
            fix="check that it runs, and the network; the token we have is kept",
        ) from None


async def post(
    url: str, form: dict[str, str], headers: dict[str, str], reach: Addresses, limit: float
) -> tuple[int, bytes]:
    """Status and body. Raises `NotAuthorized`."""
    check_url(url)
    try:
        request = httpx2.Request("POST", url, data=form, headers=headers)
    except httpx2.InvalidURL:
        raise unusable("cannot be read") from None
    answer = await fetch(request, reach, limit)
    return answer.status_code, answer.content


async def _trust() -> ssl.SSLContext:
    """Whom TLS connections trust: read once, and aside, because that takes as long as many calls."""
    global _trusted
    if _trusted is None:
        _trusted = await asyncio.to_thread(httpx2.create_ssl_context)
    return _trusted


async def _read(response: httpx2.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > LARGEST:
            reason = f"the authorization server sent more than {LARGEST} bytes"
            raise NotAuthorized(reason, code="E-AUTH-ANSWER", fix="report it to its operator")
    return bytes(body)


def _whole(response: httpx2.Response, body: bytes) -> httpx2.Response:
    """The response as others expect it: read. What it was coded in is not undone, since we asked for no coding."""
    headers = {name: value for name, value in response.headers.items() if name != "content-encoding"}
    whole = httpx2.Response(response.status_code, headers=headers, content=body, request=response.request)
    whole.next_request = response.next_request
    return whole
