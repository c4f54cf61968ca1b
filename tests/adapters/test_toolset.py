"""The part that all adapters share: selection, names, approval, and the text of every outcome."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from toolway import Hub, ToolwayError
from toolway.adapters import anthropic, gemini, openai, texts
from toolway.adapters.toolset import ModelCall, Toolset
from toolway.errors import AccessDenied, Certainty, InvalidArguments, OutcomeUnknown, Overloaded
from toolway.testing import fake_server
from toolway.types import Effect

pytestmark = pytest.mark.anyio
LONG = "a-server-with-a-very-long-name-that-leaves-little-for-its-tools"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def hub(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hub]:
    effects = tmp_path_factory.mktemp("effects") / "effects"
    servers = {"demo": fake_server(effects=str(effects)), LONG: fake_server()}
    async with Hub(servers, catalog_storage=None) as hub:
        yield hub


async def test_tools_are_selected_by_pattern_server_and_search(hub: Hub) -> None:
    async def names(*patterns: str, **options: str) -> list[str]:
        toolset = await Toolset.load(hub, patterns, **options)  # type: ignore[arg-type]
        return [each.tool.qualified_name for each in toolset.tools]

    assert await names("demo.add", "demo.ec*") == ["demo.echo", "demo.add"]
    assert set(await names("demo")) == {tool.qualified_name for tool in await hub.list_tools(server="demo")}
    assert "demo.fail" not in await names("demo", "!demo.f*")
    assert (await names("demo", search="sum of two numbers"))[0] == "demo.add"


async def test_empty_selection_is_an_error(hub: Hub) -> None:
    with pytest.raises(ToolwayError) as caught:
        await openai.tools(hub, "nothing.*")
    assert caught.value.code == "E-ADAPTER-TOOLS"
    assert "toolway tools" in caught.value.hint


async def test_more_tools_than_openai_accepts_is_an_error() -> None:
    async with Hub({"many": fake_server(tools=150)}, catalog_storage=None) as many:
        with pytest.raises(ToolwayError, match="OpenAI accepts 128"):
            await openai.tools(many)
        assert len((await anthropic.tools(many)).definitions) > 150
        assert len((await openai.tools(many, search="echo a text", limit=7)).chat) == 7


async def test_names_have_64_characters_at_most_and_find_their_tool(hub: Hub) -> None:
    toolset = await Toolset.load(hub, [LONG])
    names = [each.name for each in toolset.tools]
    assert max(map(len, names)) <= 64
    assert len(set(names)) == len(names)
    (adds,) = [each for each in toolset.tools if each.tool.name == "add"]
    assert (await toolset.call(adds.name, {"a": 20, "b": 22})).text == "42"


async def test_tools_with_equal_names_get_different_names(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from toolway.catalog.catalog import Tool

    monkeypatch.setattr(Tool, "model_name", property(lambda self: "the_same"))
    toolset = await Toolset.load(hub, ["demo.add", "demo.echo", "demo.fail"])
    assert len({each.name for each in toolset.tools}) == 3
    assert [toolset.find(each.name) for each in toolset.tools] == toolset.tools


async def test_unselected_tool_is_not_called(hub: Hub) -> None:
    toolset = await Toolset.load(hub, ["demo.add"])
    reply = await toolset.call("demo__counter", {"call": "x"})
    assert (reply.is_error, reply.executed) == (True, "no")
    assert reply.text == ("No tool is named 'demo__counter'. It did not run. Use one of: demo__add. [E-NOT-FOUND]")
    assert (await toolset.call("demo.counter", {})).executed == "no"
    assert (await toolset.call("demo.add", {"a": 1, "b": 1})).text == "2"


@pytest.mark.user_trial("24")
async def test_tool_failure_is_returned_as_text(hub: Hub) -> None:
    reply = await (await Toolset.load(hub, ["demo.fail"])).call("demo__fail", {"text": "the disk is full"})
    assert (reply.text, reply.is_error, reply.executed, reply.error) == ("the disk is full", True, "yes", None)
    assert reply.result is not None and reply.result.is_error


@pytest.mark.parametrize("arguments", ['{"a": 1', "[1]", "7", '"text"', 7])
async def test_non_object_arguments_are_rejected_with_a_reply(hub: Hub, arguments: object) -> None:
    reply = await (await Toolset.load(hub, ["demo.add"])).call("demo__add", arguments)
    assert reply.executed == "no"
    assert "not a JSON object" in reply.text
    assert "Send them again" in reply.text


async def test_invalid_arguments_reply_lists_violations(hub: Hub) -> None:
    reply = await (await Toolset.load(hub, ["demo.add"])).call("demo__add", {"a": "one", "b": 2})
    assert "$.a is a string, expected a number" in reply.text
    assert "It did not run. Fix the arguments and call it again. [E-ARGUMENTS]" in reply.text


async def test_approval_is_required_by_effect_or_pattern(hub: Hub) -> None:
    async def needing(approve: object) -> set[str]:
        toolset = Toolset(hub, ["demo.add", "demo.counter", "demo.fail"], approve=approve)  # type: ignore[arg-type]
        return {each.tool.name for each in await toolset.refresh() if each.needs_approval}

    assert await needing(None) == set()
    assert await needing("unsafe") == {"counter"}
    assert await needing("all") == {"add", "counter", "fail"}
    assert await needing(["demo.f*"]) == {"fail"}
    with pytest.raises(ToolwayError, match="unknown"):
        await needing("some")


async def test_approval_without_callback_is_an_error(hub: Hub) -> None:
    with pytest.raises(ToolwayError) as caught:
        await openai.tools(hub, "demo.*", approve="unsafe")
    assert caught.value.code == "E-ADAPTER-APPROVAL"


async def test_approval_callback_may_be_async_and_give_a_reason(hub: Hub) -> None:
    async def ask(call: object) -> str:
        return "not on a Friday"

    toolset = await Toolset.load(hub, ["demo.counter"], approve="unsafe", ask=ask)
    reply = await toolset.call("demo__counter", {"call": "x"})
    assert "was not approved: not on a Friday. It did not run." in reply.text
    assert (await toolset.call("demo__counter", {"call": "x"}, approved=True)).is_error is False


async def test_unsafe_calls_of_one_turn_run_sequentially(hub: Hub) -> None:
    running: list[str] = []

    async def ask(call: object) -> bool:
        assert not running
        running.append("one")
        await anyio_checkpoint()
        running.clear()
        return True

    toolset = await Toolset.load(hub, ["demo.counter", "demo.add"], approve="unsafe", ask=ask)
    calls = [ModelCall("demo__counter", {"call": str(number)}) for number in range(4)]
    replies = await toolset.call_all([*calls, ModelCall("demo__add", {"a": 1, "b": 2})])
    assert [int(each.text) for each in replies[:4]] == sorted(int(each.text) for each in replies[:4])
    assert replies[4].text == "3"


async def anyio_checkpoint() -> None:
    import asyncio

    await asyncio.sleep(0.01)


def test_error_text_has_cause_outcome_and_next_step() -> None:
    def text(error: ToolwayError, effect: Effect = Effect.UNSAFE) -> str:
        return texts.error_text(error, "shop__order", effect)

    lost = OutcomeUnknown("connection lost", certainty=Certainty.UNKNOWN)
    assert text(lost).startswith(
        "shop__order failed: connection lost. It may have run. Do not call it again until you have checked"
    )
    assert "does no harm" in text(lost, Effect.READ)
    assert "not allowed" in text(AccessDenied("shop.order is denied"))
    assert "after 2 seconds" in text(Overloaded("busy", retry_after=2.0))
    assert "Fix the arguments" in text(InvalidArguments("invalid"))
    long = text(Overloaded("x" * 10_000))
    assert len(long) <= texts.MAX_ERROR_CHARS
    assert "It did not run." in long


async def test_long_result_is_cut_with_a_note(hub: Hub) -> None:
    toolset = await Toolset.load(hub, ["demo.echo"])
    reply = await toolset.call("demo__echo", {"text": "x" * 50_000})
    assert reply.text.endswith(f"(cut: {50_000 - texts.MAX_RESULT_CHARS} more characters)")
    assert reply.result is not None
    assert len(reply.result.text) == 50_000


async def test_missing_framework_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("google", "google.genai", "google.genai.types"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ToolwayError) as caught:
        await gemini.tools(hub)
    error = caught.value
    assert (error.code, error.hint) == ("E-ADAPTER-MISSING", "pip install google-genai")
    assert error.message == "this adapter needs the package google-genai"
    assert error.detail


def test_adapters_import_no_framework() -> None:
    adapters = sorted(path.stem for path in Path(openai.__file__).parent.glob("[a-z]*.py"))
    script = f"""
import sys
import toolway, toolway.hub.hub
assert not [name for name in sys.modules if name.startswith("toolway.adapters")]
import importlib
for name in {adapters!r}:
    importlib.import_module(f"toolway.adapters.{{name}}")
frameworks = {{"openai", "anthropic", "google.genai", "langchain_core", "pydantic_ai", "agents", "llama_index"}}
frameworks |= {{"google.adk", "agent_framework", "smolagents", "autogen_core"}}
print(sorted(frameworks & sys.modules.keys()))
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (result.stdout, result.stderr) == ("[]\n", "")
