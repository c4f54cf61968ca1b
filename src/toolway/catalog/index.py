"""What can be called, in memory: the lists of all servers, as they sent them.

An item that breaks the rules is set aside with its reason and the rest stay. Lookups are exact.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

import msgspec

from toolway.catalog.shapes import schema_problem
from toolway.events import CatalogChanged, Kind
from toolway.model import Json, ToolRef
from toolway.protocol import names, weight

_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_./-]{1,128}")
MAX_DESCRIPTION: Final = 16 * 1024
MIRRORED: Final = b'"x-mcp-header"'
Objection: TypeAlias = Callable[[Json], str | None]
_KEY_OF: Final = {"tools": "name", "prompts": "name", "resources": "uri", "templates": "uriTemplate"}


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of a server's list. `raw` is what the server sent, untouched."""

    server: str
    key: str  # name or URI
    raw: Json = field(repr=False)
    stale: bool = False  # known from an earlier run; the server has not answered yet

    @property
    def title(self) -> str:
        return _text(self.raw.get("title")) or _text(self._annotations().get("title")) or self.key

    @property
    def description(self) -> str:
        return _text(self.raw.get("description"))

    def _annotations(self) -> Json:
        found = self.raw.get("annotations")
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class Tool(Item):
    """A tool. `name` is for people, `model_name` for models."""

    _mirrors: bool | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def ref(self) -> ToolRef:
        return ToolRef(self.server, self.key)

    @property
    def name(self) -> str:
        return str(self.ref)

    @property
    def model_name(self) -> str:
        return names.for_models(self.ref)

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
    def mirrors(self) -> bool:
        """Whether arguments may have to be mirrored into headers. Found out once: hardly a tool wants that, and
        looking for it in the schema costs more than the rest of a call."""
        if self._mirrors is None:
            object.__setattr__(self, "_mirrors", MIRRORED in msgspec.json.encode(self.input_schema))
        return bool(self._mirrors)


@dataclass(frozen=True, slots=True)
class Prompt(Item):
    """A prompt."""

    @property
    def name(self) -> str:
        return f"{self.server}.{self.key}"


@dataclass(frozen=True, slots=True)
class Resource(Item):
    """A resource or a resource template."""

    @property
    def uri(self) -> str:
        return self.key


_TYPE_OF: Final[Mapping[str, type[Item]]] = {
    "tools": Tool,
    "prompts": Prompt,
    "resources": Resource,
    "templates": Resource,
}


@dataclass(slots=True)
class _List:
    items: dict[str, Item] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    stale: bool = False
    known: bool = False


