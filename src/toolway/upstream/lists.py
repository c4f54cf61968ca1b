"""The lists of one server: fetched when it is ready, and again when it says that they changed."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from mcp_types.jsonrpc import METHOD_NOT_FOUND

from toolway.events import Kind, Logged
from toolway.protocol.eras import LISTS
from toolway.upstream import listing
from toolway.upstream.flag import Flag
from toolway.upstream.link import Fault, RpcError
from toolway.upstream.session import Session
from toolway.upstream.surroundings import Surroundings

LIST_LIMIT: Final = 30.0  # for one list, all pages
LIST_PAUSE: Final = 1.0  # between two refreshes, however often a server says that its lists changed
RELISTEN: Final = (0.5, 30.0)  # first and longest wait before a lost subscription is opened again


class Lists:
    """`around` takes them; `most` is how many tools are taken."""

    __slots__ = ("_dirt", "_dirty", "_listed", "_most", "_server", "around")

    def __init__(self, server: str, most: int, around: Surroundings) -> None:
        self.around = around
        self._server = server
        self._most = most
        self._dirty: set[Kind] = set()
        self._dirt = Flag()
        self._listed = {kind: Flag() for kind in LISTS}

    def refresh(self, kind: Kind) -> None:
        """Fetch a list again soon."""
        self._dirty.add(kind)
        self._dirt.set()

    async def wait(self, kind: Kind) -> None:
        """Return when the server has answered with this list, or has none."""
        await self._listed[kind].wait()

    async def first(self, session: Session) -> None:
        """The tools, without which a server is not ready. Raises `Fault` or `RpcError`."""
        try:
            await self.fetch(session, "tools")
        except RpcError as exc:
            if exc.code != METHOD_NOT_FOUND:
                raise  # it has tools and does not tell which: perhaps the next start does
            self._take(session, "tools", [], [])

    async def fetch(self, session: Session, kind: Kind) -> None:
        """Fetch a list at once. Raises `Fault` or `RpcError`."""
        if not listing.offered(kind, session.agreed.capabilities):
            self._take(session, kind, [], [])
            return
        items, problems = await listing.fetch(session.request, kind, self._most)
        notes = session.link.facts().notes if kind == "tools" else ()
        self._take(session, kind, items, [*problems, *notes])

    def _take(self, session: Session, kind: Kind, items: list[Any], problems: list[str]) -> None:
        changed = self.around.on_list(self._server, kind, items, problems, session.agreed.era)
        self._listed[kind].set()
        if changed is not None:
            self.around.emit(changed)

    # -- while the server is ready ------------------------------------------------------------------------------------

    async def keep(self, session: Session) -> None:
        """Fetch the other lists, then whatever the server says has changed, not more often than once a second."""
        capabilities = session.agreed.capabilities
        self._dirty.update(kind for kind in LISTS if kind != "tools")
        while True:
            kinds, self._dirty = self._dirty, set()
            self._dirt.clear()
            for kind in [k for k in kinds if not listing.offered(k, capabilities)]:
                self._take(session, kind, [], [])
                kinds.discard(kind)
            await asyncio.gather(*(self._fetch_quietly(session, kind) for kind in kinds))
            if kinds:
                await asyncio.sleep(LIST_PAUSE)
            await self._dirt.wait()

    async def _fetch_quietly(self, session: Session, kind: Kind) -> None:
        try:
            async with asyncio.timeout(LIST_LIMIT):
                await self.fetch(session, kind)
        except (Fault, RpcError, TimeoutError) as exc:
            reason = str(exc) or f"no answer within {LIST_LIMIT:g} s"
            problem = f"{LISTS[kind][1]} failed: {reason}"
            if not self._listed[kind].is_set():
                self._take(session, kind, [], [problem])  # what was known before is kept
            self.around.emit(Logged(self._server, "warning", problem, "toolway"))

    async def keep_listening(self, session: Session) -> None:
        """Hold the stream open on which a server of the modern era tells of changes; others need none."""
        clock = asyncio.get_running_loop().time
        wait, longest = RELISTEN
        while True:
            began = clock()
            try:
                if not await session.listen():
                    return
            except Fault:
                pass
            if clock() - began > longest:
                wait = RELISTEN[0]
            await asyncio.sleep(wait * (0.5 + self.around.dice() / 2))
            wait = min(longest, wait * 2)
            for kind in LISTS:  # what happened in between was not told
                self.refresh(kind)
