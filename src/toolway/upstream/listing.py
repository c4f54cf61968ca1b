"""All pages of a list, within limits: a server that never ends its list does not hold us."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from toolway.events import Kind
from toolway.model import Json
from toolway.protocol.eras import LISTS

MAX_PAGES: Final = 100
MAX_ITEMS: Final[Mapping[Kind, int]] = {"tools": 1000, "prompts": 1000, "resources": 10_000, "templates": 10_000}

Ask = Callable[[str, Json], Awaitable[Json]]


def offered(kind: Kind, capabilities: Json) -> bool:
    """Whether a server with these capabilities has this list at all."""
    return isinstance(capabilities.get(LISTS[kind][0]), dict)


async def fetch(ask: Ask, kind: Kind, tools: int = MAX_ITEMS["tools"]) -> tuple[list[Any], list[str]]:
    """The items as the server sent them, and what was wrong with the list as a whole. `tools` is how many of those are
    taken."""
    most = tools if kind == "tools" else MAX_ITEMS[kind]
    _, method, key = LISTS[kind]
    items: list[Any] = []
    seen: set[str] = set()
    params: Json = {}
    for _ in range(MAX_PAGES):
        page = await ask(method, params)
        found = page.get(key)
        if not isinstance(found, list):
            return items, [f"{method} answered without `{key}`"]
        items.extend(found)
        if len(items) > most:
            more = "; raise `limits.tools` to have more" if kind == "tools" else ""
            return items[:most], [f"{method} has more than {most} items; the rest is left out{more}"]
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str):
            return items, []
        if cursor in seen:
            return items, [f"{method} repeats the cursor {cursor[:40]!r}; the walk ended there"]
        seen.add(cursor)
        params = {"cursor": cursor}
    return items, [f"{method} has more than {MAX_PAGES} pages; the rest is left out"]