class Catalog:
    def __init__(self) -> None:
        self._lists: dict[str, dict[str, _List]] = {}
        self._changed_names: dict[str, ToolRef] = {}  # names for models that had to be cut or changed
        self.generation = 0  # grows with every change of any list
        self._parsed: dict[str, ToolRef] = {}  # names that were asked for and have a tool, until the lists change

    # -- filling ------------------------------------------------------------------------------------------------------

    def add_server(self, server: str) -> None:
        self._lists.setdefault(server, {kind: _List() for kind in _TYPE_OF})
        self.generation += 1

    def remove_server(self, server: str) -> None:
        self._lists.pop(server, None)
        self.generation += 1
        self._index_changed_names(server)

    def replace(
        self,
        server: str,
        kind: Kind,
        raw: Iterable[Any],
        problems: Iterable[str] = (),
        *,
        stale: bool = False,
        objection: Objection | None = None,
    ) -> CatalogChanged | None:
        """Take a list as the server sent it. Returns what changed, or None where nothing did. `objection` says why an
        item that keeps the general rules cannot be used on this server's transport."""
        items, bad = _sort_out(server, kind, raw, stale, objection)
        old = self._lists[server][kind]
        # What is the same stays the same object, so that whoever made something of it sees that nothing changed.
        items = {key: old.items[key] if old.items.get(key) == item else item for key, item in items.items()}
        self._lists[server][kind] = _List(items, (*problems, *bad), stale, known=True)
        self.generation += not (old.known and _same(old.items, items))
        if kind == "tools":
            self._index_changed_names(server)
        return _difference(server, kind, old.items, items)

    def _index_changed_names(self, server: str) -> None:
        self._parsed = {}
        kept = {name: ref for name, ref in self._changed_names.items() if ref.server != server}
        new = {tool.model_name: tool.ref for tool in self.tools(server)}
        self._changed_names = kept | {name: ref for name, ref in new.items() if names.parse(name) != ref}

    # -- asking -------------------------------------------------------------------------------------------------------

    def items(self, kind: Kind, server: str | None = None) -> Iterator[Item]:
        chosen = self._lists if server is None else {server: self._lists.get(server, {})}
        for lists in chosen.values():
            if kind in lists:
                yield from lists[kind].items.values()

    def tools(self, server: str | None = None) -> list[Tool]:
        return cast("list[Tool]", list(self.items("tools", server)))

    def tool(self, ref: ToolRef) -> Tool | None:
        return self.find_tool(ref.server, ref.tool)

    def find_tool(self, server: str, name: str) -> Tool | None:
        """The tool of a server by its own name."""
        lists = self._lists.get(server)
        return lists["tools"].items.get(name) if lists else None  # type: ignore[return-value]  # its kind says so

    def parse(self, name: str) -> ToolRef | None:
        """The tool meant by `server.tool`, `server__tool` or a name made for models."""
        known = self._parsed.get(name)
        if known is not None:
            return known
        ref = names.parse(name)
        if ref is None or self.tool(ref) is None:
            ref = self._changed_names.get(name, ref)
        if ref is not None and self.tool(ref) is not None:
            self._parsed[name] = ref
        return ref

    def known(self, server: str, kind: Kind) -> bool:
        """Whether the server itself has answered with this list in this run."""
        lists = self._lists.get(server)
        return lists is not None and lists[kind].known and not lists[kind].stale

    def listed(self, server: str, kind: Kind) -> bool:
        """Whether anything is known of this list, be it from an earlier run."""
        lists = self._lists.get(server)
        return lists is not None and lists[kind].known

    def stale(self, server: str) -> bool:
        return any(each.stale for each in self._lists.get(server, {}).values())

    def problems(self, server: str) -> tuple[str, ...]:
        return tuple(p for each in self._lists.get(server, {}).values() for p in each.problems)

    def close_names(self, name: str, limit: int = 3) -> list[str]:
        """Names of tools that a person may have meant."""
        return difflib.get_close_matches(name, [tool.name for tool in self.tools()], n=limit, cutoff=0.6)

    def search(self, query: str, server: str | None = None) -> list[Tool]:
        """Tools in which all words of `query` occur; those that have them in their name come first."""
        words = query.lower().split()
        ranked: list[tuple[int, Tool]] = []
        for tool in self.tools(server):
            name = tool.name.lower()
            whole = f"{name} {tool.title} {tool.description}".lower()
            if all(word in whole for word in words):
                ranked.append((-sum(word in name for word in words), tool))
        return [tool for _, tool in sorted(ranked, key=lambda pair: pair[0])]


def _sort_out(
    server: str, kind: Kind, raw: Iterable[Any], stale: bool, objection: Objection | None
) -> tuple[dict[str, Item], list[str]]:
    items: dict[str, Item] = {}
    problems: list[str] = []
    for number, each in enumerate(raw):
        key = each.get(_KEY_OF[kind]) if isinstance(each, dict) else None
        reason = "twice in the list" if isinstance(key, str) and key in items else _problem(kind, each, key)
        if reason is None and objection is not None:
            reason = objection(each)
        if reason is not None:
            label = repr(key[:80]) if isinstance(key, str) else f"number {number + 1}"
            problems.append(f"{kind.removesuffix('s')} {label} set aside: {reason}")
            continue
        assert isinstance(key, str)
        items[key] = _TYPE_OF[kind](server, key, each, stale)
    return items, problems


def _problem(kind: Kind, item: Any, key: Any) -> str | None:
    """Why an item cannot be offered, or None."""
    if not isinstance(item, dict):
        return "it is no object"
    if weight.SET_ASIDE in item:
        return "its definition has too many values to be read"
    if not isinstance(key, str) or not key:
        return f"it has no {_KEY_OF[kind]}"
    if kind != "tools":
        return None
    if not _TOOL_NAME.fullmatch(key):
        return "its name is not 1 to 128 characters of A-Z a-z 0-9 _ . / -"
    if len(_text(item.get("description"))) > MAX_DESCRIPTION:
        return f"its description is longer than {MAX_DESCRIPTION} characters"
    if not isinstance(item.get("inputSchema"), dict):
        return "it has no inputSchema"
    return schema_problem(item["inputSchema"]) or schema_problem(item.get("outputSchema"))


def _same(old: Mapping[str, Item], new: Mapping[str, Item]) -> bool:
    """Whether two lists hold the very same items in the same order."""
    return len(old) == len(new) and all(a is b for a, b in zip(old.values(), new.values(), strict=True))


def _difference(server: str, kind: Kind, old: Mapping[str, Item], new: Mapping[str, Item]) -> CatalogChanged | None:
    added = tuple(key for key in new if key not in old)
    removed = tuple(key for key in old if key not in new)
    changed = tuple(key for key in new if key in old and new[key].raw != old[key].raw)
    return CatalogChanged(server, kind, added, removed, changed) if added or removed or changed else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
