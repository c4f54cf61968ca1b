"""What an endpoint shows: names, order, pages, toolsets."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import msgspec
import pytest

from tests.gateway.bridge_lab import Json, Raw, lab
from toolway.catalog.catalog import Catalog
from toolway.gateway import tool_listing
from toolway.gateway.mcp import view as views
from toolway.gateway.mcp.view import EndpointView
from toolway.gateway.tool_filter import ALL_TOOLS, ToolFilter, filter_for_server
from toolway.testing import FakeHttp


def tool(name: str, **more: Any) -> Json:
    return {"name": name, "description": f"does {name}", "inputSchema": {"type": "object"}, **more}


def catalog(**servers: dict[str, list[Json]]) -> Catalog:
    found = Catalog()
    for name, lists in servers.items():
        found.add_server(name)
        for kind in ("tools", "prompts", "resources", "templates"):
            found.replace(name, kind, lists.get(kind, []), [])
    return found


def view(of: Catalog, *servers: str, selection: ToolFilter = ALL_TOOLS, alone: str | None = None) -> EndpointView:
    return EndpointView(of, lambda: servers, selection, ALL_TOOLS, alone)


def listed(of: EndpointView, kind: Any = "tools") -> list[Json]:
    """All pages."""
    found: list[Json] = []
    cursor: str | None = None
    for _ in range(1000):
        raw, cursor = of.get_page(kind, cursor)
        found += msgspec.json.decode(raw)
        if cursor is None:
            return found
    raise AssertionError("the pages do not end")


def names(of: EndpointView, kind: Any = "tools") -> list[str]:
    return [item["name"] for item in listed(of, kind)]


def test_items_are_ordered_by_server_and_then_as_listed() -> None:
    known = catalog(zoo={"tools": [tool("b"), tool("a")]}, ant={"tools": [tool("y"), tool("x")]})
    assert names(view(known, "zoo", "ant")) == ["ant__y", "ant__x", "zoo__b", "zoo__a"]
    assert names(view(known, "zoo", "ant", alone="zoo", selection=filter_for_server("zoo"))) == ["b", "a"]


def test_pages_hold_everything_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "PAGE_SIZE", 3)
    known = catalog(s={"tools": [tool(f"t{number}") for number in range(10)]}, z={"tools": [tool("last")]})
    shown = view(known, "s", "z")
    assert names(shown) == [f"s__t{number}" for number in range(10)] + ["z__last"]
    _, cursor = shown.get_page("tools", None)
    raw, _ = shown.get_page("tools", cursor)
    assert len(msgspec.json.decode(raw)) == 3


@pytest.mark.parametrize("cursor", [7, "", "no base64!", base64.urlsafe_b64encode(b"tools\0gone").decode(), "é"])
def test_invalid_cursor_is_rejected(cursor: object) -> None:
    with pytest.raises(ValueError):
        view(catalog(s={"tools": [tool("t")]}), "s").get_page("tools", cursor)


def test_cursor_of_another_list_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "PAGE_SIZE", 1)
    shown = view(catalog(s={"tools": [tool("a"), tool("b")], "prompts": [{"name": "a"}, {"name": "b"}]}), "s")
    _, cursor = shown.get_page("tools", None)
    with pytest.raises(ValueError):
        shown.get_page("prompts", cursor)


def test_made_up_cursors_use_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "PAGE_SIZE", 10)
    shown = view(catalog(s={"tools": [tool(f"t{number}") for number in range(100)]}), "s")
    for number in range(99):
        shown.get_page("tools", base64.urlsafe_b64encode(f"tools\0s__t{number}".encode()).decode())
    assert len(shown._current_list("tools").pages) <= 10


def test_long_name_is_cut_and_still_resolves() -> None:
    long, other = "x" * 100, "x" * 99 + "y"
    shown = view(catalog(s={"tools": [tool(long), tool(other)]}), "s")
    first, second = names(shown)
    assert len(first) == len(second) == 64 and first != second
    for name, key in ((first, long), (second, other)):
        found = shown.find_item("tools", name)
        assert found is not None and found.name == key


def test_same_uri_of_two_servers_is_qualified() -> None:
    same = {
        "resources": [{"uri": "file:///readme", "name": "r"}],
        "templates": [{"uriTemplate": "db://{id}", "name": "t"}],
    }
    shown = view(catalog(a=same, b=same), "a", "b")
    assert [item["uri"] for item in listed(shown, "resources")] == [
        "toolway:a/file:///readme",
        "toolway:b/file:///readme",
    ]
    assert shown.server_for_uri("file:///readme") is None and shown.server_for_uri("db://7") is None
    assert shown.qualified_uris("db://7") == ["toolway:a/db://7", "toolway:b/db://7"]
    assert shown.server_for_uri("toolway:a/file:///readme") == ("a", "file:///readme")
    assert shown.server_for_uri("toolway:b/file:///readme") == ("b", "file:///readme")
    assert shown.server_for_uri("toolway:b/db://7") == ("b", "db://7")
    assert shown.server_for_uri("toolway:c/db://7") is None
    assert shown.server_for_uri("nowhere://7") is None


def test_catch_all_template_takes_no_uri_of_another_server() -> None:
    known = catalog(
        any={"templates": [{"uriTemplate": "{+path}", "name": "all"}]},
        db={"templates": [{"uriTemplate": "db://tables/{id}", "name": "one"}]},
    )
    shown = view(known, "any", "db")
    assert shown.server_for_uri("db://tables/7") == ("db", "db://tables/7")
    assert list(shown.items("templates")) == ["toolway:any/{+path}", "db://tables/{id}"]
    assert shown.server_for_uri("toolway:any/file:///x") == ("any", "file:///x")
    assert shown.server_for_uri("file:///x") is None
    assert view(known, "any").server_for_uri("file:///x") == ("any", "file:///x")


def test_toolset_selects_renames_and_describes() -> None:
    known = catalog(
        github={"tools": [tool("search"), tool("delete_repo"), tool("delete_file")], "resources": [{"uri": "a://b"}]},
        other={"tools": [tool("search")]},
    )
    toolset = ToolFilter(
        ("github.*", "!github.delete_*", "github.delete_file"),
        {"github.search": "find"},
        {"github.search": "Finds."},
    )
    shown = view(known, "github", "other", selection=toolset)
    assert names(shown) == ["find", "github__delete_file"]
    assert listed(shown)[0]["description"] == "Finds." and listed(shown)[1]["description"] == "does delete_file"
    found = shown.find_item("tools", "find")
    assert found is not None and (found.server, found.name) == ("github", "search")
    assert (
        shown.find_item("tools", "github__search") is None and shown.find_item("tools", "github__delete_repo") is None
    )


@pytest.mark.parametrize("other", ["y", "z"])
@pytest.mark.attack("held-60")
def test_rename_to_a_taken_name_hides_nothing(other: str) -> None:
    known = catalog(a={"tools": [tool("x")]}, b={"tools": [tool("y"), tool("z")]})
    shown = view(known, "a", "b", selection=ToolFilter(renames={"a.x": f"b__{other}", "b.z": "b__y"}))
    found = names(shown)
    assert len(set(found)) == 3
    keys = [item.name for name in found if (item := shown.find_item("tools", name)) is not None]
    assert keys == ["x", "y", "z"]


def test_resources_are_shown_only_for_whole_servers() -> None:
    known = catalog(s={"tools": [tool("t")], "resources": [{"uri": "a://b", "name": "b"}]})
    assert listed(view(known, "s", selection=ToolFilter(("s.*",))), "resources")
    assert not listed(view(known, "s", selection=ToolFilter(("s.t",))), "resources")
    assert view(known, "s", selection=ToolFilter(("s.t",))).server_for_uri("a://b") is None


# -- through the gateway ----------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_endpoint_and_toolset_pages_are_complete_and_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "PAGE_SIZE", 7)
    toolsets = {"few": ToolFilter(("one.e*", "!one.env"), {"one.echo": "say"}, {"one.echo": "Says it."})}
    async with (
        FakeHttp() as one,
        FakeHttp(tools=5) as two,
        lab({"one": {"url": one.url}, "two": {"url": two.url}}, toolsets=toolsets) as found,
        found.raw("") as raw,
        found.raw("few") as few,
    ):
        everything = await _pages(raw)
        assert everything == await _pages(raw) and len(set(everything)) == len(everything) > 30
        assert [name.partition("__")[0] for name in everything] == sorted(n.partition("__")[0] for n in everything)
        assert await _pages(few) == ["say", "one__elicit"]
        said = (await few.call("say", {"text": "hi", "tag": "t"}, capabilities={})).last
        assert said["error"]["code"] == -32020  # what the schema wants in a header must stand there
        assert (await few.call("say", {"text": "hi"})).result["content"][0]["text"] == "hi"
        assert (await few.call("one__echo")).error["code"] == -32602
        assert (await few.call("two__echo")).error["code"] == -32602
        await few.call("one__elicit", {"rounds": 1})
        assert await _pages(few) == ["say", "one__elicit"]  # a call changes no list
        wrong = await raw.ask("tools/list", {"cursor": "made up"})
        assert wrong.error["code"] == -32602


async def _pages(raw: Raw) -> list[str]:
    found: list[str] = []
    cursor: Json = {}
    for _ in range(100):
        page = (await raw.ask("tools/list", cursor)).result
        assert len(page["tools"]) <= 7 and page["cacheScope"] == "private"
        found += [tool["name"] for tool in page["tools"]]
        if "nextCursor" not in page:
            return found
        cursor = {"cursor": page["nextCursor"]}
    raise AssertionError("the pages do not end")


def test_server_is_found_by_tool_name() -> None:
    renamed = ToolFilter(("*",), {"b.t": "short"})
    shown = view(catalog(a={"tools": [tool("t")]}, b={}), "a", "b", selection=renamed)
    assert [shown.server_for(name) for name in ("a__t", "b__later", "short")] == ["a", "b", "b"]
    assert [shown.server_for(name) for name in ("c__t", "plain", 3, None)] == [None] * 4
    assert view(catalog(a={}), "a", alone="a").server_for("anything") == "a"


def test_list_is_encoded_once_until_a_change() -> None:
    of = catalog(a={"tools": [tool("t")]})
    shown, made = view(of, "a"), []

    def make(items: msgspec.Raw, cursor: str | None) -> Json:
        made.append(cursor)
        return {"tools": items}

    first = shown.encoded_page("tools", None, "modern", make)
    assert shown.encoded_page("tools", None, "modern", make) is first
    assert shown.encoded_page("tools", None, "legacy", make) is not first
    assert len(made) == 2 and msgspec.json.decode(first)["tools"][0]["name"] == "a__t"
    of.replace("a", "tools", [tool("u")], [])
    assert msgspec.json.decode(shown.encoded_page("tools", None, "modern", make))["tools"][0]["name"] == "a__u"
    with pytest.raises(ValueError, match="cursor"):
        shown.encoded_page("tools", ["not", "hashable"], "modern", make)


def test_view_is_incomplete_until_every_server_listed_tools() -> None:
    of = catalog(a={"tools": [tool("t")]})
    of.add_server("b")
    shown = view(of, "a", "b")
    assert (shown.is_complete("tools"), shown.unlisted_servers("tools")) == (False, ["b"])
    of.replace("b", "tools", [], [])
    assert (shown.is_complete("tools"), shown.unlisted_servers("tools")) == (True, [])
    of.add_server("c")
    assert view(of, "a", "b", "c").is_complete("tools") is False


# -- large lists -------------------------------------------------------------------------------------------------------


class Slices:
    """Counts how many tools are named or put into a list between two turns of the event loop."""

    def __init__(self, of: EndpointView, monkeypatch: pytest.MonkeyPatch) -> None:
        self.named: list[int] = [0]
        included = of._is_included

        def count(kind: Any, item: Any) -> bool:
            self.named[-1] += 1
            return included(kind, item)

        monkeypatch.setattr(of, "_is_included", count)

    async def run(self, of: EndpointView) -> None:
        """Prepare the view, with a new count in each turn of the loop."""
        preparing = asyncio.create_task(of.prepare())
        while not preparing.done():
            self.named.append(0)
            await asyncio.sleep(0)
        await preparing


def large_catalog(servers: int, tools: int) -> tuple[Catalog, list[str]]:
    known = Catalog()
    every = [f"s{number:04}" for number in range(servers)]
    for name in every:
        known.add_server(name)
        known.replace(name, "tools", [tool(f"t{number}") for number in range(tools)])
    return known, every


@pytest.mark.anyio
@pytest.mark.parametrize(("servers", "tools"), [(300, 12), (1, 3600), (20, 180)])
async def test_large_list_is_built_in_slices(servers: int, tools: int, monkeypatch: pytest.MonkeyPatch) -> None:
    known, every = large_catalog(servers, tools)
    of = view(known, *every, selection=ToolFilter(search=True))
    slices = Slices(of, monkeypatch)
    assert of.needs_preparation
    await slices.run(of)
    assert sum(slices.named) == servers * tools
    assert max(slices.named) <= 2 * tool_listing.SLICE_TOOLS
    assert not of.needs_preparation and len(of.items("tools")) == servers * tools
    assert sum(slices.named) == servers * tools  # nothing was named twice
    assert list(of.items("tools")) == list(view(known, *every).items("tools"))
    assert len(of.tool_names()) == servers * tools and of.tool_names()["s0000", "t1"] == "s0000__t1"


@pytest.mark.anyio
async def test_only_tools_of_a_changed_server_are_renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    known, every = large_catalog(200, 12)
    of = view(known, *every)
    slices = Slices(of, monkeypatch)
    await slices.run(of)
    known.replace("s0007", "tools", [tool("one"), tool("two")])
    slices.named = [0]
    await slices.run(of)
    assert sum(slices.named) == 2
    assert len(of.items("tools")) == 199 * 12 + 2
    known.remove_server("s0003")
    assert len(view(known, *every).items("tools")) == len(of.items("tools")) == 198 * 12 + 2


@pytest.mark.anyio
async def test_list_changed_while_built_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    known, every = large_catalog(200, 12)
    of = view(known, *every)
    preparing = [asyncio.create_task(of.prepare()) for _ in range(3)]
    for turn in range(30):
        await asyncio.sleep(0)
        known.replace(f"s{turn:04}", "tools", [tool(f"new{turn}")])
    preparing[0].cancel()
    await asyncio.gather(*preparing, return_exceptions=True)
    fresh = view(known, *every)
    assert of.items("tools") == fresh.items("tools") and names(of) == names(fresh)


def test_clashing_renames_get_the_same_names_in_every_order() -> None:
    known = catalog(a={"tools": [tool("x"), tool("y")]}, b={"tools": [tool("x"), tool("y")]})
    selection = ToolFilter(renames={"a.x": "find", "b.x": "find", "b.y": "a__y"})
    of = view(known, "a", "b", selection=selection)
    assert list(of.items("tools")) == ["find", "a__y", "b__x", "b__y"]
    known.replace("a", "tools", [tool("y")])
    assert list(of.items("tools")) == ["a__y", "find", "b__y"]
    known.replace("a", "tools", [tool("z")])
    assert list(of.items("tools")) == ["a__z", "find", "a__y"]
