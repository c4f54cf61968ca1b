"""HTTP requests to authorization servers: small, bounded, and only to checked addresses.

Loaded on first use.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

import httpx2

from toolway.auth.urls import check_oauth_url, oauth_url_error
from toolway.network import AddressError, NetworkPolicy
from toolway.network.httpx_transport import PinnedTransport
from toolway.types import AuthError

REQUEST_TIMEOUT_S: Final = 10.0  # seconds for one request, including its whole response
MAX_RESPONSE_BYTES: Final = 256 * 1024  # bytes of a response body

_ssl_context: ssl.SSLContext | None = None


async def fetch(
    request: httpx2.Request, network_policy: NetworkPolicy, timeout: float = REQUEST_TIMEOUT_S
) -> httpx2.Response:
    """Send a request and return the whole response, of any status. Redirects are not followed.

    Raises `AuthError` if the URL or address is not allowed, if the response is too large, or if it is not complete
    within `timeout` seconds.
    """
    check_oauth_url(str(request.url))
    try:
        transport = PinnedTransport(network_policy, await _load_ssl_context())
        async with asyncio.timeout(timeout), httpx2.AsyncClient(transport=transport, timeout=timeout) as client:
            request.headers["Accept-Encoding"] = "identity"
            response = await client.send(request, stream=True, follow_redirects=False)
            try:
                return _with_body(response, await _read_body(response))
            finally:
                await response.aclose()
    except AddressError as exc:
        raise AuthError(exc.reason, code=exc.code, hint=exc.hint) from None
    except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as exc:
        problem = "took too long" if isinstance(exc, TimeoutError | httpx2.TimeoutException) else "cannot be reached"
        raise AuthError(
            f"the authorization server at {request.url.host} {problem}",
            code="E-AUTH-SERVER",
            hint="check that it is running and reachable; the current token is kept",
        ) from None


async def post(
    url: str, form: dict[str, str], headers: dict[str, str], network_policy: NetworkPolicy, timeout: float
) -> tuple[int, bytes]:
    """Send a form by POST to an authorization server and return (status, body).

    Raises `AuthError` if the URL is not allowed, or if no complete response arrives within `timeout` seconds.
    """
    check_oauth_url(url)
    try:
        request = httpx2.Request("POST", url, data=form, headers=headers)
    except httpx2.InvalidURL:
        raise oauth_url_error("cannot be parsed") from None
    response = await fetch(request, network_policy, timeout)
    return response.status_code, response.content


async def get(url: str, network_policy: NetworkPolicy) -> httpx2.Response:
    """Fetch a JSON document from an authorization server. Raises `AuthError` as `fetch` does."""
    try:
        request = httpx2.Request("GET", url, headers={"Accept": "application/json"})
    except httpx2.InvalidURL:
        raise oauth_url_error("cannot be parsed") from None
    return await fetch(request, network_policy)


async def _load_ssl_context() -> ssl.SSLContext:
    """Return the TLS context with the trusted CAs, for all requests to authorization servers.

    It is created once, in a thread, because loading the CAs is slow.
    """
    global _ssl_context
    if _ssl_context is None:
        _ssl_context = await asyncio.to_thread(httpx2.create_ssl_context)
    return _ssl_context


async def _read_body(response: httpx2.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            reason = f"the authorization server sent more than {MAX_RESPONSE_BYTES} bytes"
            raise AuthError(reason, code="E-AUTH-ANSWER", hint="report it to whoever runs the server")
    return bytes(body)


def _with_body(response: httpx2.Response, body: bytes) -> httpx2.Response:
    """Return a copy of the streamed response that contains its body.

    The body is not decompressed, since the request accepts only the identity encoding.
    """
    headers = {name: value for name, value in response.headers.items() if name != "content-encoding"}
    copy = httpx2.Response(response.status_code, headers=headers, content=body, request=response.request)
    copy.next_request = response.next_request
    return copy
