"""The Hub as its users see it, over real processes, in both eras."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.timing import within
from toolway import Hub, NotFound, ProtocolError, Server, ServerUnavailable, ToolError, ToolwayError
from toolway.events import CallFinished, CatalogChanged, Connected, EventsMissed, StateChanged
from toolway.hub.sync import SyncHub
from toolway.testing import fake_server
from toolway.types import CallResult

pytestmark = pytest.mark.anyio

both_eras = pytest.mark.parametrize("era", ["modern", "legacy"])


@both_eras
async def test_call_is_answered_and_the_era_is_detected(era: str) -> None:
    async with Hub({"fake": fake_server(era=era)}) as hub:
        reply = await hub.call_tool("fake.echo", {"text": "hello", "nonce": "n1"})
        assert reply.text == "hello"
        assert reply.data["nonce"] == "n1"
        assert (reply.server, reply.name, reply.is_error, reply.attempts) == ("fake", "echo", False, 1)
        status = hub.status()["fake"]
        assert (status.state, status.era) == ("ready", era)
        assert status.pid is not None
        assert status.tools == len(hub.known_tools())


@both_eras
async def test_unknown_fields_survive_list_and_call(era: str) -> None:
    async with Hub({"fake": fake_server(era=era)}) as hub:
        (tool,) = [t for t in await hub.list_tools(server="fake") if t.name == "unknown_fields"]
        assert "category" in tool.annotations
        assert "x-vendor" in tool.raw
        reply = await hub.call_tool("fake.unknown_fields")
        assert any(block["type"] == "video" for block in reply.content)
        assert set(reply.raw) - {"content", "structuredContent", "isError", "_meta", "resultType"}


@both_eras
async def test_all_pages_of_a_list_are_read(era: str) -> None:
    async with Hub({"fake": fake_server(era=era, tools=25, page=4)}) as hub:
        keys = [tool.name for tool in await hub.list_tools(server="fake")]
        assert len(keys) == len(set(keys)) > 25


@both_eras
async def test_prompts_resources_templates_and_completion(era: str) -> None:
    async with Hub({"fake": fake_server(era=era)}) as hub:
        (prompt,) = await hub.list_prompts(server="fake")
        resources = await hub.list_resources(server="fake")
        (template,) = await hub.list_resource_templates(server="fake")
        assert len(resources) == 2
        argument = prompt.raw["arguments"][0]["name"]
        assert (await hub.get_prompt(prompt.qualified_name, {argument: "x"})).messages
        assert (await hub.read_resource(resources[0].uri)).contents
        assert await hub.complete(prompt.qualified_name, argument, "") is not None
        assert await hub.complete(template.uri, "name", "", server="fake") is not None
        with pytest.raises(NotFound):
            await hub.read_resource("nowhere://x")


@both_eras
async def test_progress_reaches_its_own_caller(era: str) -> None:
    async with Hub({"fake": fake_server(era=era)}) as hub:
        seen: dict[int, list[float]] = {1: [], 2: []}
        await asyncio.gather(
            hub.call_tool("fake.progress", {"n": 3}, progress_callback=lambda p, t, m: seen[1].append(p)),
            hub.call_tool("fake.progress", {"n": 5}, progress_callback=lambda p, t, m: seen[2].append(p)),
        )
        assert (len(seen[1]), len(seen[2])) == (3, 5)


@both_eras
async def test_failing_progress_callback_does_not_fail_the_call(era: str, caplog: pytest.LogCaptureFixture) -> None:
    def bad(*_: Any) -> None:
        raise ValueError("mine")

    async with Hub({"fake": fake_server(era=era)}) as hub:
        reply = await hub.call_tool("fake.progress", {"n": 3}, progress_callback=bad)
        assert not reply.is_error
    assert "progress callback" in caplog.text


@both_eras
async def test_server_requests_are_answered_by_callbacks(era: str) -> None:
    def elicit(server: str, params: dict[str, Any]) -> dict[str, Any]:
        return {"action": "accept", "content": {"name": f"for {server}"}}

    async def sample(server: str, params: dict[str, Any]) -> dict[str, Any]:
        return {"role": "assistant", "content": {"type": "text", "text": "sampled"}, "model": "m"}

    async with Hub(
        {"fake": fake_server(era=era)},
        elicitation_callback=elicit,
        sampling_callback=sample,
        list_roots_callback=["/some/where"],
    ) as hub:
        assert "for fake" in (await hub.call_tool("fake.elicit", {"rounds": 2})).text
        assert "sampled" in (await hub.call_tool("fake.sample")).text
        assert "/some/where" in (await hub.call_tool("fake.roots")).text


@both_eras
async def test_unsupported_server_request_is_reported(era: str) -> None:
    async with Hub({"fake": fake_server(era=era)}) as hub:
        outcome = (
            await asyncio.gather(hub.call_tool("fake.elicit", timeout=30, raise_on_error=False), return_exceptions=True)
        )[0]
        if isinstance(outcome, ProtocolError):
            assert outcome.rpc_code is not None or "nobody" in outcome.detail
        else:
            assert isinstance(outcome, CallResult)
            assert outcome.is_error or "not supported" in outcome.text


@both_eras
@pytest.mark.user_trial("24")
async def test_tool_error_raises_or_is_returned(era: str) -> None:
    async with Hub({"fake": fake_server(era=era)}) as hub:
        for attempts in (None, 1):  # without and with the middleware chain
            with pytest.raises(ToolError, match=r"fake\.fail failed: it broke") as caught:
                await hub.call_tool("fake.fail", {"text": "it broke"}, max_attempts=attempts)
            assert caught.value.executed == "yes" and caught.value.result.is_error
            reply = await hub.call_tool("fake.fail", {"text": "it broke"}, max_attempts=attempts, raise_on_error=False)
            assert (reply.is_error, reply.text) == (True, "it broke")
            with pytest.raises(ToolError):
                reply.raise_for_error()


@both_eras
async def test_cancelled_call_frees_the_link(era: str) -> None:
    async with Hub({"fake": fake_server(era=era)}) as hub:
        await hub.wait_ready("fake")
        call = asyncio.create_task(hub.call_tool("fake.sleep", {"seconds": 30}))
        await asyncio.sleep(0.1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await hub.call_tool("fake.echo", {"text": "still here"})).text == "still here"
        assert hub.status()["fake"].in_flight == 0


@both_eras
async def test_changed_list_is_fetched_again_and_reported(era: str) -> None:
    async with Hub({"fake": fake_server(era=era)}) as hub:
        await hub.list_tools(server="fake")
        await asyncio.sleep(0.2)  # the subscription of the modern era is opened after the start
        events = hub.events()
        before = {tool.name for tool in hub.known_tools()}
        await hub.call_tool("fake.change_tools")
        async with asyncio.timeout(30):
            async for event in events:
                if isinstance(event, CatalogChanged) and event.kind == "tools":
                    break
        assert len({tool.name for tool in hub.known_tools()} - before) == 1


async def test_model_name_reaches_the_same_tool() -> None:
    async with Hub({"my-fake": fake_server()}) as hub:
        await hub.wait_ready()
        assert (await hub.call_tool("my-fake__echo", {"text": "a"})).text == "a"
        (tool,) = [t for t in hub.known_tools() if t.name == "echo"]
        assert (await hub.call_tool(tool.model_name, {"text": "b"})).text == "b"


async def test_unknown_name_suggests_the_closest() -> None:
    async with Hub({"fake": fake_server()}) as hub:
        await hub.wait_ready()
        with pytest.raises(NotFound, match=r"did you mean fake\.echo"):
            await hub.call_tool("fake.ecko")
        with pytest.raises(NotFound, match="did you mean fake"):
            await hub.call_tool("fakee.echo")
        with pytest.raises(NotFound, match="no server has a tool with this name"):
            await hub.call_tool("nothing_like_it")


@pytest.mark.promise("D8")
async def test_name_with_a_colon_suggests_the_right_one() -> None:
    async with Hub({"fake": fake_server()}) as hub:
        await hub.wait_ready()
        with pytest.raises(NotFound, match=r"did you mean fake\.echo") as caught:
            await hub.call_tool("fake:echo", {"text": "x"})
        assert (caught.value.executed, caught.value.code) == ("no", "E-NOT-FOUND")


async def test_unknown_tool_of_a_starting_server_is_not_found() -> None:
    async with Hub({"fake": fake_server("slow_start=0.3")}) as hub:
        with pytest.raises(NotFound):
            await hub.call_tool("fake.nothing")


async def test_failing_server_reports_why() -> None:
    async with Hub({"gone": "no-such-command-here --x", "ends": fake_server("exit_at_start=3")}) as hub:
        with pytest.raises(ServerUnavailable) as missing:
            await hub.call_tool("gone.x")
        assert missing.value.executed == "no"
        assert missing.value.code == "E-STDIO-ENOENT"
        assert "no-such-command-here" in str(missing.value)
        with pytest.raises(ServerUnavailable) as ended:
            await hub.call_tool("ends.x")
        assert "exit code 3" in ended.value.detail
        assert hub.status()["ends"].stderr


async def test_servers_are_added_replaced_and_removed_at_run_time() -> None:
    async with Hub({"one": fake_server()}) as hub:
        await hub.wait_ready()
        first = hub.status()["one"].pid
        await hub.add_server("two", fake_server())
        assert (await hub.call_tool("two.echo", {"text": "x"})).text == "x"
        await hub.add_server("one", fake_server(), replace=True)
        assert hub.status()["one"].pid == first, "the same definition keeps its process"
        await hub.add_server("one", fake_server(era="legacy"), replace=True)
        await hub.call_tool("one.echo", {"text": "x"})
        assert hub.status()["one"].era == "legacy"
        await hub.remove_server("two")
        with pytest.raises(NotFound):
            await hub.call_tool("two.echo")
        assert {tool.server for tool in hub.known_tools()} == {"one"}


async def test_disabled_server_is_not_started() -> None:
    async with Hub({"off": {**fake_server(), "enabled": False}}) as hub:
        assert hub.status()["off"].state == "disabled"
        with pytest.raises(ServerUnavailable):
            await hub.call_tool("off.echo")


async def test_lazy_server_starts_on_first_call_and_stops_when_idle() -> None:
    made = Hub({"fake": fake_server()})._core.servers.entries["fake"]
    server = Server(command=made.command, args=made.args, lazy=True, idle_timeout=0.5)
    async with Hub({"fake": server}) as hub:
        await asyncio.sleep(0.05)
        assert hub.status()["fake"].state == "idle"
        await hub.call_tool("fake.echo", {"text": "x"})
        assert hub.status()["fake"].state == "ready"
        async with asyncio.timeout(30):
            while hub.status()["fake"].state != "idle":
                await asyncio.sleep(0.02)
        assert (await hub.call_tool("fake.echo", {"text": "again"})).text == "again"


async def test_last_known_lists_are_served_at_once_and_marked_stale(tmp_path: Path) -> None:
    async with Hub({"fake": fake_server()}, catalog_storage=tmp_path) as hub:
        known = {tool.qualified_name for tool in await hub.list_tools()}
        await hub.list_prompts()
    slow = fake_server()
    async with Hub({"fake": slow}, catalog_storage=tmp_path) as hub:
        assert {tool.qualified_name for tool in hub.known_tools()} == known
        assert all(tool.stale for tool in hub.known_tools())
        assert hub.status()["fake"].stale
        await hub.list_tools()
        assert not any(tool.stale for tool in hub.known_tools())


async def test_malformed_tool_is_set_aside_and_the_rest_work() -> None:
    async with Hub({"fake": fake_server("malformed_tool")}) as hub:
        assert (await hub.call_tool("fake.echo", {"text": "x"})).text == "x"
        assert hub.status()["fake"].problems


async def test_repeated_cursor_ends_the_listing() -> None:
    async with Hub({"fake": fake_server("repeated_cursor")}) as hub:
        assert await hub.list_tools(server="fake")
        assert any("repeats the cursor" in problem for problem in hub.status()["fake"].problems)


async def test_events_cover_a_call_and_slow_watcher_gets_events_missed() -> None:
    async with Hub({"fake": fake_server()}) as hub:
        events = hub.events()
        await hub.call_tool("fake.echo", {"text": "x"})
        seen: list[Any] = []
        async with asyncio.timeout(30):
            async for event in events:
                seen.append(event)
                if isinstance(event, CallFinished):
                    break
        assert [e.new for e in seen if isinstance(e, StateChanged)] == ["starting", "ready"]
        assert any(isinstance(e, Connected) for e in seen)
        assert (seen[-1].outcome, seen[-1].executed) == ("ok", "yes")
        slow = hub.events()
        for _ in range(1200):
            hub._core.emit(seen[-1])
        assert isinstance(await anext(slow), EventsMissed)


@pytest.mark.promise("A6")
async def test_server_environment_contains_only_allowed_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "x")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid:1")
    entry = {**fake_server(), "env": {"MINE": "1"}}
    async with Hub(
        {"safe": entry, "all": {**entry, "env_policy": "inherit"}, "none": {**entry, "env_policy": "none"}}
    ) as hub:
        env = {name: json.loads((await hub.call_tool(f"{name}.env")).text) for name in ("safe", "all", "none")}
    assert "SECRET_OF_MINE" not in env["safe"]
    assert "HTTPS_PROXY" in env["safe"]
    assert env["safe"]["MINE"] == "1"
    assert "SECRET_OF_MINE" in env["all"]
    assert "HTTPS_PROXY" not in env["none"]


async def test_silent_probe_and_fatal_probe_are_survived() -> None:
    began = time.monotonic()
    async with Hub(
        {"mute": fake_server("silent_probe", era="legacy"), "dies": fake_server("die_on_probe", era="legacy")}
    ) as hub:
        assert (await hub.call_tool("mute.echo", {"text": "x"})).text == "x"
        for _ in range(50):
            if hub.status()["dies"].state == "ready":
                break
            await asyncio.sleep(0.1)
        assert (await hub.call_tool("dies.echo", {"text": "x"})).text == "x"
        assert hub.status()["mute"].era == hub.status()["dies"].era == "legacy"
    assert time.monotonic() - began < within(10)


async def test_first_call_succeeds_when_the_probe_ends_the_server() -> None:
    dies = {**fake_server("die_on_probe", era="legacy"), "lazy": True}
    async with Hub({"dies": dies}, catalog_storage=None) as hub:
        result = await hub.call_tool("dies.echo", {"text": "x"}, max_attempts=1)
        assert (result.text, hub.status()["dies"].era) == ("x", "legacy")


async def test_first_call_fails_after_two_starts_that_end(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    program = f"open({str(starts)!r}, 'a').write('x'); raise SystemExit(3)"
    async with Hub({"ends": Server(command=sys.executable, args=("-c", program), lazy=True)}) as hub:
        with pytest.raises(ServerUnavailable) as caught:
            await hub.call_tool("ends.x", max_attempts=1)
        assert (caught.value.code, caught.value.executed) == ("E-STDIO-EXIT", "no")
        assert starts.read_text().startswith("xx")


async def test_hubs_close_in_any_order() -> None:
    first, second = Hub({"a": fake_server()}), Hub({"b": fake_server()})
    await first.__aenter__()
    await second.__aenter__()
    await asyncio.gather(first.call_tool("a.echo", {"text": "x"}), second.call_tool("b.echo", {"text": "x"}))
    await first.aclose()
    assert (await second.call_tool("b.echo", {"text": "y"})).text == "y"
    await asyncio.create_task(second.aclose())
    await first.aclose()
    with pytest.raises(ToolwayError):
        await first.call_tool("a.echo")


async def test_closing_ends_running_calls_as_unknown(tmp_path: Path) -> None:
    hub = Hub({"fake": fake_server()})
    await hub.__aenter__()
    await hub.wait_ready()
    call = asyncio.create_task(hub.call_tool("fake.sleep", {"seconds": 30}))
    async with asyncio.timeout(30):
        while not hub.status()["fake"].in_flight:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    await hub.aclose()
    with pytest.raises(Exception) as caught:
        await asyncio.wait_for(call, 30)
    assert getattr(caught.value, "executed", None) == "unknown"


def test_sync_hub_has_the_same_names_and_errors() -> None:
    with SyncHub({"fake": fake_server()}) as hub:
        assert hub.call_tool("fake.echo", {"text": "sync"}).text == "sync"
        assert hub.status()["fake"].state == "ready"
        assert len(hub.known_tools()) == len(hub.list_tools())
        with pytest.raises(NotFound):
            hub.call_tool("fake.nothing")
