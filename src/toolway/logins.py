"""Logins of people to servers, and what becomes of a server when one comes or goes."""

from __future__ import annotations

from contextlib import suppress

from toolway.around import Around
from toolway.catalog.resolve import check_server
from toolway.config.spec import Server
from toolway.errors import ToolwayError
from toolway.events import Access
from toolway.fleet import Fleet
from toolway.security.broker import Broker
from toolway.security.wallet import Login
from toolway.upstream.border import denied


class Logins:
    def __init__(self, fleet: Fleet, broker: Broker, around: Around) -> None:
        self._fleet = fleet
        self._broker = broker
        self._around = around

    async def begin(self, name: str, login: Login, caller: str, redirect_uri: str | None) -> None:
        """Let a person log in, whatever there is already. Raises `NotFound` and `Denied`."""
        with denied(name):
            server = await self._server(name)
            await self._broker.log_in(name, server, login, caller=caller, redirect_uri=redirect_uri)
        self._around.emit(Access(name, "login", who=caller))
        self.came(name, caller)

    async def end(self, name: str, caller: str) -> bool:
        """Forget a login; whether there was one. Raises `NotFound` and `Denied`."""
        with denied(name):
            had = await self._broker.log_out(name, await self._server(name), caller=caller)
        self._around.emit(Access(name, "logout", who=caller))
        self.came(name, caller)
        return had

    async def end_all(self, caller: str) -> None:
        for name in list(self._fleet.servers):
            with suppress(ToolwayError):  # nobody can log in to some
                await self.end(name, caller)

    async def _server(self, name: str) -> Server:
        check_server(self._fleet.servers, name)
        return await self._around.resolved(self._fleet.servers[name])

    def came(self, name: str, caller: str) -> None:
        """Whoever was refused without it begins again; whoever was not may see other tools now."""
        fleet = self._fleet
        if not fleet.open or name not in fleet.upstreams:
            return
        if caller:
            found = fleet.private.get(name, caller)
            if found is None and self._around.lacks_list(name, "tools"):
                found = fleet.private.of(name, fleet.servers[name], caller)
        else:
            found = fleet.upstreams[name]
        if found is None:
            return
        if found.agreement is not None:
            found.refresh("tools")
        elif caller:
            found.restart()
        else:
            fleet.restart(name)
