"""Negotiation of protocol era (legacy: before 2026-07-28; modern) and version.

`server/discover` is sent first. A modern response, or an error that only a modern server sends, decides for the modern
era; any other *response* decides for legacy. Silence decides nothing: a server may start slowly, or ignore unknown
methods. So after a grace period `initialize` is sent as well, and the first response decides. A transient failure (a
503, a reset) never decides the era: the start fails and is retried.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from mcp_types import SERVER_INFO_META_KEY
from mcp_types.jsonrpc import METHOD_NOT_FOUND

from toolway.config.schema import EraSetting, Server
from toolway.protocol import versions
from toolway.protocol.sanitize import sanitize
from toolway.types import Certainty, Era, Json
from toolway.upstream.transport import JSONRPCError, Request, Transport, TransportError

DISCOVER_GRACE_S: Final = 3.0  # of silence before `initialize` is sent as well
# HTTP rejections that concern the client or the time, not the protocol of the server.
ERA_NEUTRAL_STATUSES: Final = frozenset({401, 403, 407, 408, 421, 425, 429})


@dataclass(frozen=True, slots=True)
class NegotiatedProtocol:
    """Negotiated protocol era and version, and the server's description of itself."""

    era: Era
    version: str
    capabilities: Json
    server_info: Json
    instructions: str


async def negotiate(
    transport: Transport, setting: EraSetting, era_hint: Era | None, info: Json, capabilities: Json
) -> NegotiatedProtocol:
    """Negotiate era (legacy or modern) and version with the server behind `transport`.

    `era_hint` is the era that the server spoke last time. Raises `TransportError` or `JSONRPCError` if the server
    cannot be reached, or rejects the negotiation.
    """
    if setting == "modern":
        return await _require_modern(transport, info, capabilities)
    if setting == "legacy":
        return await initialize(transport, info, capabilities)
    if era_hint == "legacy":
        try:
            return await initialize(transport, info, capabilities)
        except JSONRPCError as exc:
            if not _may_be_modern(exc):
                raise
    return await _detect_era(transport, info, capabilities)


async def initialize(transport: Transport, info: Json, capabilities: Json) -> NegotiatedProtocol:
    """Send `initialize` and `notifications/initialized`, and return the agreed legacy protocol.

    Used at the start, and again if a legacy server lost its session. Raises `TransportError` if the server requires
    an unknown version.
    """
    params = versions.initialize_params(info, capabilities)
    result = await transport.request(Request("initialize", params, silent_cancel=True))
    version = versions.agreed_legacy_version(result)
    if version is None:
        requested = sanitize(str(result.get("protocolVersion")), 80)
        raise TransportError(
            f"the server requires the unknown protocol version {requested}",
            Certainty.REJECTED,
            code="E-VERSION",
            hint="update the server, or toolway",
        )
    transport.set_protocol("legacy", version)
    await transport.notify("notifications/initialized", {})
    return NegotiatedProtocol(
        era="legacy",
        version=version,
        capabilities=_dict_or_empty(result.get("capabilities")),
        server_info=_dict_or_empty(result.get("serverInfo")),
        instructions=_str_or_empty(result.get("instructions")),
    )


