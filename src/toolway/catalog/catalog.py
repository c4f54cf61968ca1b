"""In-memory catalog of all servers' tools, prompts and resources, as received but with secrets masked.

An invalid item is skipped with a reason, and the rest of the list stays. Lookups are exact. Tools that a server's
allow and deny lists deny, and items whose definition needs review (`pins.py`), are kept apart, so no list or lookup
returns them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

import msgspec

from toolway._async import LightEvent
from toolway._closest import closest
from toolway.catalog.masked_items import ITEM_KEY, describe_item, mask_items
from toolway.catalog.pins import INSTRUCTIONS, ItemPins
from toolway.catalog.tool_access import PIN_NOT_STORED, PINS_SETTING, ToolAccess
from toolway.events import CatalogChanged, ListKind
from toolway.protocol import large_messages, tool_names
from toolway.types import Json, ToolRef

_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_./-]{1,128}")
MAX_DESCRIPTION_CHARS: Final = 16 * 1024
HEADER_PARAM_MARKER: Final = b'"x-mcp-header"'
ItemCheck: TypeAlias = Callable[[Json], str | None]


@dataclass(frozen=True, slots=True)
class Item:
    """A server's tool, prompt, resource, or template. `raw` is its definition, with secrets masked."""

    server: str
    name: str  # the server's own name of it, or its URI
    raw: Json = field(repr=False)
    stale: bool = False  # loaded from an earlier run; the server has not answered yet

    @property
    def title(self) -> str:
        return _str_or_empty(self.raw.get("title")) or _str_or_empty(self._annotations().get("title")) or self.name

    @property
    def description(self) -> str:
        return _str_or_empty(self.raw.get("description"))

    def _annotations(self) -> Json:
        found = self.raw.get("annotations")
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class Tool(Item):
    """A server's tool. Users see its `qualified_name` (`server.tool`), and models its `model_name`.

    Example:
        for tool in hub.known_tools():
            print(tool.qualified_name, tool.description)
    """

    _mirrors: bool | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def ref(self) -> ToolRef:
        return ToolRef(self.server, self.name)

    @property
    def qualified_name(self) -> str:
        return str(self.ref)

    @property
    def model_name(self) -> str:
        return tool_names.model_name_for(self.ref)

    @property
    def input_schema(self) -> Json:
        return cast(Json, self.raw["inputSchema"])

    @property
    def output_schema(self) -> Json | None:
        found = self.raw.get("outputSchema")
        return found if isinstance(found, dict) else None

    @property
    def annotations(self) -> Json:
        return self._annotations()

    @property
    def has_header_params(self) -> bool:
        """Return True if the schema marks arguments that must be repeated in HTTP headers.

        The result is cached, because few tools have such arguments, and searching the schema costs more than the rest
        of a call.
        """
        if self._mirrors is None:
            object.__setattr__(self, "_mirrors", HEADER_PARAM_MARKER in msgspec.json.encode(self.input_schema))
        return bool(self._mirrors)


@dataclass(frozen=True, slots=True)
class Prompt(Item):
    """A prompt that a server offers, with its definition in `raw`.

    Example:
        for prompt in await hub.list_prompts():
            print(prompt.qualified_name)
    """

    @property
    def qualified_name(self) -> str:
        return f"{self.server}.{self.name}"


@dataclass(frozen=True, slots=True)
class Resource(Item):
    """A resource or a resource template that a server offers, with its definition in `raw`.

    Example:
        for resource in await hub.list_resources():
            print(resource.uri)
    """

    @property
    def uri(self) -> str:
        return self.name


_ITEM_TYPE: Final[Mapping[str, type[Item]]] = {
    "tools": Tool,
    "prompts": Prompt,
    "resources": Resource,
    "templates": Resource,
}


_NO_ITEMS: Final[Mapping[str, Item]] = {}


class _ServerList(msgspec.Struct):
    items: dict[str, Item] = {}
    received: dict[str, Item] = {}  # `items` and what is denied or held, in the server's order
    held: frozenset[str] = frozenset()  # names of items that need review, or whose pin is not stored yet
    unstored: frozenset[str] = frozenset()  # items of `held` that wait only until their pin is stored
    problems: tuple[str, ...] = ()
    stale: bool = False
    loaded: bool = False


