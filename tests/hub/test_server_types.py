"""What `Hub` accepts as a server and as roots. Anything else is an error at once, which names the entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mcp.server import MCPServer

from toolway import ConfigError, Hub, Server, ToolwayError
from toolway.callbacks import FunctionCallbacks
from toolway.testing import fake_server
from toolway.workflows.mcp_tools import WorkflowServer

pytestmark = pytest.mark.anyio
FAKE = [fake_server()["command"], *fake_server()["args"]]


@pytest.mark.user_trial("17")
@pytest.mark.parametrize("words", [FAKE, tuple(FAKE)])
async def test_list_of_words_is_a_command(words: Any) -> None:
    async with Hub({"demo": words}, catalog_storage=None) as hub:
        assert (await hub.call_tool("demo.echo", {"text": "x"})).text == "x"
        await hub.add_server("late", words)
        assert (await hub.call_tool("late.echo", {"text": "y"})).text == "y"


@pytest.mark.user_trial("17")
@pytest.mark.parametrize(
    ("value", "found"),
    [
        (5, "a number"),
        (None, "null"),
        ([], "a list"),
        (["python", 5], "a list of more than strings"),
        (object(), "object"),
        (MCPServer, "type"),
        (WorkflowServer, "type"),
        (Server(instance=object()), "object"),
    ],
)
async def test_unsupported_server_value_names_the_entry(value: Any, found: str) -> None:
    with pytest.raises(ConfigError, match=r"server 'demo': a server must be") as caught:
        Hub({"good": FAKE, "demo": value}, catalog_storage=None)
    assert found in caught.value.detail and caught.value.code == "E-CONFIG-SERVER" and caught.value.hint
    async with Hub({}, catalog_storage=None) as hub:
        with pytest.raises(ConfigError, match="server 'demo'"):
            await hub.add_server("demo", value)


@pytest.mark.user_trial("17")
def test_error_in_an_entry_names_the_entry() -> None:
    with pytest.raises(ConfigError, match="server 'demo': command must be text"):
        Hub({"demo": {"command": 5}})


def test_server_object_is_accepted() -> None:
    server = MCPServer("demo")
    Hub({"demo": server}, catalog_storage=None)
    Hub({"demo": Server(instance=server)}, catalog_storage=None)


@pytest.mark.user_trial("20")
async def test_closed_hub_raises_toolway_error() -> None:
    hub = Hub({"fake": FAKE}, catalog_storage=None)
    for _ in range(2):
        with pytest.raises(ToolwayError, match="the hub is not open") as caught:
            await hub.call_tool("fake.echo", {"text": "x"})
        assert caught.value.code == "E-CLOSED"
        with pytest.raises(ToolwayError, match="the hub is not open"):
            await hub.list_tools()
        async with hub:
            pass


@pytest.mark.user_trial("20")
async def test_root_may_be_path_uri_or_object(tmp_path: Path) -> None:
    roots: list[Any] = [tmp_path, str(tmp_path), "https://x.example/a", {"uri": "file:///b", "name": "B"}]
    answer = await FunctionCallbacks(None, None, roots).handle_request("demo", "roots/list", {})
    assert answer == {
        "roots": [
            {"uri": tmp_path.as_uri()},
            {"uri": tmp_path.as_uri()},
            {"uri": "https://x.example/a"},
            {"uri": "file:///b", "name": "B"},
        ]
    }


@pytest.mark.user_trial("20")
@pytest.mark.parametrize("roots", [5, "file:///a", {"uri": "file:///a"}, [5], [{"url": "file:///a"}], [{"uri": 5}]])
def test_unsupported_root_is_a_config_error(roots: Any) -> None:
    with pytest.raises(ConfigError, match="list_roots_callback must be"):
        Hub({}, list_roots_callback=roots, catalog_storage=None)
