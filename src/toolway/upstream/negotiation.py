"""Negotiates protocol era (legacy: before 2026-07-28; modern; bare: no handshake) and version.

`server/discover` is sent first. A modern response, or an error that only a modern server sends, means the modern era;
any other *response* means legacy. Silence means neither, because a server may start slowly or ignore unknown methods.
So after a grace period, `initialize` is sent as well, and the first response decides. A transient failure (a 503, a
reset) never decides the era; the start fails and is retried.

A server that rejects or ignores both is bare if it answers `tools/list` without them. It only gets requests for its
tools, and no notifications, because such servers answer those too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from toolway.config.schema import EraSetting, Server
from toolway.protocol import versions
from toolway.protocol.constants import METHOD_NOT_FOUND, SERVER_INFO_META_KEY
from toolway.protocol.sanitize import map_texts, sanitize
from toolway.types import Certainty, Era, Json
from toolway.upstream.transport import JSONRPCError, Request, Transport, TransportError

DISCOVER_GRACE_S: Final = 3.0  # of silence before `initialize` is sent as well, and then again before `tools/list`
KNOWN_BARE_GRACE_S: Final = 0.3  # the same for a server that was bare at its last start; it may have changed since
HANDSHAKE_MARGIN_S: Final = 0.2  # for a response to the handshake, after `tools/list` was answered without one
# HTTP rejections of `initialize` after which a URL may still answer `tools/list`.
BARE_STATUSES: Final = frozenset({400, 404, 422, 501})
# HTTP rejections that concern the client or the time, not the protocol of the server.
ERA_NEUTRAL_STATUSES: Final = frozenset({401, 403, 407, 408, 421, 425, 429})


class NegotiatedProtocol(msgspec.Struct, frozen=True):
    """Negotiated protocol era and version, and the server's description of itself."""

    era: Era
    version: str
    capabilities: Json
    server_info: Json
    instructions: str


def mask_description(found: NegotiatedProtocol, mask: Callable[[str], str]) -> NegotiatedProtocol:
    """Return the protocol with secrets masked in the server's self-description."""
    return msgspec.structs.replace(
        found,
        capabilities=map_texts(found.capabilities, mask),
        server_info=map_texts(found.server_info, mask),
        instructions=mask(found.instructions),
    )


def _bare_protocol() -> NegotiatedProtocol:
    """Return the protocol of a "bare" server, which knows `tools/call` but neither `initialize` nor `server/discover`.

    The returned protocol has an empty version.
    """
    return NegotiatedProtocol("bare", "", versions.BARE_CAPABILITIES, {}, "")


async def negotiate(
    transport: Transport, setting: EraSetting, era_hint: Era | None, info: Json, capabilities: Json
) -> NegotiatedProtocol:
    """Negotiate era (legacy, modern or bare) and version with the server behind `transport`.

    `era_hint` is the era the server used last time. Raises `TransportError` or `JSONRPCError` if the server
    cannot be reached, or rejects the negotiation.
    """
    if setting == "modern":
        return await _require_modern(transport, info, capabilities)
    if setting == "legacy":
        return await initialize(transport, info, capabilities)
    if setting == "bare":
        return _bare_protocol()
    if era_hint == "legacy":
        try:
            return await initialize(transport, info, capabilities)
        except JSONRPCError as exc:
            if not _may_be_modern(exc):
                raise
    grace = KNOWN_BARE_GRACE_S if era_hint == "bare" else DISCOVER_GRACE_S
    return await _detect_era(transport, info, capabilities, grace)


async def initialize(transport: Transport, info: Json, capabilities: Json) -> NegotiatedProtocol:
    """Send `initialize` and `notifications/initialized`, and return the agreed legacy protocol.

    This is used at the start, and again if a legacy server lost its session. Raises `TransportError` if the server
    requires an unknown version.
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


async def _detect_era(transport: Transport, info: Json, capabilities: Json, grace: float) -> NegotiatedProtocol:
    """Detect the era with up to three requests, each sent after `grace` seconds without a response.

    They are `server/discover`, `initialize` and `tools/list`, which a server without a handshake answers.
    """
    discover = asyncio.create_task(_discover(transport, info, capabilities))
    tasks: list[asyncio.Task[NegotiatedProtocol]] = [discover]
    try:
        await asyncio.wait({discover}, timeout=grace)
        if not discover.done():
            initialized = asyncio.create_task(_initialize_or_bare(transport, info, capabilities))
            tasks.append(initialized)
            await asyncio.wait(tasks, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
            if not any(task.done() for task in tasks) and await _lists_tools_first(transport, tasks):
                return _bare_protocol()
            if not discover.done() and _succeeded(initialized):
                return initialized.result()
        try:
            return await discover
        except _LegacyServer:
            return await (tasks[1] if len(tasks) > 1 else _initialize_or_bare(transport, info, capabilities))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _initialize_or_bare(transport: Transport, info: Json, capabilities: Json) -> NegotiatedProtocol:
    """Send `initialize` and return the protocol, or the bare one if only `tools/list` works."""
    try:
        return await initialize(transport, info, capabilities)
    except JSONRPCError as exc:
        if exc.code != METHOD_NOT_FOUND or not await _lists_tools(transport):
            raise
    except TransportError as exc:
        if exc.status not in BARE_STATUSES or not await _lists_tools(transport):
            raise
    return _bare_protocol()


async def _lists_tools_first(transport: Transport, handshake: list[asyncio.Task[NegotiatedProtocol]]) -> bool:
    """Send `tools/list` during a handshake. Return True if the server answers only `tools/list`.

    A slow starter answers all requests at once, so the handshake gets a little more time.
    """
    tools = asyncio.create_task(_lists_tools(transport))
    try:
        await asyncio.wait([tools, *handshake], return_when=asyncio.FIRST_COMPLETED)
        if tools.done() and tools.result():
            await asyncio.wait(handshake, timeout=HANDSHAKE_MARGIN_S, return_when=asyncio.FIRST_COMPLETED)
            return not any(task.done() for task in handshake)
        await asyncio.wait(handshake, return_when=asyncio.FIRST_COMPLETED)
        return False
    finally:
        tools.cancel()
        await asyncio.gather(tools, return_exceptions=True)


async def _lists_tools(transport: Transport) -> bool:
    """Return True if the server answers `tools/list` with a list of tools, without a handshake."""
    try:
        page = await transport.request(Request("tools/list", {}, silent_cancel=True))
    except (TransportError, JSONRPCError):
        return False
    return isinstance(page.get("tools"), list)


def _succeeded(task: asyncio.Task[NegotiatedProtocol]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


class _LegacyServer(Exception):
    """Raised when the server answered `server/discover` as only a legacy server does."""


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

    The protocol says to follow a POST rejected with a status such as 400, 404 or 405 with a GET, which an HTTP+SSE
    server answers with its message endpoint. Failures, and rejections that concern the client or timing, are not
    evidence about the transport.
    """
    if server.transport != "http" or server.era == "modern":
        return False
    if isinstance(exc, TransportError) and exc.code in (LEGACY_SSE_CODE, "E-HTTP-CONTENT"):
        return True  # the response was not an MCP message
    status = exc.status
    if status is None or status in ERA_NEUTRAL_STATUSES:
        return False
    return 400 <= status < 500 or status == _NOT_IMPLEMENTED
