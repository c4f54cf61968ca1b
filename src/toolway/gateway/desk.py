"""What `/admin` tells the people who look after a gateway, beyond its lists: how all is, what happened, why, and what
can be done about it. The dashboard and the command line show the same.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote

from msgspec.structs import asdict

from toolway.errors import ConfigError, NotFound
from toolway.events import CallFinished
from toolway.gateway import shown
from toolway.gateway.answers import Stream
from toolway.gateway.browser import Browsers
from toolway.gateway.call_filter import wanted
from toolway.gateway.files import Files
from toolway.gateway.http.exchange import Exchange
from toolway.gateway.principals import Keyring, Principal
from toolway.gateway.pulse import Pulse, summary
from toolway.gateway.selection import Selection
from toolway.gateway.watch import Watch
from toolway.hub import Hub
from toolway.model import Call, Json
from toolway.protocol import wire

TICK: Final = 0.25  # seconds between two looks for what a follower has not heard
MAX_FOLLOWERS: Final = 64
MOST: Final = 500  # calls or events in one answer
ALL: Final = 10_000  # more than is ever kept
AT_ONCE: Final = 200  # tools or calls that are looked at before others have their turn
Doctor = Callable[[str | None], Awaitable[Json]]


class Desk:
    """`doctor` examines servers, or one; `files` is the way to earlier configurations; either may be missing."""

    def __init__(
        self,
        hub: Hub,
        watch: Watch,
        keyring: Keyring | None,
        browsers: Browsers,
        groups: Callable[[], Mapping[str, Selection]],
        files: Files | None,
        doctor: Doctor | None,
    ) -> None:
        self._hub = hub
        self._watch = watch
        self._keyring = keyring
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
                return self._overview()
            case "GET", ["servers", name, "detail"]:
                return self._detail(name)
            case "POST", ["servers", name, "enable" | "disable" as wish]:
                return await self._switch(name, wish)
            case "GET", ["calls"]:
                return self._calls(query)
            case "GET", ["calls", id_]:
                return self._call(id_)
            case "POST", ["calls", id_, "replay"]:
                return await self._replay(id_, body, who)
            case "POST", ["call"]:
                return await self._make_call(body, who)
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
                return {"breakers": self._breakers()}
            case "POST", ["breakers", server, "trip" | "reset" as wish]:
                return self._break(server, "", wish)
            case "POST", ["breakers", server, tool, "trip" | "reset" as wish]:
                return self._break(server, unquote(tool), wish)
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

    # -- servers ------------------------------------------------------------------------------------------------------

    def _overview(self) -> Json:
        now = time.time()
        watch, breakers = self._watch, self._hub.breakers()
        rows = []
        for name, found in self._hub.status().items():
            row = shown.status(found, watch.masks.of(name))
            row["stderr"] = row["stderr"][-500:]
            row["pulse"] = summary([watch.pulses[name]] if name in watch.pulses else [], now)
            breaker = breakers.get((name, ""))
            row["breaker"] = breaker.position.value if breaker is not None else "closed"
            row["open_tools"] = sum(key[0] == name and key[1] != "" and f.wait > 0 for key, f in breakers.items())
            row["limit"] = self._hub.servers[name].limits.concurrent
            row["waiting"], row["retrying"], row["refused"] = self._hub.crowd(name)
            rows.append(row)
        return {
            "now": now,
            "servers": rows,
            "pulse": summary(watch.pulses.values(), now),
            "calls": watch.calls.count,
            "last_event": watch.events.last,
        }

    def _detail(self, name: str) -> Json:
        found = self._hub.status().get(name)
        if found is None:
            raise NotFound(f"there is no server {name!r}", server=name)
        now = time.time()
        pulses: list[Pulse] = [self._watch.pulses[name]] if name in self._watch.pulses else []
        return {
            "now": now,
            "status": shown.status(found, self._watch.masks.of(name)),
            "timeline": list(self._watch.lives.get(name, ())),
            "pulse": summary(pulses, now),
            "definition": shown.definition(self._hub.servers[name]),
            "origins": self._files.origins(name) if self._files is not None else [],
            "breakers": [each for each in self._breakers() if each["server"] == name],
            "events": self._event_list(lambda event: event["server"] == name, 100),
            "crowd": dict(zip(("waiting", "retrying", "refused"), self._hub.crowd(name), strict=True)),
        }

    async def _switch(self, name: str, wish: str) -> Json:
        """Let a server take part or not, until the file is read again."""
        server = self._hub.servers.get(name)
        if server is None:
            raise NotFound(f"there is no server {name!r}", server=name)
        self._watch.note("change", name, f"{wish}d by a person, until the file is read again")
        await self._hub.replace(name, replace(server, enabled=wish == "enable"))
        return {wish + "d": name}

    def _breakers(self) -> list[Json]:
        return [
            {
                "server": server,
                "tool": tool,
                "position": facts.position.value,
                "wait": facts.wait,
                "in_a_row": facts.in_a_row,
                "ended": facts.ended,
                "failures": facts.failures,
                "openings": facts.openings,
            }
            for (server, tool), facts in self._hub.breakers().items()
        ]

    def _break(self, server: str, tool: str, wish: str) -> Json:
        (self._hub.trip if wish == "trip" else self._hub.reset)(server, tool)
        name = f"{server}.{tool}" if tool else server
        self._watch.note("change", server, f"the breaker of {name} was {_DONE[wish]} by a person")
        return {_DONE[wish]: name}

    # -- calls --------------------------------------------------------------------------------------------------------

    def _names(self) -> dict[str, str]:
        keys = self._keyring.all() if self._keyring is not None else ()
        return {key.principal().caller: key.name for key in keys}

    def _calls(self, query: str) -> Json:
        """Newest first, those that the query wants."""
        fields = _fields(query)
        fits, names = wanted(fields, self._names()), self._names()
        most = min(MOST, _number(fields.get("limit", "100")))
        found = islice(filter(fits, self._watch.calls.newest(limit=ALL)), most)
        rows = [shown.call(fact, self._watch.masks.of(fact.server), names) for fact in found]
        return {"calls": rows, "count": self._watch.calls.count}

    def _find(self, id_: str) -> CallFinished:
        fact = self._watch.calls.find(id_)
        if fact is None:
            raise NotFound(f"there is no call {id_!r} any more", fix="see those that are remembered: toolway calls")
        return fact

    def _call(self, id_: str) -> Json:
        fact = self._find(id_)
        return shown.call_whole(fact, self._watch.masks.of(fact.server), self._names())

    async def _replay(self, id_: str, body: Json, who: Principal) -> Json:
        """Make a call once more, with the same arguments. One that may change something wants to be confirmed."""
        fact = self._find(id_)
        if fact.method != "tools/call" or not isinstance(fact.params, dict):
            raise ConfigError("this call cannot be made again", evidence="its arguments are not remembered")
        if fact.effect == "unsafe" and body.get("confirm") is not True:
            raise ConfigError(
                f"{fact.server}.{fact.tool} may change something each time it is called",
                evidence="neither its settings nor its hints say that it may run again",
                fix="confirm that you mean it: toolway replay --yes",
                code="E-REPLAY",
            )
        return await self._ask(fact.server, fact.tool, fact.params.get("arguments") or {}, None, who)

    async def _make_call(self, body: Json, who: Principal) -> Json:
        server, tool, arguments = body.get("server"), body.get("tool"), body.get("arguments", {})
        timeout = body.get("timeout")
        if not isinstance(server, str) or not isinstance(tool, str) or not isinstance(arguments, dict):
            raise ValueError("server and tool must be names, and arguments an object")
        if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout <= 900):
            raise ValueError("timeout must be seconds, at most 900")
        return await self._ask(server, tool, arguments, timeout, who)

    async def _ask(self, server: str, tool: str, arguments: Json, timeout: float | None, who: Principal) -> Json:
        name, id_ = f"{server}.{tool}", secrets.token_hex(8)
        params: Json = {"name": tool, "arguments": arguments}
        reply = await self._hub.request(Call(name, "tools/call", params, timeout=timeout, caller=who.caller, id=id_))
        return {"id": id_, "result": reply.raw, "seconds": reply.seconds, "attempts": reply.attempts}

    # -- what happens -------------------------------------------------------------------------------------------------

    def _event_list(self, fits: Callable[[Json], bool], most: int) -> list[Json]:
        found: list[Json] = []
        for number, event in self._watch.events.newest_first():
            if fits(event):
                found.append({"n": number, **event})
                if len(found) >= most:
                    break
        return found

    def _events(self, query: str) -> Json:
        fields = _fields(query)
        server, kind = fields.get("server"), fields.get("kind")
        most = min(MOST, _number(fields.get("limit", "200")))
        return {
            "events": self._event_list(lambda e: server in (None, e["server"]) and kind in (None, e["kind"]), most),
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
                    new, names = watch.calls.newest(limit=min(missing, AT_ONCE)), self._names()
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
                return self._files.diff(_number(number))
            case "POST", ["rollback", number]:
                done = await self._files.roll_back(_number(number))
                self._watch.note("change", "", f"the configuration went back to version {number}")
                return done
        return None


_DONE: Final = {"trip": "opened", "reset": "closed"}


def _event(name: str, data: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), wire.encode(data))


def _fields(query: str) -> dict[str, str]:
    return {key: values[-1] for key, values in parse_qs(query, max_num_fields=50).items()}


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise ValueError(f"{text[:20]!r} is no number")
    return int(text)
