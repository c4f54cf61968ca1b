"""One endpoint's view: many servers' tools, prompts and resources as one list with unique names.

A view is built from the catalog. It is cached in encoded form until the catalog changes, because clients mostly
request the same lists. The order is stable: by server name, then in the server's own order. `ListWaiter` gives
servers that have just started some time to list their items.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from toolway._async import run_at_once, run_in_slices
from toolway.catalog.catalog import Catalog, Item, Tool
from toolway.catalog.uri_claims import QUALIFIED_PREFIX, UriClaims, qualify
from toolway.config.settings import InvisibleCharacters
from toolway.errors import CallError
from toolway.events import ListKind
from toolway.gateway.legacy_schemas import adapt_definition
from toolway.gateway.meta_tools import MetaTools, MetaToolSet
from toolway.gateway.permissions import PrincipalAccess
from toolway.gateway.tool_filter import NO_TOOLS, ToolFilter
from toolway.gateway.tool_listing import ToolListing, ToolNaming
from toolway.hub.caller_lists import OwnLists
from toolway.hub.lists import HubLists
from toolway.hub.servers import HubServers
from toolway.protocol import tool_names
from toolway.protocol.jsonrpc import encode_json
from toolway.protocol.sanitize import has_invisible, map_texts, remove_invisible
from toolway.types import Era, Json, ToolRef

PAGE_SIZE: Final = 1000  # items
MAX_PREPARATIONS: Final = 3  # builds of a list in slices, if the catalog changes during a build
STARTUP_WINDOW_S: Final = 10.0  # seconds after startup, or a change of servers, in which lists wait for new servers
MAX_VARIANTS_PER_PAGE: Final = 4  # encodings of one page: two eras, each complete or not
BuildResult = Callable[[msgspec.Raw, str | None], Json]  # (items of the page, cursor of the next page) → result
KINDS: Final[tuple[ListKind, ...]] = ("tools", "prompts", "resources", "templates")
_URI_KINDS: Final[tuple[ListKind, ListKind]] = ("resources", "templates")
_NAME_FIELDS: Final = {"tools": "name", "prompts": "name", "resources": "uri", "templates": "uriTemplate"}


class _KindList(msgspec.Struct):
    """A view's cached list of one kind of items (tools, prompts, resources, or templates)."""

    items: dict[str, Item] = {}  # by the name that clients see
    names: list[str] = []  # of the items that are listed: with search, not all tools
    #: by the last name before the page, and the era
    pages: dict[tuple[str, Era], tuple[msgspec.Raw, str | None]] = {}
    encoded: dict[tuple[str | None, Hashable], memoryview] = {}  # by cursor and variant
    complete: bool = False  # all servers have listed their items


