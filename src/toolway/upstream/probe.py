"""Finding out which era a server speaks, and agreeing with it.

`server/discover` is asked first. A modern answer, or an error that only a modern server sends, settles it; any other
*answer* means the handshake era. Silence settles nothing: a server may be slow to start, or may ignore what it does not
know, so after a grace both questions are open and whichever is answered first decides. A passing failure (a 503, a
reset) is never taken for an era: the start fails and is tried again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from mcp_types import SERVER_INFO_META_KEY
from mcp_types.jsonrpc import METHOD_NOT_FOUND

from toolway.config.spec import EraSetting
from toolway.model import Certainty, Era, Json
from toolway.protocol import eras, wire
from toolway.upstream.finding import NOT_ABOUT_THE_ERA
from toolway.upstream.link import Fault, Link, Request, RpcError

GRACE: Final = 3.0  # silence after which `initialize` is asked too


@dataclass(frozen=True, slots=True)
class Agreement:
    """What was agreed: the era, the version, and what the server said about itself."""

    era: Era
    version: str
    capabilities: Json
    server_info: Json
    instructions: str


class _SpeaksHandshake(Exception):
    """The server answered the probe as only a server of the handshake era does."""


async def agree(link: Link, setting: EraSetting, hint: Era | None, info: Json, capabilities: Json) -> Agreement:
    """Agree with the server behind `link`. `hint` is what it spoke last time. Raises `Fault` or `RpcError`."""
    if setting == "modern":
        return await _discover_or_fail(link, info, capabilities)
    if setting == "legacy":
        return await initialize(link, info, capabilities)
    if hint == "handshake":
        try:
            return await initialize(link, info, capabilities)
        except RpcError as exc:
            if not _may_be_modern(exc):
                raise
    return await _find_out(link, info, capabilities)


async def _find_out(link: Link, info: Json, capabilities: Json) -> Agreement:
    discover = asyncio.create_task(_discover(link, info, capabilities))
    tasks = [discover]
    try:
        await asyncio.wait({discover}, timeout=GRACE)
        if not discover.done():
            hello = asyncio.create_task(initialize(link, info, capabilities))
            tasks.append(hello)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not discover.done() and _succeeded(hello):
                return hello.result()
        try:
            return await discover
        except _SpeaksHandshake:
            return await (tasks[1] if len(tasks) > 1 else initialize(link, info, capabilities))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _succeeded(task: asyncio.Task[Agreement]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


async def _discover(link: Link, info: Json, capabilities: Json) -> Agreement:
    """Ask `server/discover`. Raises `_SpeaksHandshake` where the answer shows the older era."""
    try:
        result = await _ask_discover(link, eras.PREFERRED, info, capabilities)
    except RpcError as exc:
        if not eras.shows_modern(exc.code):
            raise _SpeaksHandshake from None
        version = eras.version_after_refusal(exc.code, exc.data)
        if version is None:
            if eras.offers_handshake(exc.data):
                raise _SpeaksHandshake from None
            raise
        result = await _ask_discover(link, version, info, capabilities)
    except Fault as exc:
        if exc.status is not None and 400 <= exc.status < 500 and exc.status not in NOT_ABOUT_THE_ERA:
            raise _SpeaksHandshake from None
        raise
    agreed = eras.modern_version(result)
    if agreed is None:
        raise _SpeaksHandshake
    meta = result.get("_meta")
    return Agreement(
        era="modern",
        version=agreed,
        capabilities=_object(result.get("capabilities")),
        server_info=_object(meta.get(SERVER_INFO_META_KEY) if isinstance(meta, dict) else None),
        instructions=_text(result.get("instructions")),
    )


async def _discover_or_fail(link: Link, info: Json, capabilities: Json) -> Agreement:
    try:
        return await _discover(link, info, capabilities)
    except _SpeaksHandshake:
        raise Fault(
            "the server does not speak the modern era",
            Certainty.C1,
            code="E-ERA",
            fix='set "era": "auto" for this server',
        ) from None


async def _ask_discover(link: Link, version: str, info: Json, capabilities: Json) -> Json:
    params = eras.stamp({}, version, info, capabilities)
    return await link.request(Request("server/discover", params, version=version, quiet=True))


async def initialize(link: Link, info: Json, capabilities: Json) -> Agreement:
    """The handshake: at the start, and again on a link whose server has forgotten it."""
    params = eras.initialize_params(info, capabilities)
    result = await link.request(Request("initialize", params, quiet=True))
    version = eras.handshake_version(result)
    if version is None:
        offered = wire.clean_text(str(result.get("protocolVersion")), 80)
        raise Fault(
            f"the server wants to speak protocol version {offered}, which is unknown",
            Certainty.C1,
            code="E-VERSION",
            fix="update the server, or toolway",
        )
    link.adopt("handshake", version)
    await link.notify("notifications/initialized", {})
    return Agreement(
        era="handshake",
        version=version,
        capabilities=_object(result.get("capabilities")),
        server_info=_object(result.get("serverInfo")),
        instructions=_text(result.get("instructions")),
    )


def _may_be_modern(exc: RpcError) -> bool:
    return eras.shows_modern(exc.code) or exc.code == METHOD_NOT_FOUND


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
