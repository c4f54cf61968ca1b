"""The servers behind a gateway, asked as if they were servers of a hub here.

What there is comes from `/admin`. A call goes to `/mcp` by a hub that has the gateway for its only server, so it keeps
every promise of a call; an error of the gateway becomes the error again that it was there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from toolway.addresses.policy import ANYWHERE
from toolway.catalog.index import Catalog, Tool
from toolway.catalog.resolve import check_server
from toolway.cli.exits import GatewayAdmin, GatewayError
from toolway.cli.gateways import Door
from toolway.config.spec import Server
from toolway.errors import (
    CallError,
    Certainty,
    Denied,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    ProtocolError,
    TimedOut,
    Unavailable,
)
from toolway.gateway import codes
from toolway.hub import Hub
from toolway.model import Json, OnProgress, Reply, ToolRef
from toolway.protocol import names
from toolway.upstream.status import Status

GATEWAY: Final = "gateway"
LOOK: Final = 0.2  # seconds between two looks at who is still starting
LONGEST: Final = 900.0  # seconds: no call is longer
MARGIN: Final = 5.0  # seconds more than the gateway has, so that its own word is heard


class Remote:
    def __init__(self, door: Door) -> None:
        self._door = door
        self._status: dict[str, Status] = {}
        self._catalog = Catalog()

    def status(self) -> dict[str, Status]:
        return self._status

    def tools(self, query: str | None = None, *, server: str | None = None) -> list[Tool]:
        return self._catalog.search(query, server) if query else self._catalog.tools(server)

    async def list_tools(self, *, server: str | None = None, timeout: float = 30.0) -> list[Tool]:
        """The tools, when each server (or the one named) has started or failed, or the time is over."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        await self._look()
        while self._starting(server) and loop.time() < end:
            await asyncio.sleep(LOOK)
            await self._look()
        await self._take_tools()
        return self.tools(server=server)

    def _starting(self, server: str | None) -> bool:
        return any(s.state == "starting" for s in self._status.values() if server in (None, s.server))

    async def _look(self) -> None:
        answer = await self._door.ask("GET", "servers")
        self._status = {facts["server"]: msgspec.convert(facts, Status) for facts in answer["servers"]}

    async def _take_tools(self) -> None:
        listed: dict[str, list[Json]] = {server: [] for server in self._status}
        for tool in (await self._door.ask("GET", "tools"))["tools"]:
            listed.setdefault(tool["server"], []).append(tool["raw"])
        for server, raws in listed.items():
            status = self._status.get(server)
            self._catalog.add_server(server)
            self._catalog.replace(server, "tools", raws, stale=status is not None and status.stale)

    # -- calls --------------------------------------------------------------------------------------------------------

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> Reply:
        ref = names.parse(name)
        if ref is None:
            raise NotFound(
                f"{name!r} names no tool", evidence="a tool is called server.tool", fix="see them all: toolway tools"
            )
        where = f"{self._door.url}/mcp"
        gateway = Server(url=where, headers=self._door.headers, era="modern", addresses=ANYWHERE)
        async with Hub({GATEWAY: gateway}, catalog_dir=None) as hub:
            try:
                reply = await hub.call_tool(
                    f"{GATEWAY}.{names.for_models(ref)}",
                    arguments,
                    timeout=timeout + MARGIN if timeout is not None else LONGEST,
                    retries=0,  # the gateway does that
                    on_progress=on_progress,
                    meta={codes.TIMEOUT_KEY: timeout * 1000} if timeout is not None else None,
                )
            except CallError as exc:
                await self._look_closer(exc)
                raise self._as_there(exc, ref, hub.tools()) from None
        return msgspec.structs.replace(reply, server=ref.server, name=ref.tool)

    async def _look_closer(self, error: CallError) -> None:
        """What is known of the server helps to explain the error; where it was the gateway itself that could not be
        reached, `GatewayError` tells why."""
        try:
            await self._look()
        except GatewayAdmin:
            pass  # whoever may not ask gets the error alone
        except GatewayError:
            if isinstance(error, Unavailable):
                raise

    def _as_there(self, error: CallError, ref: ToolRef, shown: list[Tool]) -> CallError:
        """The error that the gateway had."""
        if isinstance(error, NotFound):
            return self._missing(ref, shown)
        if not isinstance(error, ProtocolError) or error.rpc_code is None:
            return error
        data = error.data if isinstance(error.data, dict) else {}
        ours = data.get(codes.OURS)
        if isinstance(ours, dict):
            rest = {key: value for key, value in data.items() if key != codes.OURS}
            return _of_server(error, ref, ours, rest or None)
        return _of_gateway(error, ref, data) if "executed" in data else error

    def _missing(self, ref: ToolRef, shown: list[Tool]) -> CallError:
        """Why the gateway shows no such tool."""
        known = [seen for seen in (names.parse(tool.key) for tool in shown) if seen is not None]
        status = self._status.get(ref.server)
        try:
            check_server(self._status or dict.fromkeys(each.server for each in known), ref.server)
        except NotFound as exc:
            return exc
        if status is not None and status.state != "ready" and not status.tools:
            return Unavailable(
                f"{ref.server} is not available", server=ref.server, tool=ref.tool, evidence=status.why, fix=status.fix
            )
        close = get_close_matches(str(ref), [str(each) for each in known], n=3)
        fix = f"did you mean {' or '.join(close)}?" if close else f"see what it has: toolway tools -s {ref.server}"
        return NotFound(f"{ref.server} has no tool {ref.tool!r}", server=ref.server, tool=ref.tool, fix=fix)


_KINDS: Final[Mapping[int, type[CallError]]] = {
    codes.UNAVAILABLE: Unavailable,
    codes.SHUTTING_DOWN: Unavailable,
    codes.STORE_UNAVAILABLE: Unavailable,
    codes.DEADLINE: TimedOut,
    codes.OVERLOADED: Overloaded,
    codes.QUOTA: Overloaded,
    codes.THROTTLED: Overloaded,
    codes.OUTCOME_UNKNOWN: OutcomeUnknown,
    codes.KEY_MISMATCH: Denied,
    codes.DENIED: Denied,
    codes.UPSTREAM_AUTH: Denied,
    codes.UPSTREAM_PROTOCOL: ProtocolError,
}


def _of_gateway(error: ProtocolError, ref: ToolRef, facts: Json) -> CallError:
    """An error that the gateway made of one of ours."""
    assert error.rpc_code is not None
    code, fix = str(facts.get("code") or ""), str(facts.get("fix") or "")
    kind = TimedOut if code == TimedOut.code else _KINDS.get(error.rpc_code, CallError)
    what = error.evidence.removesuffix(f" [{code}]").removesuffix(f" → {fix}")
    return kind(what, fix=fix, code=code, retry_after=error.retry_after, **_known(ref, facts))


def _of_server(error: ProtocolError, ref: ToolRef, facts: Json, data: Any) -> CallError:
    """An error that the server itself answered with."""
    return ProtocolError(
        f"{ref.server} answered with error {error.rpc_code}",
        rpc_code=error.rpc_code,
        data=data,
        evidence=error.evidence,
        code=str(facts.get("code") or ""),
        **_known(ref, facts),
    )


def _known(ref: ToolRef, facts: Json) -> dict[str, Any]:
    certainty = Certainty.__members__.get(str(facts.get("certainty")))
    attempts = facts.get("attempts")
    return {
        "server": ref.server,
        "tool": ref.tool,
        "certainty": certainty,
        "attempts": attempts if isinstance(attempts, int) else 0,
    }
