"""Suggestions for an unknown tool name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gateway.bridge_lab import lab
from toolway._async import run_at_once
from toolway.catalog.catalog import Tool
from toolway.gateway import near_names
from toolway.gateway.near_names import find_near_names
from toolway.gateway.principals import FileApiKeyStore
from toolway.gateway.tool_filter import ToolFilter
from toolway.testing import FakeHttp

pytestmark = pytest.mark.user_trial("33")


def near(name: str, *visible: str) -> list[str]:
    tools = {each: Tool(each.partition("__")[0], each.partition("__")[2], {"inputSchema": {}}) for each in visible}
    return run_at_once(find_near_names(name, tools))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("add", ["demo__add"]),
        ("demo.add", ["demo__add"]),
        ("Demo__Add", ["demo__add"]),
        ("elsewhere__add", ["demo__add"]),
        ("demo__ad", ["demo__add"]),
        ("serch_issues", ["git__search_issues"]),
        ("git__close", []),
        ("x" * 10_000, []),
        ("", []),
        ("__", []),
    ],
)
def test_near_names_of_an_unknown_tool_are_found(name: str, found: list[str]) -> None:
    assert near(name, "demo__add", "demo__sub", "git__search_issues", "git__create_issue") == found


def test_at_most_three_names_are_suggested() -> None:
    assert len(near("add", *(f"s{number}__add" for number in range(10)))) == 3


def test_name_comparisons_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*(f"s__{number:06}" for number in range(100)), "s__search"]
    assert near("s__serch", *names) == ["s__search"]
    monkeypatch.setattr(near_names, "MAX_COMPARED", 50)
    assert near("s__serch", *names) == [], "the name that fits comes after the bound"


@pytest.mark.anyio
async def test_unknown_tool_error_suggests_only_visible_tools(tmp_path: Path) -> None:
    keyring = FileApiKeyStore(tmp_path / "keys.json", "operator")
    narrow = keyring.create_key_sync("narrow", ["some"], False, 0.0)[0]
    toolsets = {"some": ToolFilter(("demo.add", "demo.echo"))}
    async with FakeHttp() as demo, FakeHttp() as other:
        servers: dict[str, Any] = {"demo": {"url": demo.url}, "other": {"url": other.url, "tools": {"deny": ["add"]}}}
        async with lab(servers, keyring=keyring, toolsets=toolsets) as found:

            async def error(name: str, endpoint: str = "", token: str = "operator") -> dict[str, Any]:
                async with found.raw(endpoint, token) as raw:
                    modern = (await raw.call(name, {"a": 1, "b": 2})).error
                    await raw.initialize()
                    legacy = (await raw.request("tools/call", {"name": name, "arguments": {"a": 1, "b": 2}})).error
                    assert modern == legacy
                    return modern

            suggested = await error("add")
            assert (suggested["code"], suggested["data"]) == (-32602, {"executed": "no"})
            assert suggested["message"] == "Unknown tool: add. Did you mean demo__add?", "the other one is denied"
            both = (await error("counter"))["message"]
            assert both.startswith("Unknown tool: counter. Did you mean ") and both.count("__counter") == 2
            assert (await error("demo__add", "server/demo"))["message"] == (
                "Unknown tool: demo__add. Did you mean add?"
            )
            assert (await error("counter", "some", narrow))["message"] == "Unknown tool: counter"
            assert (await error("demo__counter", "some", narrow))["message"] == "Unknown tool: demo__counter"
            assert (await error("ad", "some", narrow))["message"] == "Unknown tool: ad. Did you mean demo__add?"