class Catalog:
    """Tools, prompts, resources and resource templates of all servers, by server and name."""

    def __init__(self) -> None:
        self.pins: ItemPins | None = None  # set before the first server is added; None holds nothing
        self._lists: dict[str, dict[str, _ServerList]] = {}
        self._access: dict[str, ToolAccess] = {}  # of servers with an allow or deny list
        self._instructions: dict[str, tuple[str, bool]] = {}  # of a server as last reviewed; True if they are held
        self._pins_stored: dict[str, LightEvent] = {}  # of servers with a list that waits for its pins
        self._shortened_names: dict[str, ToolRef] = {}  # model names that differ from server__tool
        self.generation = 0  # grows with every change of any list
        self._tool_count = (-1, 0)  # generation, number of tools
        self._ref_cache: dict[str, ToolRef] = {}  # names resolved to an existing tool; cleared when a list changes

    # -- updates ------------------------------------------------------------------------------------------------------

    def add_server(self, server: str, access: ToolAccess | None = None, identity: str = "") -> None:
        """Add a server to the catalog, without any tools or other items yet.

        `identity` is a fingerprint of its command or URL, by which its pins are found.
        """
        if self.pins is not None:
            self.pins.start_server(server, identity)
        self._lists.setdefault(server, {kind: _ServerList() for kind in _ITEM_TYPE})
        self.set_access(server, access)
        self.generation += 1

    def set_access(self, server: str, access: ToolAccess | None) -> CatalogChanged | None:
        """Replace the allow and deny lists of a server. None allows all its tools.

        Return the tools that became visible or hidden, or None if there are none.
        """
        self._access.pop(server, None)
        if access is not None:
            self._access[server] = access
        listed = self._lists[server]["tools"]
        old, listed.items = listed.items, self._usable_items(server, "tools", listed.received, listed.held)
        self.generation += not _same_items(old, listed.items)
        self._index_shortened_names(server)
        return _diff(server, "tools", old, listed.items)

    def review_again(self, server: str) -> list[CatalogChanged]:
        """Compare a server's items with its pins again, because the pins changed.

        Return the resulting changes of the server's lists.
        """
        changes = []
        for kind in self._lists.get(server, {}):
            listed = self._lists[server][kind]
            if not listed.loaded:
                continue  # an empty list would make all of its later items new
            was_unstored = listed.unstored
            listed.held, listed.unstored = self._held_items(server, kind, listed.received)
            old, listed.items = listed.items, self._usable_items(server, kind, listed.received, listed.held)
            self.generation += was_unstored != listed.unstored or not _same_items(old, listed.items)
            change = _diff(server, cast(ListKind, kind), old, listed.items)
            changes += [change] if change is not None else []
        self._index_shortened_names(server)
        self._update_pins_stored(server)
        known = self._instructions.pop(server, None)
        if known is not None:
            self.usable_instructions(server, known[0])
        return changes

    def usable_instructions(self, server: str, text: str) -> str:
        """Return the instructions of a server, or "" if they need review."""
        if self.pins is None or server not in self._lists:
            return text
        known = self._instructions.get(server)
        if known is None or known[0] != text:
            items = {INSTRUCTIONS: {"text": text}} if text else {}
            known = self._instructions[server] = (text, bool(self.pins.review(server, INSTRUCTIONS, items)))
        return "" if known[1] else text

    def pinned_digests(self, server: str, tools: Iterable[Any]) -> dict[str, str]:
        """Return the digests, by name, of tools that another connection lists, to compare with the pins.

        Return an empty mapping if the hub has no pins or does not know the server.
        """
        if self.pins is None or server not in self._lists:
            return {}
        items, _ = _validate_items(server, "tools", tools, False, None)
        return {name: self.pins.digest(server, "tools", name, item.raw) for name, item in items.items()}

    def is_pinned(self, server: str, tool: str, digest: str) -> bool:
        """Return True if a tool with this digest may be used, because it is pinned or deviations are not blocked."""
        return self.pins is None or self.pins.is_usable(server, "tools", tool, digest)

    def is_held(self, server: str, kind: ListKind, name: str) -> bool:
        """Return True if the definition of an item needs review."""
        lists = self._lists.get(server)
        return lists is not None and name in lists[kind].held

    def held_tools(self, server: str) -> list[Item]:
        """Return a server's tools whose definitions need review, except denied ones."""
        lists = self._lists.get(server)
        held = lists["tools"].held - lists["tools"].unstored if lists is not None else None
        if lists is None or not held:
            return []
        usable = self._usable_items(server, "tools", lists["tools"].received, ())
        return [item for name, item in usable.items() if name in held]

    async def wait_pins_stored(self, server: str) -> None:
        """Wait, without a time limit, until the first pins of all lists of a server are stored."""
        event = self._pins_stored.get(server)
        if event is not None:
            await event.wait()

    def _update_pins_stored(self, server: str) -> None:
        if any(each.unstored for each in self._lists.get(server, {}).values()):
            self._pins_stored.setdefault(server, LightEvent())
        elif (event := self._pins_stored.pop(server, None)) is not None:
            event.set()

    def _held_items(self, server: str, kind: str, items: dict[str, Item]) -> tuple[frozenset[str], frozenset[str]]:
        """Return items that must not be used yet, and those that only wait until a pin is stored."""
        if self.pins is None:
            return frozenset(), frozenset()
        held = self.pins.review(server, kind, {name: item.raw for name, item in items.items()})
        return frozenset(held), frozenset(name for name, deviation in held.items() if deviation is None)

    def _usable_items(self, server: str, kind: str, items: dict[str, Item], held: Collection[str]) -> dict[str, Item]:
        access = self._access.get(server) if kind == "tools" else None
        if access is None and not held:
            return items
        return {
            name: item
            for name, item in items.items()
            if name not in held and (access is None or access.denied_by(name) is None)
        }

    def remove_server(self, server: str) -> None:
        self._lists.pop(server, None)
        self._access.pop(server, None)
        self._instructions.pop(server, None)
        self._update_pins_stored(server)
        self.generation += 1
        self._index_shortened_names(server)

    def replace(
        self,
        server: str,
        kind: ListKind,
        raw: Iterable[Any],
        problems: Iterable[str] = (),
        *,
        stale: bool = False,
        check_item: ItemCheck | None = None,
    ) -> CatalogChanged | None:
        """Replace one of a server's lists with the items that it sent (`raw`).

        Return the difference, or None if nothing changed. `check_item` returns why a valid item cannot be used over
        this server's transport, or None if it can.
        """
        items, item_problems = _validate_items(server, kind, raw, stale, check_item)
        old = self._lists[server][kind]
        # Unchanged items stay the same objects, so code with derived data sees that nothing changed.
        received = {key: old.received[key] if old.received.get(key) == item else item for key, item in items.items()}
        held, unstored = self._held_items(server, kind, received)
        items = self._usable_items(server, kind, received, held)
        self._lists[server][kind] = _ServerList(
            items, received, held, unstored, (*problems, *item_problems), stale, loaded=True
        )
        self._update_pins_stored(server)
        self.generation += not (old.loaded and _same_items(old.items, items))
        if kind == "tools":
            self._index_shortened_names(server)
        return _diff(server, kind, old.items, items)

    def _index_shortened_names(self, server: str) -> None:
        self._ref_cache = {}
        kept = {name: ref for name, ref in self._shortened_names.items() if ref.server != server}
        new = {tool.model_name: tool.ref for tool in cast("list[Tool]", self.received_items("tools", server))}
        self._shortened_names = kept | {
            name: ref for name, ref in new.items() if tool_names.parse_tool_name(name) != ref
        }

    # -- queries ------------------------------------------------------------------------------------------------------

    def items(self, kind: ListKind, server: str | None = None) -> Iterator[Item]:
        chosen = self._lists if server is None else {server: self._lists.get(server, {})}
        for lists in chosen.values():
            if kind in lists:
                yield from lists[kind].items.values()

    def received_items(self, kind: ListKind, server: str) -> list[Item]:
        """Return all items in a list that a server sent, including denied items and items that need review.

        They are only for storage: never show them.
        """
        lists = self._lists.get(server)
        return list(lists[kind].received.values()) if lists else []

    def count_denied(self, server: str) -> int:
        """Return the number of listed tools that the allow and deny lists of a server hide."""
        access, lists = self._access.get(server), self._lists.get(server)
        if access is None or lists is None:
            return 0
        return sum(access.denied_by(name) is not None for name in lists["tools"].received)

    def denied_by(self, ref: ToolRef) -> str | None:
        """Return the setting that denies a tool, such as `tools.deny`, or `pins` if it needs review.

        Return `PIN_NOT_STORED` if the tool can be used as soon as its pin is stored. Return None if the tool is
        allowed, or is not in its server's complete list.
        """
        access, lists = self._access.get(ref.server), self._lists.get(ref.server)
        if lists is None:
            return None
        if ref.tool in lists["tools"].unstored:
            return (access.denied_by(ref.tool) if access is not None else None) or PIN_NOT_STORED
        if ref.tool in lists["tools"].held:
            return PINS_SETTING
        if access is None:
            return None
        if self.is_complete(ref.server, "tools") and ref.tool not in lists["tools"].received:
            return None
        return access.denied_by(ref.tool)

    def tools(self, server: str | None = None) -> list[Tool]:
        return cast("list[Tool]", list(self.items("tools", server)))

    def servers(self) -> list[str]:
        """Return the names of all servers, in the order they were added."""
        return list(self._lists)

    def tools_of(self, server: str) -> Mapping[str, Item]:
        """Return the usable tools of a server by name. It is the same object until the list changes."""
        lists = self._lists.get(server)
        return lists["tools"].items if lists else _NO_ITEMS

    def count_tools(self) -> int:
        """Return the number of all servers' tools, without the denied ones."""
        if self._tool_count[0] != self.generation:
            self._tool_count = (self.generation, sum(len(lists["tools"].items) for lists in self._lists.values()))
        return self._tool_count[1]

    def tool(self, ref: ToolRef) -> Tool | None:
        return self.find_tool(ref.server, ref.tool)

    def find_tool(self, server: str, name: str) -> Tool | None:
        """Return the tool that `server` itself calls `name`, or None if it is not listed."""
        lists = self._lists.get(server)
        return lists["tools"].items.get(name) if lists else None  # type: ignore[return-value]  # its kind says so

    def parse_name(self, name: str) -> ToolRef | None:
        """Return the reference of the tool meant by `server.tool`, `server__tool` or a model name.

        Return None if the name has no server part. The tool itself need not be listed.
        """
        cached = self._ref_cache.get(name)
        if cached is not None:
            return cached
        ref = tool_names.parse_tool_name(name)
        if ref is None or self.tool(ref) is None:
            ref = self._shortened_names.get(name, ref)  # even for a denied tool, so the error says so
        if ref is not None and self.tool(ref) is not None:
            self._ref_cache[name] = ref
        return ref

    def find_by_bare_name(self, name: str, servers: Iterable[str]) -> tuple[list[Tool], list[ToolRef]]:
        """Return these servers' tools with this name, and references to denied or held ones."""
        found: list[Tool] = []
        denied: list[ToolRef] = []
        for server, lists in ((server, self._lists[server]) for server in servers if server in self._lists):
            tool = lists["tools"].items.get(name)
            if tool is not None:
                found.append(cast(Tool, tool))
            elif name in lists["tools"].received:
                denied.append(ToolRef(server, name))
        return found, denied

    def is_complete(self, server: str, kind: ListKind) -> bool:
        """Return True if the server has sent its list of this kind since the hub started."""
        lists = self._lists.get(server)
        return lists is not None and lists[kind].loaded and not lists[kind].stale

    def has_list(self, server: str, kind: ListKind) -> bool:
        """Return True if the server's list of this kind is known, from this or an earlier run, and its pins are stored.

        `wait_pins_stored` waits for the pins.
        """
        lists = self._lists.get(server)
        return lists is not None and lists[kind].loaded and not lists[kind].unstored

    def is_stale(self, server: str) -> bool:
        return any(each.stale for each in self._lists.get(server, {}).values())

    def problems(self, server: str) -> tuple[str, ...]:
        return tuple(p for each in self._lists.get(server, {}).values() for p in each.problems)

    def suggest(self, name: str, limit: int = 3) -> list[str]:
        """Return the qualified names of tools that a misspelled name, with or without server, may have meant."""
        tools = self.tools()
        close = closest(name, (tool.qualified_name for tool in tools), limit)
        if close:
            return close
        bare_names = {tool.name: tool.qualified_name for tool in tools}
        return [bare_names[each] for each in closest(name, bare_names, limit)]


