"""Paths outside `/mcp` and `/admin` at which parts answer callers, authenticated as at `/mcp`.

What a part sends for a caller is the MCP request that the caller could send to the same endpoint: it goes through the
dispatcher, with the caller's principal and view. So every control sees it: access, policy, limits, approvals, argument
check, audit log, and redaction.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple, Protocol

from toolway.gateway.mcp.context import RequestContext
from toolway.gateway.mcp.errors import RpcFailure
from toolway.gateway.mcp.responses import RpcResult
from toolway.gateway.mcp.view import EndpointView
from toolway.gateway.principals import Principal
from toolway.http.exchange import Exchange
from toolway.protocol import jsonrpc
from toolway.protocol.constants import INVALID_PARAMS
from toolway.types import Json
from toolway.upstream.transports.pending_requests import decode_large

#: Paths of the gateway itself.
_OWN_PREFIXES = ("/mcp", "/sse", "/messages", "/admin", "/dashboard", "/login", "/node", "/metrics", "/who")


class PathReply(NamedTuple):
    """Response to a caller's request."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class CallerAccess(NamedTuple):
    """How MCP requests are sent for a principal."""

    view_for: Callable[[Principal, str], EndpointView | None]
    dispatch: Callable[[RequestContext, str, Json], Coroutine[Any, Any, RpcResult]]


class PathCaller:
    """An authenticated request at a part's path, and the MCP requests that its sender may make."""

    def __init__(self, exchange: Exchange, principal: Principal, access: CallerAccess) -> None:
        request = exchange.request
        self.method = request.method
        self.path = request.path  # as sent: nothing is decoded
        self.headers: Mapping[str, str] = request.headers  # by name in lower case
        self.repeated_headers = request.repeated_headers
        self._exchange = exchange
        self._principal = principal
        self._access = access

    def may_use(self, endpoint: str) -> bool:
        """Return True if an endpoint exists and the caller may use it: "" for `/mcp`, or a toolset's name."""
        return self._access.view_for(self._principal, endpoint) is not None

    def uses_search(self, endpoint: str) -> bool:
        """Return True if the caller gets meta-tools at this endpoint instead of all tools."""
        view = self._access.view_for(self._principal, endpoint)
        return view is not None and view.meta_tools is not None

    async def read_json(self) -> Any:
        """Return the JSON body, or None if the request has none. Raises `ValueError` if it is not valid JSON."""
        return await _decode(self._exchange.request.body) if self._exchange.request.body else None

    async def send(self, endpoint: str, method: str, params: Json, capabilities: Json | None = None) -> Json:
        """Return the result of an MCP request of this caller to an endpoint that it may use.

        `capabilities` are what the caller can answer. Raises `RpcFailure` if the request fails.
        """
        view = self._access.view_for(self._principal, endpoint)
        if view is None:
            raise RpcFailure(INVALID_PARAMS, "unknown endpoint", {"executed": "no"})
        context = RequestContext(
            self._principal,
            view,
            endpoint,
            "modern",
            capabilities or {},
            idempotency_key=self.headers.get("idempotency-key") if method == "tools/call" else None,
        )
        context.set_ids(self._exchange)
        result = await self._access.dispatch(context, method, params)
        if isinstance(result, jsonrpc.RawResult):
            encoded = jsonrpc.encode_result(0, result)
            result = (await _decode(encoded))["result"]
        return result


class CallerEndpoint(Protocol):
    """A part's answers to callers, below one path."""

    async def answer(self, caller: PathCaller) -> PathReply:
        """Return the response to a request."""
        ...

    def reject(self, failure: RpcFailure) -> PathReply:
        """Return the response to a request that the gateway does not handle now. Nothing was sent for it."""
        ...


class CallerPaths:
    """The paths of all parts. The gateway sets `access`."""

    access: CallerAccess

    def __init__(self) -> None:
        self._endpoints: dict[str, CallerEndpoint] = {}

    def serve(self, prefix: str, endpoint: CallerEndpoint) -> None:
        """Let a part answer callers at the paths below `prefix`, such as "/api".

        Raises `LookupError` if the gateway or another part answers there.
        """
        taken = (*_OWN_PREFIXES, *self._endpoints)
        if prefix in taken or not prefix.startswith("/") or prefix.count("/") > 1:
            raise LookupError(f"a part cannot answer at {prefix}")
        self._endpoints[prefix] = endpoint

    @property
    def prefixes(self) -> tuple[str, ...]:
        return tuple(self._endpoints)

    def find(self, path: str) -> CallerEndpoint | None:
        """Return who answers at a path; None if no part does."""
        if not self._endpoints:
            return None
        first = path[1:].partition("/")[0]
        return self._endpoints.get(f"/{first}") if path != f"/{first}" else None

    async def handle(self, endpoint: CallerEndpoint, exchange: Exchange, principal: Principal) -> None:
        """Answer a request by the endpoint of a part."""
        exchange.reply(*await endpoint.answer(PathCaller(exchange, principal, self.access)))


async def _decode(data: bytes) -> Any:
    return await decode_large(data) if jsonrpc.is_large(data) else jsonrpc.decode_json(data)
