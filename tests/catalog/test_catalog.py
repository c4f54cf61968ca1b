"""The catalog: what is set aside, what is found, and what changed."""

from __future__ import annotations

from typing import Any

from toolway.catalog.catalog import Catalog
from toolway.types import ToolRef

SCHEMA: dict[str, Any] = {"type": "object"}


def catalog(*tools: Any, server: str = "s") -> Catalog:
    made = Catalog()
    made.add_server(server)
    made.replace(server, "tools", tools)
    return made


def tool(name: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": SCHEMA, **more}


def test_malformed_tool_is_skipped_with_reason() -> None:
    deep: Any = {}
    for _ in range(80):
        deep = {"properties": {"x": deep}}
    made = catalog(
        tool("good"),
        "text",
        {"inputSchema": SCHEMA},
        tool("n" * 129),
        tool("bad name"),
        {"name": "no_schema", "inputSchema": None},
        tool("remote", inputSchema={"properties": {"a": {"$ref": "https://example.com/x.json"}}}),
        tool("deep", inputSchema=deep),
        tool("good"),
        tool("long", description="x" * 20_000),
        tool("also_good"),
    )
    assert [t.qualified_name for t in made.tools()] == ["s.good", "s.also_good"]
    assert len(made.problems("s")) == 9
    assert any("refers to another document" in p for p in made.problems("s"))


def test_unknown_fields_of_a_tool_are_kept() -> None:
    raw = tool("t", annotations={"readOnlyHint": True, "category": "x", "n": None}, future=[1])
    assert catalog(raw).tools()[0].raw == raw


def test_local_schema_reference_is_accepted() -> None:
    assert catalog(tool("t", inputSchema={"$ref": "#/$defs/a", "$defs": {"a": {}}})).problems("s") == ()


def test_tool_is_found_by_each_of_its_names() -> None:
    made = catalog(tool("x" * 100), tool("plain"))
    long = made.tools()[0]
    assert made.parse_name(long.model_name) == long.ref
    assert made.parse_name("s.plain") == made.parse_name("s__plain") == ToolRef("s", "plain")
    assert made.parse_name("plain") is None


def test_change_lists_added_removed_and_changed_tools() -> None:
    made = catalog(tool("a"), tool("b"), tool("c"))
    changed = made.replace("s", "tools", [tool("b"), tool("c", description="new"), tool("d")])
    assert changed is not None
    assert (changed.added, changed.removed, changed.changed) == (("d",), ("a",), ("c",))
    assert made.replace("s", "tools", [tool("b"), tool("c", description="new"), tool("d")]) is None


def test_stale_lists_are_served_until_the_server_answers() -> None:
    made = Catalog()
    made.add_server("s")
    made.replace("s", "tools", [tool("a")], stale=True)
    assert made.tools()[0].stale
    assert not made.is_complete("s", "tools")
    made.replace("s", "tools", [tool("a")])
    assert not made.tools()[0].stale
    assert made.is_complete("s", "tools")


def test_removed_server_leaves_no_tools() -> None:
    made = catalog(tool("a"))
    made.remove_server("s")
    assert made.tools() == []
    assert made.tool(ToolRef("s", "a")) is None


def test_tool_its_transport_cannot_carry_is_skipped() -> None:
    made = catalog(tool("a"))
    made.replace("s", "tools", [tool("a"), tool("b")], check_item=lambda t: "no" if t["name"] == "b" else None)
    assert [t.name for t in made.tools()] == ["a"]
    assert made.problems("s") == ("tool 'b' skipped: no",)


def test_name_lookup_follows_changed_lists() -> None:
    made = catalog(tool("x" * 100))
    [long] = made.tools()
    name = long.model_name
    assert made.parse_name(name) == made.parse_name(name) == long.ref
    taken = ToolRef("s", name.removeprefix("s__"))
    made.replace("s", "tools", [tool("x" * 100), tool(taken.tool)])
    assert made.parse_name(name) == taken
    made.remove_server("s")
    assert made.tool(ToolRef("s", "x" * 100)) is None
    assert made.parse_name(name) == taken  # by its form alone


def test_unchanged_list_changes_nothing() -> None:
    catalog = Catalog()
    catalog.add_server("s")
    raw = [{"name": "a", "inputSchema": {}}, {"name": "b", "inputSchema": {}}]
    catalog.replace("s", "tools", raw)
    before, generation = catalog.tools("s"), catalog.generation
    assert catalog.replace("s", "tools", [dict(each) for each in raw]) is None
    assert all(a is b for a, b in zip(before, catalog.tools("s"), strict=True))
    assert catalog.generation == generation
    catalog.replace("s", "tools", list(reversed(raw)))
    assert catalog.generation > generation