class EndpointView:
    """The tools, prompts and resources of one endpoint that a principal may see.

    `servers` returns the names of all servers. `single_server` names the server if the endpoint is for only one,
    whose items then keep their own names. `invisible_characters` returns how to treat definitions that contain such
    characters.
    """

    def __init__(
        self,
        catalog: Catalog,
        servers: Callable[[], Iterable[str]],
        tool_filter: ToolFilter,
        permitted: ToolFilter,
        single_server: str | None = None,
        invisible_characters: Callable[[], InvisibleCharacters] = lambda: "remove",
        permission: PrincipalAccess | None = None,
        own_lists: OwnLists | None = None,
        meta_tools: MetaTools | None = None,
    ) -> None:
        """Create the view. `own_lists` filters the items from servers called with the principal's own login."""
        self._catalog = catalog
        self._servers = servers
        self._tool_filter = tool_filter
        self._permitted = permitted  # everything that the principal may see
        self.single_server = single_server
        self.permission = permission  # by the policy of the gateway, in addition; None: no policy
        self._permission_version = 0  # of the decisions in the lists
        self._decided: tuple[int, int] | None = None  # generation and version for which all items are decided
        self._invisible_characters = invisible_characters
        self._own_lists = own_lists
        self._meta_tools = meta_tools if meta_tools is not None else MetaTools()
        self._generation = -1
        self._lists: dict[ListKind, _KindList] = {}
        self._claims: UriClaims | None = None  # of this generation
        self._server_names: tuple[tuple[str, ...], list[str]] | None = None  # all servers, and this view's servers
        self._tool_names: dict[tuple[str, str], str] = {}  # (server, tool) → visible name, of this generation
        self._naming: tuple[InvisibleCharacters, ToolNaming] | None = None
        self._preparing: asyncio.Task[None] | None = None
        #: servers that have not listed a kind, with the generation and the servers for which that is so
        self._unknown: dict[ListKind, tuple[int, list[str], list[str]]] = {}

    def set_filter(self, tool_filter: ToolFilter, permitted: ToolFilter) -> None:
        """Replace the endpoint's filter (`tool_filter`) and the principal's (`permitted`) after a reload."""
        self._tool_filter = tool_filter
        self._permitted = permitted
        self._generation = -1
        self._server_names = None
        self._naming = None

    def close(self) -> None:
        """Make this view empty, because the policy changed. Clients get a new view."""
        self.permission = None
        self.set_filter(NO_TOOLS, NO_TOOLS)

    def servers(self) -> list[str]:
        """Return the servers of which this view may show anything, sorted by name."""
        if self.single_server is not None:
            is_visible = self.single_server in set(self._servers()) and self._may_reach(self.single_server)
            return [self.single_server] if is_visible else []
        names = tuple(self._servers())
        if self._server_names is None or self._server_names[0] != names:
            included = (server for server in names if self._tool_filter.may_include(server))
            visible = (each for each in included if self._permitted.may_include(each))
            self._server_names = (names, sorted(each for each in visible if self._may_reach(each)))
        return list(self._server_names[1])

    def may_include(self, server: str) -> bool:
        """Return True if the view may show anything from the server `server`, which need not exist."""
        return (
            self.single_server in (None, server)
            and self._tool_filter.may_include(server)
            and self._permitted.may_include(server)
            and self._may_reach(server)
        )

    def _may_reach(self, server: str) -> bool:
        """Return True if the gateway's policy may permit anything from a server."""
        return self.permission is None or self.permission.may_include(server)

    def includes_tool(self, tool: Item) -> bool:
        """Return True if the filters and the policy let this view show a tool.

        It does not check whether a setting denies the tool, or holds it until its changed definition is accepted.
        """
        return self._is_included("tools", tool)

    def get_page(self, kind: ListKind, cursor: object, era: Era = "modern") -> tuple[msgspec.Raw, str | None]:
        """Return the encoded items of a list page for clients of an era, and the cursor of the next page, if any.

        Raises `ValueError` if the cursor is invalid.
        """
        listed = self._current_list(kind)
        after = "" if cursor is None else _decode_cursor(kind, cursor)
        cached = listed.pages.get((after, era))
        return cached if cached is not None else self._build_page(kind, listed, after, era)

    def encoded_page(
        self, kind: ListKind, cursor: object, variant: Hashable, build: BuildResult, era: Era = "modern"
    ) -> memoryview:
        """Return a list page as the encoded result that `build(items, next_cursor)` makes.

        The page is cached per era and `variant`.

        Raises `ValueError` if the cursor is invalid.
        """
        listed = self._current_list(kind)
        if cursor is not None and not isinstance(cursor, str):
            raise ValueError("invalid cursor")
        key = (cursor, (era, variant))
        cached = listed.encoded.get(key)
        if cached is None:
            cached = memoryview(encode_json(build(*self.get_page(kind, cursor, era))))
            if len(listed.encoded) <= MAX_VARIANTS_PER_PAGE * (1 + len(listed.items) // PAGE_SIZE):
                listed.encoded[key] = cached
        return cached

    def is_complete(self, kind: ListKind) -> bool:
        """Return True if no missing server could still add items to this list."""
        listed = self._current_list(kind)
        if not listed.complete:
            listed.complete = not self.unlisted_servers(kind)
        return listed.complete

    def unlisted_servers(self, kind: ListKind) -> list[str]:
        """Return the servers that a list request (tools, prompts, …) of this client must wait for.

        These are servers that have not listed their items yet but may have some that belong in the list. With tool
        search, the list shows few tools, so a client does not wait for most servers.
        """
        unlisted = self.unknown_servers(kind)
        return [each for each in unlisted if self._tool_filter.may_list(each)] if kind == "tools" else unlisted

    def unknown_servers(self, kind: ListKind) -> list[str]:
        """Return the servers of this view that have not yet listed their items of this kind."""
        known = self._unknown.get(kind)
        servers = self.servers()
        if known is None or known[0] != self._catalog.generation or known[1] != servers:
            unknown = [server for server in servers if self._is_unknown(server, kind)]
            known = self._unknown[kind] = (self._catalog.generation, servers, unknown)
        return list(known[2])

    def _is_unknown(self, server: str, kind: ListKind) -> bool:
        if self._own_lists is not None and self._own_lists.lists(server):
            return self._own_lists.is_missing(server, kind)
        return not self._catalog.has_list(server, kind)

    async def wait_own_lists(self, kind: ListKind, server: str | None = None) -> None:
        """Wait for the lists of servers called with the principal's own login: of `server`, or of all of them."""
        if self._own_lists is not None:
            await self._own_lists.wait(self.servers() if server is None else [server], kind)

    async def own_list_error(self, kind: ListKind, name: object) -> CallError | None:
        """Return the error of a server that could not list its items to this principal, or None if there is none.

        `name` is the name of a tool on that server. Only servers that are called with the principal's own login have
        such errors.
        """
        server = self.server_for(name) if self._own_lists is not None else None
        return await self._own_lists.error(server, kind) if self._own_lists is not None and server else None

    def server_for(self, name: object) -> str | None:
        """Return the server that a client-visible tool name refers to, even if the tool is unknown.

        Return None if the name contains no server of this view.
        """
        ref = self.ref_for(name)
        return ref.server if ref is not None else None

    def ref_for(self, name: object) -> ToolRef | None:
        """Split a client-visible tool name into server and tool. The tool need not exist.

        None if the name contains no server of this view.
        """
        if not isinstance(name, str):
            return None
        if self.single_server is not None:
            return ToolRef(self.single_server, name)
        renamed = (real for real, visible_name in self._tool_filter.renames.items() if visible_name == name)
        ref = self._catalog.parse_name(next(renamed, name))
        return ref if ref is not None and ref.server in self.servers() else None

    def find_denied(self, name: object) -> tuple[ToolRef, str] | None:
        """Return the tool with this name that a setting denies, and that setting, or None.

        A tool that the endpoint or the principal may not see is not reported, so the client does not learn of it.
        """
        ref = self.ref_for(name)
        if ref is None or str(ref) not in self._tool_filter or str(ref) not in self._permitted:
            return None
        setting = self._catalog.denied_by(ref)
        if setting is None or (self.permission is not None and not self._shows_denied(self.permission, ref)):
            return None
        return ref, setting

    def _shows_denied(self, permission: PrincipalAccess, ref: ToolRef) -> bool:
        """Return True if the gateway's policy would show the tool `ref`, which a setting denies.

        Return False if the tool's definition is not known.
        """
        received = self._catalog.received_items("tools", ref.server)
        tool = next((each for each in received if each.name == ref.tool), None)
        return tool is not None and permission.shows("tools", tool)

    def server_of_call(self, name: object) -> str | None:
        """Return an unlisted tool's server, if a call may tell the client about that server.

        Return None if the name contains no server, or one that the client may not see.
        """
        ref = self.ref_for(name)
        if ref is None or str(ref) not in self._tool_filter or str(ref) not in self._permitted:
            return None
        return ref.server

    def find_hidden(self, kind: ListKind, name: object) -> Item | None:
        """Return the tool or prompt that only the gateway's policy hides, or None.

        The caller of this method reports it to the audit log.
        """
        if self.permission is None or not isinstance(name, str):
            return None
        if self.single_server is not None:
            ref: ToolRef | None = ToolRef(self.single_server, name)
        else:
            renamed = (real for real, visible_name in self._tool_filter.renames.items() if visible_name == name)
            ref = self._catalog.parse_name(next(renamed, name))
        items = self._catalog.items(kind, ref.server) if ref is not None else ()
        found = next((each for each in items if ref is not None and each.name == ref.tool), None)
        is_hidden = found is not None and self._passes_filters(kind, found) and not self.permission.shows(kind, found)
        return found if is_hidden else None

    def find_item(self, kind: ListKind, name: object) -> Item | None:
        """Return the tool, prompt or resource that clients know by this name, or None if the view has none."""
        return self._current_list(kind).items.get(name) if isinstance(name, str) else None

    def items(self, kind: ListKind) -> Mapping[str, Item]:
        return self._current_list(kind).items

    @property
    def meta_tools(self) -> MetaToolSet | None:
        """Return the meta-tools that this view lists instead of all tools, or None."""
        return self._meta_tools.provider if self._tool_filter.search else None

    def tool_names(self) -> Mapping[tuple[str, str], str]:
        """Return the client-visible names of this view's tools by (server, tool).

        The mapping never changes later.
        """
        self._current_list("tools")
        return self._tool_names

    def name_of(self, tool: Tool) -> str | None:
        """Return the name by which this view's clients call a tool, or None if the view does not include it."""
        return self.tool_names().get((tool.server, tool.name))

    def find_tool(self, name: object) -> tuple[str, Tool] | None:
        """Return a tool and its client-visible name.

        `name` is that name, or `server.tool`. Return None if the view has no such tool.
        """
        found = self.find_item("tools", name)
        if isinstance(found, Tool):
            return str(name), found
        ref = self.ref_for(name)
        tool = self._catalog.tool(ref) if ref is not None else None
        visible = self.name_of(tool) if tool is not None else None
        return (visible, tool) if visible is not None and tool is not None else None

    def definition(self, name: str, tool: Tool) -> Json:
        """Return a tool's definition as this view shows it to clients: renamed and described as configured."""
        raw = self._raw_item("tools", name, tool)
        definition: Json = self.sanitize(raw) if has_invisible(encode_json(raw)) else raw
        return definition

    def server_for_uri(self, uri: str) -> tuple[str, str] | None:
        """Return the server for a client-visible resource URI, and the URI at that server; or None.

        Choose the only server that lists the URI or has a matching template, or else the only server with resources.
        If several servers match, the client must use a qualified URI. Also return None if the policy does not permit
        reading it.
        """
        found = self.locate_uri(uri)
        return found if found is not None and self.may_read(*found) else None

    def locate_uri(self, uri: str) -> tuple[str, str] | None:
        """Return the server for a client-visible resource URI, and the URI at that server.

        The policy is not checked.
        """
        if self.single_server is None and uri.startswith(QUALIFIED_PREFIX):
            server, _, upstream_uri = uri.removeprefix(QUALIFIED_PREFIX).partition("/")
            return (server, upstream_uri) if server in self.servers() and self._includes_server(server) else None
        if self.single_server is not None:
            candidates = {server for server in self.servers() if self._includes_server(server)}
        else:
            candidates = self._current_claims().servers_for(uri) or {
                item.server for kind in _URI_KINDS for item in self.items(kind).values()
            }
        return (candidates.pop(), uri) if len(candidates) == 1 else None

    def may_read(self, server: str, uri: str) -> bool:
        """Return True if the gateway's policy permits reading a server's URI."""
        return self.permission is None or self.permission.allows_read(server, uri)

    def qualified_uris(self, uri: object) -> list[str]:
        """Return the qualified forms of a URI that several servers have, or nothing if at most one has it."""
        servers = self._current_claims().servers_for(uri) if isinstance(uri, str) else set()
        return [qualify(server, str(uri)) for server in sorted(servers)] if len(servers) > 1 else []

    def sanitize(self, value: Any) -> Any:
        """Remove invisible characters from a server's string or JSON value, unless the setting keeps them."""
        return value if self._invisible_characters() == "keep" else map_texts(value, remove_invisible)

    def snapshot(self, kind: ListKind) -> tuple[tuple[str, Item], ...]:
        """Return the current items of one kind, to detect changes by a later comparison.

        Unchanged items are the same objects.
        """
        listed = self._current_list(kind)
        return tuple((name, listed.items[name]) for name in listed.names)

    # -- building -----------------------------------------------------------------------------------------------------

    @property
    def needs_decisions(self) -> bool:
        """Return True if the policy has so many decisions to make that you should call `prepare` first."""
        permission = self.permission
        if permission is None or self._decided == (self._catalog.generation, permission.version):
            return False
        if permission.has_many_unknown(self._candidates()):
            return True
        self._decided = (self._catalog.generation, permission.version)
        return False

    def _candidates(self) -> Iterable[tuple[ListKind, Item]]:
        """Return all items of this view's servers, before filters and policy."""
        return (
            (kind, item) for kind in KINDS for server in self.servers() for item in self._catalog.items(kind, server)
        )

    def _is_current(self) -> bool:
        permission = self.permission
        return self._generation == self._catalog.generation and (
            permission is None or permission.version == self._permission_version
        )

    def _current_list(self, kind: ListKind) -> _KindList:
        if not self._is_current():
            self._drop_outdated()
        if kind not in self._lists:
            if kind == "tools":
                self._install_tools(run_at_once(self._tool_naming().build(self.servers())))
            else:
                items = dict(self._named_items(kind))
                self._lists[kind] = _KindList(items, list(items))
        return self._lists[kind]

    @property
    def needs_preparation(self) -> bool:
        """Return True if the tool list must be built and is so large that you should call `prepare` first."""
        if self._is_current() and "tools" in self._lists:
            return False
        if self.needs_decisions:
            return True
        return self._tool_naming().has_large_changes(self.servers())

    async def prepare(self) -> None:
        """Build the tool list in slices, and let the policy decide in a thread, so other requests are served.

        Concurrent callers wait for the same work.
        """
        if self.needs_preparation or self.needs_decisions:
            if self._preparing is None:
                self._preparing = asyncio.get_running_loop().create_task(self._prepare())
            await asyncio.shield(self._preparing)

    async def _prepare(self) -> None:
        try:
            for _ in range(MAX_PREPARATIONS):
                permission = self.permission
                if permission is not None and self.needs_decisions:
                    state = (self._catalog.generation, permission.version)
                    await permission.prepare(self._candidates())
                    self._decided = state
                if not self._is_current():
                    self._drop_outdated()
                naming, generation = self._tool_naming(), self._catalog.generation
                found = await run_in_slices(naming.build(self.servers()))
                if self._tool_naming() is naming and generation == self._catalog.generation:
                    if not self._is_current():
                        self._drop_outdated()
                    self._install_tools(found)
                    return
        finally:
            self._preparing = None

    def _tool_naming(self) -> ToolNaming:
        """Return the object that gives the tools their client-visible names.

        It is a new object if the setting for invisible characters has changed.
        """
        treatment = self._invisible_characters()
        if self._naming is None or self._naming[0] != treatment:
            reserved = self.meta_tools.definitions if self.meta_tools is not None else ()

            def includes(item: Item) -> bool:
                return self._is_included("tools", item)

            def name_tool(item: Item, taken: Container[str]) -> str:
                return self._visible_name("tools", item, taken)

            self._naming = (
                treatment,
                ToolNaming(self._catalog, reserved, includes, name_tool, self._lists_tool),
            )
        return self._naming[1]

    def _install_tools(self, listing: ToolListing) -> None:
        self._lists["tools"] = _KindList(listing.items, listing.listed)
        self._tool_names = listing.names

    def _lists_tool(self, item: Item) -> bool:
        return self._tool_filter.lists(f"{item.server}.{item.name}")

    def _drop_outdated(self) -> None:
        self._generation = self._catalog.generation
        if self.permission is not None and self.permission.version != self._permission_version:
            self._permission_version = self.permission.version
            self._naming = None  # it keeps the tools of servers whose lists have not changed
        self._lists = {}
        self._claims = None

    def _current_claims(self) -> UriClaims:
        if not self._is_current():
            self._drop_outdated()
        if self._claims is None:
            self._claims = UriClaims(*(self._included_items(kind) for kind in _URI_KINDS))
        return self._claims

    def _named_items(self, kind: ListKind) -> Iterable[tuple[str, Item]]:
        taken: set[str] = set()
        for item in self._included_items(kind):
            name = self._visible_name(kind, item, taken)
            taken.add(name)
            yield name, item

    def _included_items(self, kind: ListKind) -> Iterable[Item]:
        for server in self.servers():
            yield from (item for item in self._catalog.items(kind, server) if self._is_included(kind, item))

    def _is_included(self, kind: ListKind, item: Item) -> bool:
        return self._passes_filters(kind, item) and (self.permission is None or self.permission.shows(kind, item))

    def _passes_filters(self, kind: ListKind, item: Item) -> bool:
        if self._own_lists is not None and not self._own_lists.shows(kind, item):
            return False
        treatment = self._invisible_characters()
        if treatment == "hide" and has_invisible(encode_json(item.raw)) and self.sanitize(item.raw) != item.raw:
            return False
        if treatment == "remove" and remove_invisible(item.name) != item.name:
            return False  # a name cannot be changed, because the server would not know it
        if kind in ("tools", "prompts"):
            name = f"{item.server}.{item.name}"
            return name in self._tool_filter and name in self._permitted
        return self._includes_server(item.server)

    @property
    def whole_server(self) -> str | None:
        """Return the server of a single-server endpoint if the principal may use all of it, or else None.

        Return None if the gateway has a policy, because a policy decides item by item.
        """
        server = self.single_server
        is_whole = server is not None and self.permission is None and self._includes_server(server)
        return server if is_whole and server in self.servers() else None

    def _includes_server(self, server: str) -> bool:
        return self._tool_filter.includes_server(server) and self._permitted.includes_server(server)

    def _visible_name(self, kind: ListKind, item: Item, taken: Container[str]) -> str:
        if self.single_server is not None:
            return item.name
        if kind in _URI_KINDS:
            claims = self._current_claims()
            exclusive = claims.is_exclusive(item) if kind == "resources" else claims.is_exclusive_template(item)
            return item.name if exclusive else qualify(item.server, item.name)
        renamed = self._tool_filter.renames.get(f"{item.server}.{item.name}")
        default = item.model_name if isinstance(item, Tool) else tool_names.make_model_name(item.server, item.name)
        name = renamed if renamed is not None and renamed not in taken else default
        return name if name not in taken else tool_names.with_hash_suffix(default, item.server, item.name)

    def _build_page(self, kind: ListKind, listed: _KindList, after: str, era: Era) -> tuple[msgspec.Raw, str | None]:
        all_names = listed.names
        start = 0
        if after:
            if after not in all_names:
                raise ValueError("the list changed since this cursor was issued")
            start = all_names.index(after) + 1
        chosen = all_names[start : start + PAGE_SIZE]
        meta_tools = self.meta_tools if kind == "tools" and not after else None
        first = meta_tools.definitions.values() if meta_tools is not None else ()
        items = [*first, *(self._raw_item(kind, name, listed.items[name]) for name in chosen)]
        if kind == "tools":
            items = [adapt_definition(each, era) for each in items]
        raw = msgspec.Raw(self._encode_items(items))
        more = start + PAGE_SIZE < len(all_names)
        page = (raw, _encode_cursor(kind, chosen[-1]) if more else None)
        if start % PAGE_SIZE == 0:  # forged cursors must not fill our memory
            listed.pages[after, era] = page
        return page

    def _encode_items(self, items: list[Json]) -> bytes:
        encoded = encode_json(items)
        return encode_json(self.sanitize(items)) if has_invisible(encoded) else encoded

    def _raw_item(self, kind: ListKind, name: str, item: Item) -> Json:
        raw = item.raw
        if raw.get(_NAME_FIELDS[kind]) != name:
            raw = {**raw, _NAME_FIELDS[kind]: name}
        description = self._tool_filter.descriptions.get(f"{item.server}.{item.name}")
        return raw if description is None else {**raw, "description": description}


class ListWaiter:
    """Lets list requests wait briefly for servers that have not listed their items yet."""

    def __init__(self, servers: HubServers, lists: HubLists) -> None:
        self._servers = servers
        self._catalog = lists.catalog
        self._waits = lists.waits
        self._clock = asyncio.get_running_loop().time
        self._window_ends_at = 0.0
        self.start_window()

    def start_window(self) -> None:
        """For the next `STARTUP_WINDOW_S` seconds, let list requests wait for starting servers."""
        self._window_ends_at = self._clock() + STARTUP_WINDOW_S

    async def wait_for_lists(self, view: EndpointView, kind: ListKind) -> bool:
        """Wait up to 2 s for servers to list their items, but much less for servers that were late before.

        Starts servers that are down. Return True if all of the view's servers have listed their items.
        """
        if view.is_complete(kind):
            return True
        await view.wait_own_lists(kind)
        await self._waits.wait_known(view.unlisted_servers(kind), kind)
        return view.is_complete(kind)

    async def wait_for_starting(self, view: EndpointView, timeout: float) -> None:
        """Wait for the tool lists of servers that are starting now. No server is started.

        Waits at most `timeout` seconds, and only until the startup window ends.
        """
        left = min(self._window_ends_at - self._clock(), timeout)
        if left > 0:
            unknown = [each for each in view.unknown_servers("tools") if self._servers.state(each) == "starting"]
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._waits.wait_known(unknown, "tools")

    async def find_item(self, view: EndpointView, kind: ListKind, name: object) -> Item | None:
        """Return the item with this client-visible name, or None.

        If the name is unknown, wait for starting servers first.
        """
        found = view.find_item(kind, name)
        if found is None:
            server = view.server_for(name)
            await view.wait_own_lists(kind, server)
            if server is None:
                await self.wait_for_lists(view, kind)
            else:
                await self._wait_for_server(server, kind)  # for this server only: another one may be down
            found = view.find_item(kind, name)
        return found

    async def _wait_for_server(self, server: str, kind: ListKind) -> None:
        if not self._catalog.has_list(server, kind):
            await self._waits.wait_known([server], kind, STARTUP_WINDOW_S, urgent=True)


def _encode_cursor(kind: ListKind, name: str) -> str:
    return base64.urlsafe_b64encode(f"{kind}\0{name}".encode()).decode()


def _decode_cursor(kind: ListKind, cursor: Any) -> str:
    try:
        found, _, name = base64.urlsafe_b64decode(cursor).decode().partition("\0")
    except (TypeError, ValueError, binascii.Error):
        raise ValueError("invalid cursor") from None
    if found != kind or not name:
        raise ValueError("invalid cursor")
    return name
