"""Lists of servers that are called on behalf of people: each person sees what its own connection listed.

A server may list other tools to another person. The catalog has the definitions of all of them, and this module has the
names that each caller may see. A caller whose connection has not listed sees none.
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
    """Return True if a server is called on behalf of callers: the hub itself cannot list anything of it."""
    return server is not None and server.auth is not None and server.auth.is_on_behalf


def has_own_lists(server: Server | None) -> bool:
    """Return True if the lists of a server are those of each caller: it is called on the caller's behalf."""
    return server is not None and server.auth is not None and server.auth.is_on_behalf and not server.auth.shared_lists


class CallerLists:
    """Names that each caller's own connection has listed, and the definitions of all of them."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, ListKind], dict[str, frozenset[str]]] = {}
        self._items: dict[tuple[str, ListKind], dict[str, Any]] = {}

    def record(self, server: str, kind: ListKind, caller: str, items: Iterable[Any]) -> list[Any]:
        """Note the list of a caller. Return the definitions of all callers; the first one of a name is kept."""
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
        """Return the names that a caller may see; None if its connection has not listed."""
        return self._names.get((server, kind), {}).get(caller)

    def forget(self, server: str) -> None:
        """Forget all lists of a server, because its entry has changed."""
        for key in [key for key in self._names if key[0] == server]:
            del self._names[key]
            self._items.pop(key, None)


class OwnLists:
    """Items that one caller sees of servers that are called on its behalf. Views of its endpoints use it."""

    def __init__(
        self,
        caller: str,
        lists: CallerLists,
        servers: Mapping[str, Server],
        has_list: Callable[[str, ListKind], bool],
        has_token: Callable[[], bool],
        start: Callable[[str, str], Upstream],
    ) -> None:
        """Create the view of a caller. `has_list`: the catalog has a list. `has_token`: the caller is a person with a
        token that can be exchanged. `start(server, caller)` returns the caller's own upstream, started.
        """
        self._caller = caller
        self._lists = lists
        self._servers = servers
        self._has_list = has_list
        self._has_token = has_token
        self._start = start

    def shows(self, kind: ListKind, item: Item) -> bool:
        """Return True if the caller may see an item."""
        if not has_own_lists(self._servers.get(item.server)):
            return True
        names = self._lists.names(item.server, kind, self._caller)
        return names is not None and item.name in names

    def is_missing(self, server: str, kind: ListKind) -> bool:
        """Return True if the caller's own connection must list, and has not yet."""
        found = self._servers.get(server)
        if not is_on_behalf(found):
            return False
        if has_own_lists(found):
            return self._lists.names(server, kind, self._caller) is None and self._has_token()
        return not self._has_list(server, kind) and self._has_token()

    def lists(self, server: str) -> bool:
        """Return True if the lists of a server are those of callers: there is none to wait for elsewhere."""
        return is_on_behalf(self._servers.get(server))

    async def wait(self, servers: Iterable[str], kind: ListKind) -> None:
        """Start the caller's own connections that have not listed, and wait until they have, or have failed."""
        missing = [server for server in servers if self.is_missing(server, kind)]
        if missing:
            with suppress(TimeoutError):
                async with asyncio.timeout(OWN_LISTS_TIMEOUT_S):
                    await asyncio.gather(*(self._fetch(server, kind) for server in missing))

    async def error(self, server: str, kind: ListKind) -> CallError | None:
        """Return why the caller's own connection has not listed; None if it has, or if the server needs none."""
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
