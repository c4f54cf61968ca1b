"""A view's tools under unique names, built in slices to keep the event loop responsive.

Naming 50,000 tools takes a while, so `ToolNaming.build` is a generator that yields after each slice of work (see
`_async.run_in_slices`). Names stay valid until their server's list changes, so a later build only names the tools of
changed servers.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from toolway.catalog.catalog import Catalog, Item

SLICE_TOOLS: Final = 50  # tools that are named in one slice
SLICE_MERGED: Final = 500  # named tools that are put into the list in one slice
SLICE_SERVERS: Final = 250  # servers in one slice, if nothing of them changed

Includes: TypeAlias = Callable[[Item], bool]
NameTool: TypeAlias = Callable[[Item, Container[str]], str]  # the tool, names that are taken


class ToolListing(NamedTuple):
    """Immutable list of the tools that an endpoint view includes, with the names that clients see."""

    items: dict[str, Item]  # by the name that clients see
    listed: list[str]  # names that a list shows: with search, not all
    names: dict[tuple[str, str], str]  # (server, tool) → the name that clients see


class _ServerTools(NamedTuple):
    """One server's tools with the names that clients see, kept until the server's list changes."""

    source: Mapping[str, Item]  # the list of the server in the catalog, which is replaced if it changes
    names: Sequence[str]
    items: Sequence[Item]
    listed: Sequence[str]


class ToolNaming:
    """Assigns unique names to the tools of an endpoint view.

    Args:
        catalog: The catalog of all tools.
        reserved: Names that no tool may have.
        includes: Returns True if the view includes a tool.
        name_tool: Returns a name for clients to see that no other tool has.
        lists: Returns True if a list shows a tool.
    """

    def __init__(
        self, catalog: Catalog, reserved: Iterable[str], includes: Includes, name_tool: NameTool, lists: Includes
    ) -> None:
        self._catalog = catalog
        self._reserved = frozenset(reserved)
        self._includes = includes
        self._name_tool = name_tool
        self._lists = lists
        self._servers: dict[str, _ServerTools] = {}

    def has_large_changes(self, servers: Iterable[str]) -> bool:
        """Return True if so many tools have changed that `build` should run in slices instead of at once."""
        known, total = self._servers, 0.0
        for server in servers:
            source = self._catalog.tools_of(server)
            old = known.get(server)
            total += (
                len(source) if old is None or old.source is not source else len(source) * SLICE_TOOLS / SLICE_MERGED
            )
            if total > SLICE_TOOLS:
                return True
        return False

    def build(self, servers: Sequence[str]) -> Generator[None, None, ToolListing]:
        """Build the list of these servers' tools, in this order, with the names that clients see.

        This generator yields after each slice of work, and returns the list when it is done.
        """
        named: dict[str, _ServerTools] = {}
        done = 0.0  # part of a slice
        for server in servers:
            source, old = self._catalog.tools_of(server), self._servers.get(server)
            if old is not None and old.source is source:
                named[server] = old
            else:
                named[server] = self._servers[server] = yield from self._name_server(source, self._reserved)
                done += len(source) % SLICE_TOOLS / SLICE_TOOLS
            done += 1 / SLICE_SERVERS
            if done >= 1:
                done = 0
                yield
        self._servers = named
        return (yield from self._merge(named.values()))

    def _name_server(self, source: Mapping[str, Item], taken: Container[str]) -> Generator[None, None, _ServerTools]:
        names: dict[str, Item] = {}
        listed = []
        for place, item in enumerate(tuple(source.values()), 1):
            if self._includes(item):
                name = self._name_tool(item, _Either(taken, names))
                names[name] = item
                if self._lists(item):
                    listed.append(name)
            if place % SLICE_TOOLS == 0:
                yield
        return _ServerTools(source, tuple(names), tuple(names.values()), tuple(listed))

    def _merge(self, servers: Iterable[_ServerTools]) -> Generator[None, None, ToolListing]:
        listing = ToolListing({}, [], {})
        done = 0
        for each in servers:
            if not listing.items.keys().isdisjoint(each.names):  # renamed tools: the later server's get other names
                each = yield from self._name_server(each.source, _Either(self._reserved, listing.items))
            for begin in range(0, len(each.names), SLICE_MERGED):
                names = each.names[begin : begin + SLICE_MERGED]
                items = each.items[begin : begin + SLICE_MERGED]
                listing.items.update(zip(names, items, strict=True))
                listing.names.update({(item.server, item.name): name for name, item in zip(names, items, strict=True)})
                done += len(names)
                if done >= SLICE_MERGED:
                    done = 0
                    yield
            listing.listed.extend(each.listed)
        return listing


class _Either:
    """A union of two containers of names that does not copy them."""

    __slots__ = ("_first", "_second")

    def __init__(self, first: Container[str], second: Container[str]) -> None:
        self._first = first
        self._second = second

    def __contains__(self, name: object) -> bool:
        return name in self._first or name in self._second
