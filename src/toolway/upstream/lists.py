"""Fetches one server's lists when it is ready, and again when it reports a change.

The pages of a list are fetched within limits, so an endless list cannot block the upstream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from toolway._async import LightEvent
from toolway.events import ListKind, ServerLog
from toolway.protocol.constants import METHOD_NOT_FOUND
from toolway.protocol.versions import LIST_METHODS
from toolway.secrets.replacer import cut_text
from toolway.types import Json
from toolway.upstream.context import UpstreamContext
from toolway.upstream.session import Session
from toolway.upstream.transport import JSONRPCError, TransportError

LIST_TIMEOUT_S: Final = 30.0  # for all pages of one list
LIST_REFRESH_INTERVAL_S: Final = 1.0  # between two refreshes, even if the server reports changes more often
STREAM_BACKOFF_S: Final = (0.5, 30.0)  # first and longest delay before a lost change stream is opened again


class ListSync:
    """Fetches the lists of one server (tools, prompts, resources, templates) for `context`.

    At most `max_tools` tools are kept.
    """

    __slots__ = ("_dirty", "_dirty_event", "_fetched", "_max_tools", "_server", "context")

    def __init__(self, server: str, max_tools: int, context: UpstreamContext) -> None:
        self.context = context
        self._server = server
        self._max_tools = max_tools
        self._dirty: set[ListKind] = set()
        self._dirty_event = LightEvent()
        self._fetched = {kind: LightEvent() for kind in LIST_METHODS}

    def refresh(self, kind: ListKind) -> None:
        """Mark a list of the server (such as its tools) as changed; it is fetched again soon."""
        self._dirty.add(kind)
        self._dirty_event.set()

    async def wait_fetched(self, kind: ListKind) -> None:
        """Wait, with no time limit, until this list has been fetched or is known to be missing."""
        await self._fetched[kind].wait()

    async def fetch_tools(self, session: Session) -> None:
        """Fetch the tools, without which a server is not ready.

        A server that lacks the method has no tools. Raises `TransportError` or `JSONRPCError` if the fetch fails for
        another reason.
        """
        try:
            await self.fetch(session, "tools")
        except JSONRPCError as exc:
            if exc.code != METHOD_NOT_FOUND:
                raise  # it declares tools but cannot list them: the next start may succeed
            self._publish(session, "tools", [], [])

    async def fetch(self, session: Session, kind: ListKind) -> None:
        """Fetch one of the server's lists now. It is empty if the server does not offer it.

        Raises `TransportError` or `JSONRPCError` if a request for a page fails.
        """
        if not is_list_offered(kind, session.protocol.capabilities):
            self._publish(session, kind, [], [])
            return
        items, problems = await fetch_all_pages(session.request, kind, self._max_tools)
        notes = session.transport.info().notes if kind == "tools" else ()
        self._publish(session, kind, items, [*problems, *notes])

    def _publish(self, session: Session, kind: ListKind, items: list[Any], problems: list[str]) -> None:
        changed = self.context.update_list(self._server, kind, items, problems, session.protocol.era)
        self._fetched[kind].set()
        if changed is not None:
            self.context.emit(changed)

    # -- while the server is ready ------------------------------------------------------------------------------------

    async def run_refresh(self, session: Session) -> None:
        """Fetch prompts, resources and templates, then each list that changes, at most once a second.

        Runs until it is cancelled.
        """
        capabilities = session.protocol.capabilities
        self._dirty.update(kind for kind in LIST_METHODS if kind != "tools")
        while True:
            kinds, self._dirty = self._dirty, set()
            self._dirty_event.clear()
            for kind in [k for k in kinds if not is_list_offered(k, capabilities)]:
                self._publish(session, kind, [], [])
                kinds.discard(kind)
            await asyncio.gather(*(self._fetch_logged(session, kind) for kind in kinds))
            if kinds:
                await asyncio.sleep(LIST_REFRESH_INTERVAL_S)
            await self._dirty_event.wait()

    async def _fetch_logged(self, session: Session, kind: ListKind) -> None:
        """Fetch a list; report failures as server log events instead of raising."""
        try:
            async with asyncio.timeout(LIST_TIMEOUT_S):
                await self.fetch(session, kind)
        except (TransportError, JSONRPCError, TimeoutError) as exc:
            reason = str(exc) or f"no response within {LIST_TIMEOUT_S:g} s"
            problem = f"{LIST_METHODS[kind][1]} failed: {reason}"
            if not self._fetched[kind].is_set():
                self._publish(session, kind, [], [problem])  # items known from earlier are kept
            self.context.emit(ServerLog(self._server, "warning", problem, "toolway"))

    async def run_change_stream(self, session: Session) -> None:
        """Keep a modern server's stream of list changes open, and reopen it after a loss.

        Returns at once if the server offers no such stream.
        """
        clock = asyncio.get_running_loop().time
        wait, max_wait = STREAM_BACKOFF_S
        while True:
            began = clock()
            try:
                if not await session.listen_for_list_changes():
                    return
            except TransportError:
                pass
            if clock() - began > max_wait:
                wait = STREAM_BACKOFF_S[0]
            await asyncio.sleep(wait * (0.5 + self.context.random() / 2))
            wait = min(max_wait, wait * 2)
            for kind in LIST_METHODS:  # changes in between were not reported
                self.refresh(kind)


# -- pages ------------------------------------------------------------------------------------------------------------

MAX_PAGES: Final = 100
MAX_ITEMS: Final[Mapping[ListKind, int]] = {"tools": 1000, "prompts": 1000, "resources": 10_000, "templates": 10_000}

SendRequest = Callable[[str, Json], Awaitable[Json]]


async def fetch_all_pages(
    send_request: SendRequest, kind: ListKind, max_tools: int = MAX_ITEMS["tools"]
) -> tuple[list[Any], list[str]]:
    """Fetch all pages of a list. Return the items, and problems such as an exceeded limit.

    `max_tools` limits the number of tools.
    """
    limit = max_tools if kind == "tools" else MAX_ITEMS[kind]
    _, method, key = LIST_METHODS[kind]
    items: list[Any] = []
    cursors: set[str] = set()
    params: Json = {}
    for _ in range(MAX_PAGES):
        page = await send_request(method, params)
        found = page.get(key)
        if not isinstance(found, list):
            return items, [f"{method} answered without `{key}`"]
        items.extend(found)
        if len(items) > limit:
            more = "; raise `limits.maxTools` to get more" if kind == "tools" else ""
            return items[:limit], [f"{method} has more than {limit} items; the rest is left out{more}"]
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str):
            return items, []
        if cursor in cursors:
            return items, [f"{method} repeats the cursor {cut_text(cursor, 40)!r}; the pages after it are left out"]
        cursors.add(cursor)
        params = {"cursor": cursor}
    return items, [f"{method} has more than {MAX_PAGES} pages; the rest is left out"]


def is_list_offered(kind: ListKind, capabilities: Json) -> bool:
    """Return True if a server with these capabilities offers this list."""
    return isinstance(capabilities.get(LIST_METHODS[kind][0]), dict)
