"""Servers as the people who look after a gateway see them: how each is, why, and what can be done about it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace
from typing import Final

from toolway.errors import NotFound
from toolway.gateway import shown
from toolway.gateway.files import Files
from toolway.gateway.pulse import Pulse, summary
from toolway.gateway.watch import Watch
from toolway.hub import Hub
from toolway.model import Json

AT_ONCE: Final = 25  # servers that are looked at before others have their turn
_DONE: Final = {"trip": "opened", "reset": "closed"}


class ServerDesk:
    def __init__(self, hub: Hub, watch: Watch, files: Files | None) -> None:
        self._hub = hub
        self._watch = watch
        self._files = files

    async def overview(self) -> Json:
        """All servers in a line each; others have their turn meanwhile."""
        now = time.time()
        watch, breakers = self._watch, self._hub.breakers()
        open_tools = Counter(server for (server, tool), facts in breakers.items() if tool and facts.wait > 0)
        rows = []
        for count, (name, found) in enumerate(self._hub.status().items(), 1):
            if count % AT_ONCE == 0:
                await asyncio.sleep(0)
            server = self._hub.servers.get(name)
            if server is None:
                continue  # it was removed meanwhile
            row = shown.status(found, watch.masks.of(name))
            row["stderr"] = row["stderr"][-500:]
            row["pulse"] = summary([watch.pulses[name]] if name in watch.pulses else [], now)
            breaker = breakers.get((name, ""))
            row["breaker"] = breaker.position.value if breaker is not None else "closed"
            row["open_tools"] = open_tools[name]
            row["limit"] = server.limits.concurrent
            row["waiting"], row["retrying"], row["refused"] = self._hub.crowd(name)
            rows.append(row)
        return {
            "now": now,
            "servers": rows,
            "pulse": summary(watch.pulses.values(), now),
            "calls": watch.calls.count,
            "last_event": watch.events.last,
        }

    def detail(self, name: str) -> Json:
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
            "breakers": [each for each in self.breakers() if each["server"] == name],
            "events": self._watch.happenings(lambda event: event["server"] == name, 100),
            "crowd": dict(zip(("waiting", "retrying", "refused"), self._hub.crowd(name), strict=True)),
        }

    async def switch(self, name: str, wish: str) -> Json:
        """Let a server take part or not, until the file is read again."""
        server = self._hub.servers.get(name)
        if server is None:
            raise NotFound(f"there is no server {name!r}", server=name)
        self._watch.note("change", name, f"{wish}d by a person, until the file is read again")
        await self._hub.replace(name, replace(server, enabled=wish == "enable"))
        return {wish + "d": name}

    def breakers(self) -> list[Json]:
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

    def move_breaker(self, server: str, tool: str, wish: str) -> Json:
        (self._hub.trip if wish == "trip" else self._hub.reset)(server, tool)
        name = f"{server}.{tool}" if tool else server
        self._watch.note("change", server, f"the breaker of {name} was {_DONE[wish]} by a person")
        return {_DONE[wish]: name}
