"""Lists: all pages, within limits."""

from __future__ import annotations

import pytest

from toolway.types import Json
from toolway.upstream.lists import MAX_ITEMS, MAX_PAGES, fetch_all_pages, is_list_offered
from toolway.upstream.transport import JSONRPCError

pytestmark = pytest.mark.anyio


class PagedServer:
    """A server that answers with what it was given, page by page."""

    def __init__(self, *pages: Json) -> None:
        self._pages = pages
        self.asked: list[tuple[str, Json]] = []

    async def __call__(self, method: str, params: Json) -> Json:
        self.asked.append((method, params))
        return self._pages[len(self.asked) - 1]


def page(*items: object, cursor: object = None) -> Json:
    return {"tools": list(items)} | ({"nextCursor": cursor} if cursor is not None else {})


async def test_all_pages_are_joined() -> None:
    pages = PagedServer(page(1, 2, cursor="b"), page(cursor="c"), page(3))
    assert await fetch_all_pages(pages, "tools") == ([1, 2, 3], [])
    assert pages.asked == [("tools/list", {}), ("tools/list", {"cursor": "b"}), ("tools/list", {"cursor": "c"})]


@pytest.mark.parametrize(
    ("kind", "method", "key"),
    [
        ("tools", "tools/list", "tools"),
        ("prompts", "prompts/list", "prompts"),
        ("resources", "resources/list", "resources"),
        ("templates", "resources/templates/list", "resourceTemplates"),
    ],
)
async def test_every_kind_has_its_method_and_key(kind, method, key) -> None:
    pages = PagedServer({key: [1]})
    assert await fetch_all_pages(pages, kind) == ([1], [])
    assert pages.asked == [(method, {})]


@pytest.mark.attack("held-56")
async def test_repeated_cursor_ends_the_list() -> None:
    items, problems = await fetch_all_pages(
        PagedServer(page(1, cursor="a"), page(2, cursor="b"), page(3, cursor="a")), "tools"
    )
    assert items == [1, 2, 3]
    assert len(problems) == 1 and "repeats the cursor 'a'" in problems[0]


@pytest.mark.attack("held-56")
async def test_endless_list_stops_after_100_pages() -> None:
    pages = PagedServer(*(page(n, cursor=str(n)) for n in range(200)))
    items, problems = await fetch_all_pages(pages, "tools")
    assert (MAX_PAGES, len(pages.asked), len(items)) == (100, 100, 100)
    assert "more than 100 pages" in problems[0]


@pytest.mark.attack("held-56")
async def test_list_over_limit_is_cut() -> None:
    assert MAX_ITEMS == {"tools": 1000, "prompts": 1000, "resources": 10_000, "templates": 10_000}
    assert await fetch_all_pages(PagedServer(page(*range(1000))), "tools") == (list(range(1000)), [])
    items, problems = await fetch_all_pages(
        PagedServer(page(*range(600), cursor="a"), page(*range(600), cursor="b")), "tools"
    )
    assert len(items) == 1000
    assert "more than 1000 items" in problems[0]


@pytest.mark.parametrize("wrong", [{}, {"tools": None}, {"tools": {}}, {"tools": "x"}, {"Tools": []}])
async def test_page_without_items_ends_list_and_keeps_earlier_pages(wrong) -> None:
    items, problems = await fetch_all_pages(PagedServer(page(1, cursor="a"), wrong), "tools")
    assert (items, problems) == ([1], ["tools/list answered without `tools`"])


@pytest.mark.parametrize("cursor", [7, ["a"], {"a": 1}, True])
async def test_non_string_cursor_ends_the_list(cursor) -> None:
    assert await fetch_all_pages(PagedServer(page(1, cursor=cursor)), "tools") == ([1], [])


async def test_list_error_is_raised() -> None:
    async def refuses(method: str, params: Json) -> Json:
        raise JSONRPCError(-32601, "no")

    with pytest.raises(JSONRPCError):
        await fetch_all_pages(refuses, "tools")


def test_list_is_offered_if_capability_is_declared() -> None:
    assert is_list_offered("tools", {"tools": {}})
    assert is_list_offered("templates", {"resources": {"subscribe": True}})
    assert not is_list_offered("prompts", {"tools": {}})
    wrongs: list[object] = [None, True, [], "yes"]
    for wrong in wrongs:
        assert not is_list_offered("tools", {"tools": wrong})