async def _detect_era(transport: Transport, info: Json, capabilities: Json) -> NegotiatedProtocol:
    """Detect the server's era: send `server/discover`, and after a silence `initialize` too."""
    discover = asyncio.create_task(_discover(transport, info, capabilities))
    tasks = [discover]
    try:
        await asyncio.wait({discover}, timeout=DISCOVER_GRACE_S)
        if not discover.done():
            initialized = asyncio.create_task(initialize(transport, info, capabilities))
            tasks.append(initialized)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not discover.done() and _succeeded(initialized):
                return initialized.result()
        try:
            return await discover
        except _LegacyServer:
            return await (tasks[1] if len(tasks) > 1 else initialize(transport, info, capabilities))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _succeeded(task: asyncio.Task[NegotiatedProtocol]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


class _LegacyServer(Exception):
    """Raised if the server answered `server/discover` as only a server before 2026-07-28 does."""


async def _discover(transport: Transport, info: Json, capabilities: Json) -> NegotiatedProtocol:
    """Send `server/discover` and return the agreed modern protocol.

    Raises `_LegacyServer` if the response proves the legacy era.
    """
    try:
        result = await _send_discover(transport, versions.PREFERRED_VERSION, info, capabilities)
    except JSONRPCError as exc:
        if not versions.is_modern_error(exc.code):
            raise _LegacyServer from None
        version = versions.version_from_error(exc.code, exc.data)
        if version is None:
            if versions.accepts_legacy(exc.data):
                raise _LegacyServer from None
            raise
        result = await _send_discover(transport, version, info, capabilities)
    except TransportError as exc:
        if exc.status is not None and 400 <= exc.status < 500 and exc.status not in ERA_NEUTRAL_STATUSES:
            raise _LegacyServer from None
        raise
    modern_version = versions.select_modern_version(result)
    if modern_version is None:
        raise _LegacyServer
    meta = result.get("_meta")
    return NegotiatedProtocol(
        era="modern",
        version=modern_version,
        capabilities=_dict_or_empty(result.get("capabilities")),
        server_info=_dict_or_empty(meta.get(SERVER_INFO_META_KEY) if isinstance(meta, dict) else None),
        instructions=_str_or_empty(result.get("instructions")),
    )


async def _require_modern(transport: Transport, info: Json, capabilities: Json) -> NegotiatedProtocol:
    """Send `server/discover` to a server that is configured as modern.

    Raises `TransportError` if the server proves to be legacy.
    """
    try:
        return await _discover(transport, info, capabilities)
    except _LegacyServer:
        raise TransportError(
            "the server does not speak the modern era",
            Certainty.REJECTED,
            code="E-ERA",
            hint='set "era": "auto" for this server',
        ) from None


async def _send_discover(transport: Transport, version: str, info: Json, capabilities: Json) -> Json:
    params = versions.add_protocol_meta({}, version, info, capabilities)
    return await transport.request(Request("server/discover", params, version=version, silent_cancel=True))


def _may_be_modern(exc: JSONRPCError) -> bool:
    return versions.is_modern_error(exc.code) or exc.code == METHOD_NOT_FOUND


def _dict_or_empty(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _str_or_empty(value: object) -> str:
    return value if isinstance(value, str) else ""


# -- detection of HTTP+SSE --------------------------------------------------------------------------------------------

SSE_PROBE_TIMEOUT_S: Final = 5.0  # for the SSE stream to begin; a silent URL speaks Streamable HTTP
LEGACY_SSE_CODE: Final = "E-HTTP-OLD"  # a POST was answered with the first event of an HTTP+SSE stream
BAD_SSE_ENDPOINT_CODE: Final = "E-SSE-ENDPOINT"  # the stream is HTTP+SSE, but its endpoint must not be used
_NOT_IMPLEMENTED: Final = 501


def may_be_legacy_sse(server: Server, exc: TransportError | JSONRPCError) -> bool:
    """Return True if a URL that rejected `initialize` with `exc` should be tried with HTTP+SSE.

    By the rule of the protocol, a POST rejected with a status such as 400, 404 or 405 is followed by a GET. A
    server of the old HTTP+SSE transport answers the GET with its endpoint for messages. Rejections that concern the
    client or the time, and failures, do not reveal the transport of a server.
    """
    if server.transport != "http" or server.era == "modern":
        return False
    if isinstance(exc, TransportError) and exc.code in (LEGACY_SSE_CODE, "E-HTTP-CONTENT"):
        return True  # the response was not an MCP message
    status = exc.status
    if status is None or status in ERA_NEUTRAL_STATUSES:
        return False
    return 400 <= status < 500 or status == _NOT_IMPLEMENTED
