"""What `/admin` tells the people who look after a gateway, beyond its lists: how all is, what happened, why, and what
can be done about it. The dashboard and the command line show the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

from msgspec.structs import asdict

from toolway.errors import ConfigError, NotFound
from toolway.gateway import shown
from toolway.gateway.answers import Stream
from toolway.gateway.browser import Browsers
from toolway.gateway.call_desk import CallDesk, fields_of, number_of
from toolway.gateway.files import Files
from toolway.gateway.http.exchange import Exchange
from toolway.gateway.principals import KnownKeys, Principal
from toolway.gateway.selection import Selection
from toolway.gateway.server_desk import ServerDesk
from toolway.gateway.watch import Watch
from toolway.hub import Hub
from toolway.model import Json
from toolway.protocol import wire

TICK: Final = 0.25  # seconds between two looks for what a follower has not heard
MAX_FOLLOWERS: Final = 64
MOST: Final = 500  # events in one answer
AT_ONCE: Final = 200  # tools or calls that are looked at before others have their turn
Doctor = Callable[[str | None], Awaitable[Json]]


class Desk:
    """`doctor` examines servers, or one; `files` is the way to earlier configurations; either may be missing."""

    def __init__(
        self,
        hub: Hub,
        watch: Watch,
        keyring: KnownKeys | None,
        browsers: Browsers,
        groups: Callable[[], Mapping[str, Selection]],
        files: Files | None,
        doctor: Doctor | None,
    ) -> None:
        self._hub = hub
        self._watch = watch
        self._servers = ServerDesk(hub, watch, files)
        self._calls = CallDesk(hub, watch, keyring)
        self._browsers = browsers
        self._groups = groups
        self._files = files
        self._doctor = doctor
        self._followers: set[Stream] = set()
        self._examining = asyncio.Lock()
        self._sizes: dict[tuple[str, str], tuple[Any, Json]] = {}  # what a tool looks like, while it is the same

    async def answer(self, method: str, parts: list[str], body: Json, query: str, who: Principal) -> Json | None:
        """None where there is no such thing. Raises `CallError`, `ConfigError` and `ValueError`."""
        match method, parts:
            case "GET", ["overview"]:
                return await self._servers.overview()
            case "GET", ["servers", name, "detail"]:
                return self._servers.detail(name)
            case "POST", ["servers", name, "enable" | "disable" as wish]:
                return await self._servers.switch(name, wish)
            case "GET", ["calls"]:
                return self._calls.newest(query)
            case "GET", ["calls", id_]:
                return self._calls.whole(id_)
            case "POST", ["calls", id_, "replay"]:
                return await self._calls.replay(id_, body, who)
            case "POST", ["call"]:
                return await self._calls.make(body, who)
            case "GET", ["events"]:
                return self._events(query)
            case "GET", ["matters"]:
                return {"matters": [{"name": name, **asdict(each)} for name, each in self._watch.matters.items()]}
            case "DELETE", ["matters", name]:
                return self._settle(unquote(name))
            case "GET", ["catalog"]:
                return await self._catalog()
            case "GET", ["tools", server, tool]:
                return self._tool(server, unquote(tool))
            case "GET", ["breakers"]:
                return {"breakers": self._servers.breakers()}
            case "POST", ["breakers", server, "trip" | "reset" as wish]:
                return self._servers.move_breaker(server, "", wish)
            case "POST", ["breakers", server, tool, "trip" | "reset" as wish]:
                return self._servers.move_breaker(server, unquote(tool), wish)
            case "GET", ["groups"]:
                return self._endpoints()
            case "POST", ["links"]:
                return {"path": self.link(who)}
            case "POST", ["doctor"]:
                return await self._examine(body)
            case _, ["config", *rest]:
                return await self._config(method, rest)
        return None

    def link(self, who: Principal) -> str:
        """What opens the dashboard for somebody, once."""
        return f"/dashboard/#code={self._browsers.code(who)}"

    # -- what happens -------------------------------------------------------------------------------------------------

    def _events(self, query: str) -> Json:
        fields = fields_of(query)
        server, kind = fields.get("server"), fields.get("kind")
        most = min(MOST, number_of(fields.get("limit", "200")))
        return {
            "events": self._watch.happenings(
                lambda e: server in (None, e["server"]) and kind in (None, e["kind"]), most
            ),
            "last": self._watch.events.last,
        }

    def _settle(self, name: str) -> Json:
        """A person has seen to it."""
        found = self._watch.matters.pop(name, None)
        if found is None:
            raise NotFound(f"there is no matter {name!r}")
        self._watch.note("change", found.server, f"settled by a person: {found.what}")
        return {"settled": name}

    async def follow(self, exchange: Exchange) -> None:
        """`GET /admin/events` as a stream: calls and events as they happen, until the client leaves."""
        if len(self._followers) >= MAX_FOLLOWERS:
            raise ConfigError("too many follow already", evidence=f"{len(self._followers)} streams are open")
        stream = Stream(exchange)
        stream.watch()
        watch = self._watch
        calls, events = watch.calls.count, watch.events.last
        stream.write(_event("hello", {"now": time.time(), "calls": calls, "last_event": events}))
        self._followers.add(stream)
        try:
            while not stream.over.is_set():
                await asyncio.sleep(TICK)
                if watch.calls.count != calls:
                    missing, calls = watch.calls.count - calls, watch.calls.count
                    new, names = watch.calls.newest(limit=min(missing, AT_ONCE)), self._calls.names()
                    rows = [shown.call(fact, watch.masks.of(fact.server), names) for fact in reversed(new)]
                    stream.write(_event("calls", {"calls": rows, "passed_over": missing - len(rows)}))
                if watch.events.last != events:
                    rows = [{"n": n, **event} for n, event in watch.events.after(events)]
                    stream.write(_event("events", {"events": rows}))
                    events = watch.events.last
        finally:
            self._followers.discard(stream)
            stream.close()

    def close_streams(self) -> None:
        """The gateway ends: whoever follows would hold it up."""
        for stream in self._followers:
            stream.close()

    # -- tools --------------------------------------------------------------------------------------------------------

    async def _catalog(self) -> Json:
        """Every tool in one line. Their sizes are found out a few at a time: others wait meanwhile."""
        rows, known = [], self._sizes
        self._sizes = {}
        for count, tool in enumerate(self._hub.tools()):
            key = (tool.server, tool.key)
            before = known.get(key)
            if before is None or before[0] is not tool:
                before = (tool, shown.tool(tool))
            self._sizes[key] = before
            rows.append(before[1])
            if count % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
        return {"tools": rows}

    def _tool(self, server: str, name: str) -> Json:
        for tool in self._hub.tools(server=server):
            if tool.key == name:
                return {**shown.tool(tool), "description": tool.description or "", "raw": tool.raw}
        raise NotFound(f"there is no tool {server}.{name}", server=server)

    def _endpoints(self) -> Json:
        """Where clients connect: everything, each group, each server."""
        tools = [(f"{tool.server}.{tool.key}", tool) for tool in self._hub.tools()]
        groups = []
        for name, selection in self._groups().items():
            chosen = [tool for full, tool in tools if full in selection]
            groups.append(
                {
                    "name": name,
                    "path": f"/mcp/{quote(name)}",
                    "patterns": list(selection.patterns),
                    "tools": len(chosen),
                    "size": sum(shown.tool(tool)["size"] for tool in chosen),
                    "servers": sorted({tool.server for tool in chosen}),
                }
            )
        return {"all": {"path": "/mcp", "tools": len(tools)}, "groups": groups, "servers": list(self._hub.servers)}

    # -- care ---------------------------------------------------------------------------------------------------------

    async def _examine(self, body: Json) -> Json:
        name = body.get("server")
        if self._doctor is None:
            raise ConfigError("this gateway has no doctor", fix="run it in a terminal: toolway doctor")
        if name is not None and name not in self._hub.servers:
            raise NotFound(f"there is no server {name!r}", server=str(name))
        async with self._examining:  # it starts servers of its own
            return await self._doctor(name)

    async def _config(self, method: str, rest: list[str]) -> Json | None:
        if self._files is None:
            raise ConfigError("this gateway has no file of servers", evidence="its servers were given to it otherwise")
        match method, rest:
            case "GET", []:
                return self._files.shown()
            case "GET", ["diff", number]:
                return self._files.diff(number_of(number))
            case "POST", ["rollback", number]:
                done = await self._files.roll_back(number_of(number))
                self._watch.note("change", "", f"the configuration went back to version {number}")
                return done
        return None


def _event(name: str, data: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), wire.encode(data))
