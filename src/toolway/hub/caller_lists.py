"""Per-user lists for servers called on behalf of users: each user sees their own connection's lists.

The hub calls such a server with a token that it got in exchange for the user's token, so the server may send each
user a different list of tools. The catalog holds all definitions; this module tracks which names each caller may see.
A caller sees none until their own connection has received the list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from toolway.auth.token_exchange import no_subject_error
from toolway.catalog.catalog import Item
from toolway.config.schema import Server
from toolway.errors import CallError
from toolway.events import ListKind
from toolway.upstream.error_mapping import raising_access_denied

if TYPE_CHECKING:
    from toolway.upstream.upstream import Upstream

MAX_CALLERS: Final = 2_000  # per server and kind; the lists of the one that listed first are forgotten
OWN_LISTS_TIMEOUT_S: Final = 30.0  # that a request waits for the lists of the caller's own connections
NAME_FIELDS: Final[Mapping[ListKind, str]] = {
    "tools": "name",
    "prompts": "name",
    "resources": "uri",
    "templates": "uriTemplate",
}


def is_on_behalf(server: Server | None) -> bool:
    """Return True if the hub only calls this server with tokens exchanged for its callers' tokens.

    Without a caller, the hub cannot fetch the lists of such a server.
    """
    return server is not None and server.auth is not None and server.auth.is_on_behalf


def has_own_lists(server: Server | None) -> bool:
    """Return True if each caller gets its own lists from this server, which is called on its behalf."""
    return server is not None and server.auth is not None and server.auth.is_on_behalf and not server.auth.shared_lists


class CallerLists:
    """Tools, prompts and resources that servers list for individual callers, on their own connections."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, ListKind], dict[str, frozenset[str]]] = {}
        self._items: dict[tuple[str, ListKind], dict[str, Any]] = {}

    def record(self, server: str, kind: ListKind, caller: str, items: Iterable[Any]) -> list[Any]:
        """Store the list that a caller's connection received, and return the definitions from all callers' lists.

        If callers received different definitions under one name, the first one is kept.
        """
        key, field = (server, kind), NAME_FIELDS[kind]
        found = {item[field]: item for item in items if isinstance(item, dict) and isinstance(item.get(field), str)}
        names = self._names.setdefault(key, {})
        names.pop(caller, None)
        if len(names) >= MAX_CALLERS:
            del names[next(iter(names))]
        names[caller] = frozenset(found)
        used = frozenset(name for each in names.values() for name in each)
        known = {name: item for name, item in self._items.get(key, {}).items() if name in used}
        self._items[key] = {**found, **known}
        return list(self._items[key].values())

    def names(self, server: str, kind: ListKind, caller: str) -> frozenset[str] | None:
        """Return the names of the tools, prompts, and so on that a server listed for a caller.

        Return None if the caller has not received that list yet.
        """
        return self._names.get((server, kind), {}).get(caller)

    def forget(self, server: str) -> None:
        """Delete all callers' stored lists for a server, because its definition changed."""
        for key in [key for key in self._names if key[0] == server]:
            del self._names[key]
            self._items.pop(key, None)


class OwnLists:
    """Filters what one caller's endpoints show of servers that are called on the caller's behalf."""

    def __init__(
        self,
        caller: str,
        lists: CallerLists,
        servers: Mapping[str, Server],
        has_list: Callable[[str, ListKind], bool],
        has_token: Callable[[], bool],
        start: Callable[[str, str], Upstream],
    ) -> None:
        """Create the filter for one caller.

        `has_list` returns True if the catalog has a server's list. `has_token` returns True if the caller is a user
        whose token can be exchanged. `start(server, caller)` starts the caller's own upstream and returns it.
        """
        self._caller = caller
        self._lists = lists
        self._servers = servers
        self._has_list = has_list
        self._has_token = has_token
        self._start = start

    def shows(self, kind: ListKind, item: Item) -> bool:
        """Return True if the caller may see this tool, prompt, resource or template."""
        if not has_own_lists(self._servers.get(item.server)):
            return True
        names = self._lists.names(item.server, kind, self._caller)
        return names is not None and item.name in names

    def is_missing(self, server: str, kind: ListKind) -> bool:
        """Return True if the caller's own connection still has to fetch a server's list."""
        found = self._servers.get(server)
        if not is_on_behalf(found):
            return False
        if has_own_lists(found):
            return self._lists.names(server, kind, self._caller) is None and self._has_token()
        return not self._has_list(server, kind) and self._has_token()

    def lists(self, server: str) -> bool:
        """Return True if this server's lists can only be fetched over the callers' own connections."""
        return is_on_behalf(self._servers.get(server))

    async def wait(self, servers: Iterable[str], kind: ListKind) -> None:
        """Fetch missing lists of these servers over the caller's own connections, starting them first.

        Wait until each connection has fetched its list or failed, or time runs out.
        """
        missing = [server for server in servers if self.is_missing(server, kind)]
        if missing:
            with suppress(TimeoutError):
                async with asyncio.timeout(OWN_LISTS_TIMEOUT_S):
                    await asyncio.gather(*(self._fetch(server, kind) for server in missing))

    async def error(self, server: str, kind: ListKind) -> CallError | None:
        """Fetch a server's list over the caller's own connection if it is missing, and return why that failed.

        Return None if the list was fetched, if it did not arrive in time, or if the server is not called on behalf of
        callers.
        """
        found = self._servers.get(server)
        if not is_on_behalf(found) or self._lists.names(server, kind, self._caller) is not None:
            return None
        try:
            if not self._has_token():
                with raising_access_denied(server):
                    raise no_subject_error(server, self._caller)
            async with asyncio.timeout(OWN_LISTS_TIMEOUT_S):
                await self._start(server, self._caller).wait_list_fetched(kind)
        except CallError as exc:
            return exc
        except TimeoutError:
            return None
        return None

    async def _fetch(self, server: str, kind: ListKind) -> None:
        with suppress(CallError):  # a call says why
            await self._start(server, self._caller).wait_list_fetched(kind)