# -- checks of received items ------------------------------------------------------------------------------------------


def _validate_items(
    server: str, kind: ListKind, raw: Iterable[Any], stale: bool, check_item: ItemCheck | None
) -> tuple[dict[str, Item], list[str]]:
    items: dict[str, Item] = {}
    received, problems = mask_items(server, kind, raw)
    for number, each in enumerate(received):
        key = each.get(ITEM_KEY[kind]) if isinstance(each, dict) else None
        reason = "duplicate in the list" if isinstance(key, str) and key in items else _invalid_reason(kind, each, key)
        if reason is None and check_item is not None:
            reason = check_item(each)
        if reason is not None:
            problems.append(f"{kind.removesuffix('s')} {describe_item(each, kind, number)} skipped: {reason}")
            continue
        assert isinstance(key, str)
        items[key] = _ITEM_TYPE[kind](server, key, each, stale)
    return items, problems


def _invalid_reason(kind: ListKind, item: Any, key: Any) -> str | None:
    """Return why an item of a received list is invalid, or None if it is valid."""
    if not isinstance(item, dict):
        return "it is not an object"
    if large_messages.OMITTED in item:
        return "its definition has too many values"
    if not isinstance(key, str) or not key:
        return f"it has no {ITEM_KEY[kind]}"
    if kind != "tools":
        return None
    if not _TOOL_NAME.fullmatch(key):
        return "its name is not 1 to 128 characters of A-Z a-z 0-9 _ . / -"
    if len(_str_or_empty(item.get("description"))) > MAX_DESCRIPTION_CHARS:
        return f"its description is longer than {MAX_DESCRIPTION_CHARS} characters"
    if not isinstance(item.get("inputSchema"), dict):
        return "it has no inputSchema"
    return check_schema(item["inputSchema"]) or check_schema(item.get("outputSchema"))


