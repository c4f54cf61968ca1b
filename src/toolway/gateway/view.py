"""What one endpoint shows: the items of many servers as one list, under names that lead back.

A view is made from the catalog when it changed and kept until it changes again, encoded, because most of what clients
ask for are the same lists. The order is stable: by the server's name, then as the server has it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from toolway.catalog.index import Catalog, Item, Tool
from toolway.events import Kind
from toolway.gateway.selection import Selection
from toolway.model import Json
from toolway.protocol import names
from toolway.protocol.wire import encode

PAGE: Final = 1000  # items
VARIANTS: Final = 4  # of a page: two eras, and whether something is missing
Make = Callable[[msgspec.Raw, str | None], Json]  # of the items of a page and the cursor of the next
KINDS: Final[tuple[Kind, ...]] = ("tools", "prompts", "resources", "templates")
_NAMED: Final = {"tools": "name", "prompts": "name", "resources": "uri", "templates": "uriTemplate"}
#: Before a URI that another server lists too: `toolway:github/file:///readme`.
OUR_SCHEME: Final = "toolway:"


@dataclass(slots=True)
class _Shown:
    """One kind of items as it is shown."""

    items: dict[str, Item] = field(default_factory=dict)  # by the name that clients see
    pages: dict[str, tuple[msgspec.Raw, str | None]] = field(default_factory=dict)  # by the name before the page
    encoded: dict[tuple[str | None, Hashable], memoryview] = field(default_factory=dict)  # by cursor and variant
    complete: bool = False  # all servers have said what they have


class View:
    """`servers` are those that there are; `alone` is a server whose items keep their own names."""

    def __init__(
        self,
        catalog: Catalog,
        servers: Callable[[], Iterable[str]],
        selection: Selection,
        permitted: Selection,
        alone: str | None = None,
    ) -> None:
        self._catalog = catalog
        self._servers = servers
        self._selection = selection
        self._permitted = permitted  # what the principal may see at all
        self.alone = alone
        self._generation = -1
        self._shown: dict[Kind, _Shown] = {}

    def choose(self, selection: Selection, permitted: Selection) -> None:
        """Show something else from now on: the configuration has changed."""
        self._selection = selection
        self._permitted = permitted
        self._generation = -1

    def servers(self) -> list[str]:
        """The servers of which anything may be shown, in order."""
        if self.alone is not None:
            return [self.alone] if self.alone in set(self._servers()) else []
        touched = (server for server in self._servers() if self._selection.touches(server))
        return sorted(server for server in touched if self._permitted.touches(server))

    def page(self, kind: Kind, cursor: object) -> tuple[msgspec.Raw, str | None]:
        """The items of a page, encoded, and the cursor of the next. Raises `ValueError` for a cursor that is none."""
        shown = self._now(kind)
        after = "" if cursor is None else _name_of(kind, cursor)
        known = shown.pages.get(after)
        return known if known is not None else self._page(kind, shown, after)

    def encoded(self, kind: Kind, cursor: object, variant: Hashable, make: Make) -> memoryview:
        """What `make` makes of a page, encoded once for each variant of it. Raises `ValueError` as `page` does."""
        shown = self._now(kind)
        if cursor is not None and not isinstance(cursor, str):
            raise ValueError("no cursor of ours")
        known = shown.encoded.get((cursor, variant))
        if known is None:
            known = memoryview(encode(make(*self.page(kind, cursor))))
            if len(shown.encoded) <= VARIANTS * (1 + len(shown.items) // PAGE):
                shown.encoded[cursor, variant] = known
        return known

    def complete(self, kind: Kind) -> bool:
        """Whether every server has said what it has of this kind."""
        shown = self._now(kind)
        if not shown.complete:
            shown.complete = not self.missing(kind)
        return shown.complete

    def missing(self, kind: Kind) -> list[str]:
        """The servers that have not said yet what they have of this kind."""
        return [server for server in self.servers() if not self._catalog.listed(server, kind)]

    def owner(self, name: object) -> str | None:
        """The server that a name belongs to, be the item known or not; None where the name does not say."""
        if not isinstance(name, str):
            return None
        if self.alone is not None:
            return self.alone
        renamed = (real for real, shown in self._selection.renames.items() if shown == name)
        ref = names.parse(next(renamed, name))
        return ref.server if ref is not None and ref.server in self.servers() else None

    def find(self, kind: Kind, name: object) -> Item | None:
        """The item that clients know by this name."""
        return self._now(kind).items.get(name) if isinstance(name, str) else None

    def items(self, kind: Kind) -> Mapping[str, Item]:
        return self._now(kind).items

    def server_of_uri(self, uri: str) -> tuple[str, str] | None:
        """Which server reads this URI, and what it calls it: one that lists it, has a template for it, or is the only
        one with resources at all."""
        listed = self.find("resources", uri)
        if listed is not None:
            return listed.server, listed.key
        if uri.startswith(OUR_SCHEME):
            server, _, inner = uri.removeprefix(OUR_SCHEME).partition("/")
            return (server, inner) if server in self.servers() and self._all_of(server) else None
        fitting = [item for item in self.items("templates").values() if uri.startswith(_literal(item))]
        if fitting:
            return max(fitting, key=lambda item: len(_literal(item))).server, uri  # the one that says most about it
        candidates = {item.server for kind in ("resources", "templates") for item in self.items(kind).values()}
        if self.alone is not None and self.servers():
            candidates = {self.alone}
        return (candidates.pop(), uri) if len(candidates) == 1 else None

    def snapshot(self, kind: Kind) -> tuple[tuple[str, Item], ...]:
        """What is shown now, to be compared with what is shown later; items that stay are the same objects."""
        return tuple(self._now(kind).items.items())

    # -- making it ----------------------------------------------------------------------------------------------------

    def _now(self, kind: Kind) -> _Shown:
        if self._generation != self._catalog.generation:
            self._generation = self._catalog.generation
            self._shown = {}
        if kind not in self._shown:
            self._shown[kind] = _Shown(dict(self._named(kind)))
        return self._shown[kind]

    def _named(self, kind: Kind) -> Iterable[tuple[str, Item]]:
        taken: set[str] = set()
        for server in self.servers():
            for item in self._catalog.items(kind, server):
                if self._chosen(kind, item):
                    name = self._name(kind, item, taken)
                    taken.add(name)
                    yield name, item

    def _chosen(self, kind: Kind, item: Item) -> bool:
        if kind in ("tools", "prompts"):
            name = f"{item.server}.{item.key}"
            return name in self._selection and name in self._permitted
        return self._all_of(item.server)

    def _all_of(self, server: str) -> bool:
        return self._selection.whole(server) and self._permitted.whole(server)

    def _name(self, kind: Kind, item: Item, taken: set[str]) -> str:
        if kind in ("resources", "templates"):
            return item.key if item.key not in taken else f"{OUR_SCHEME}{item.server}/{item.key}"
        if self.alone is not None:
            return item.key
        renamed = self._selection.renames.get(f"{item.server}.{item.key}")
        usual = item.model_name if isinstance(item, Tool) else names.for_models_of(item.server, item.key)
        name = renamed if renamed is not None and renamed not in taken else usual
        return name if name not in taken else names.marked(usual, item.server, item.key)

    def _page(self, kind: Kind, shown: _Shown, after: str) -> tuple[msgspec.Raw, str | None]:
        all_names = list(shown.items)
        begin = 0
        if after:
            if after not in shown.items:
                raise ValueError("the cursor is of a list that has changed")
            begin = all_names.index(after) + 1
        chosen = all_names[begin : begin + PAGE]
        raw = msgspec.Raw(encode([self._raw(kind, name, shown.items[name]) for name in chosen]))
        more = begin + PAGE < len(all_names)
        page = (raw, _cursor(kind, chosen[-1]) if more else None)
        if begin % PAGE == 0:  # whoever makes up cursors of his own does not fill our memory
            shown.pages[after] = page
        return page

    def _raw(self, kind: Kind, name: str, item: Item) -> Json:
        raw = item.raw
        if raw.get(_NAMED[kind]) != name:
            raw = {**raw, _NAMED[kind]: name}
        said = self._selection.descriptions.get(f"{item.server}.{item.key}")
        return raw if said is None else {**raw, "description": said}


def _literal(template: Item) -> str:
    """The beginning that all URIs of a template have."""
    return template.key.partition("{")[0]


def _cursor(kind: Kind, name: str) -> str:
    return base64.urlsafe_b64encode(f"{kind}\0{name}".encode()).decode()


def _name_of(kind: Kind, cursor: Any) -> str:
    try:
        found, _, name = base64.urlsafe_b64decode(cursor).decode().partition("\0")
    except (TypeError, ValueError, binascii.Error):
        raise ValueError("no cursor of ours") from None
    if found != kind or not name:
        raise ValueError("no cursor of ours")
    return name