def _same_items(old: Mapping[str, Item], new: Mapping[str, Item]) -> bool:
    """Return True if two item lists hold the identical objects in the same order."""
    return len(old) == len(new) and all(a is b for a, b in zip(old.values(), new.values(), strict=True))


def _diff(server: str, kind: ListKind, old: Mapping[str, Item], new: Mapping[str, Item]) -> CatalogChanged | None:
    added = tuple(key for key in new if key not in old)
    removed = tuple(key for key in old if key not in new)
    changed = tuple(key for key in new if key in old and new[key].raw != old[key].raw)
    return CatalogChanged(server, kind, added, removed, changed) if added or removed or changed else None


def _str_or_empty(value: Any) -> str:
    return value if isinstance(value, str) else ""


# -- structure of a schema: depth, size, external references -----------------------------------------------------------

MAX_SCHEMA_DEPTH: Final = 32
MAX_SUBSCHEMAS: Final = 2000

_NAMED_SUBSCHEMAS: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_DATA_KEYWORDS: Final = frozenset({"default", "const", "enum", "examples"})


def check_schema(schema: Any) -> str | None:
    """Return why a tool's schema is too deep, too large or has external references, or None.

    The schema is not evaluated. A `$ref` inside data (`default`, `enum`) is not a reference. A property that is named
    like such a keyword is a schema.
    """
    level: list[Any] = [schema]
    named: list[Any] = []  # mappings of names to schemas
    data: list[Any] = []  # plain data
    count = 0
    for _ in range(MAX_SCHEMA_DEPTH * 2):  # a schema level is a keyword and a name
        level, named, data = _containers(level), _containers(named), _containers(data)
        every = [*level, *named, *data]
        if not every:
            return None
        count += sum(len(node) for node in every)
        if count > MAX_SUBSCHEMAS * 8:
            return "its schema is too large"
        if any(_has_external_ref(node) for node in (*level, *named)):
            return "its schema refers to another document"
        below: tuple[list[Any], list[Any], list[Any]] = ([*_children(named)], [], [*_children(data)])
        for node in level:
            for key, value in node.items() if isinstance(node, dict) else (("", each) for each in node):
                below[1 if key in _NAMED_SUBSCHEMAS else 2 if key in _DATA_KEYWORDS else 0].append(value)
        level, named, data = below
    return f"its schema is deeper than {MAX_SCHEMA_DEPTH}"


def _containers(values: list[Any]) -> list[Any]:
    return [node for node in values if isinstance(node, dict | list)]


def _children(nodes: list[Any]) -> Iterator[Any]:
    for node in nodes:
        yield from node.values() if isinstance(node, dict) else node


def _has_external_ref(node: Any) -> bool:
    ref = node.get("$ref") if isinstance(node, dict) else None
    return isinstance(ref, str) and not ref.startswith("#")
