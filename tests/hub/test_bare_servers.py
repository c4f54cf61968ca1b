"""Servers without a handshake: used by the hub, the command line and the gateway like any other."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from toolway import CallTimeout, Hub, ProtocolError
from toolway.testing import FakeHttp, fake_server
from toolway.upstream import negotiation

pytestmark = pytest.mark.anyio

SCRIPT = Path(__file__).with_name("bare_server.py")


def template(log: Path, **entry: Any) -> dict[str, Any]:
    """An entry for the server that users make from a template."""
    return {"command": sys.executable, "args": [str(SCRIPT), "--log", str(log)], **entry}


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.promise("C2", "A2")
async def test_bare_server_can_be_used(tmp_path: Path) -> None:
    async with Hub({"mail": template(tmp_path / "log")}) as hub:
        assert {tool.name for tool in await hub.list_tools()} >= {"create_issue", "result_field"}
        result = await hub.call_tool("mail.create_issue", {"title": "x"})
        assert result.data == {"url": "https://tracker.example/x", "number": 123}
        assert json.loads(result.text) == result.data
        assert not result.is_error
        status = hub.status()["mail"]
        assert (status.state, status.era, status.protocol) == ("ready", "bare", None)
        assert status.why == "ready, without a handshake (era bare)"


@pytest.mark.promise("C2")
async def test_bare_server_gets_requests_only_and_both_name_fields(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with Hub({"mail": template(log, era="bare")}) as hub:
        await hub.call_tool("mail.result_field")
    sent = lines(log)
    assert {each["method"] for each in sent} == {"tools/list", "tools/call"}  # no probe, no notification
    assert all("id" in each for each in sent)
    assert sent[-1]["params"] == {"name": "result_field", "tool": "result_field", "arguments": {}}


@pytest.mark.promise("A2")
async def test_legacy_server_may_return_a_plain_object(tmp_path: Path) -> None:
    entry = template(tmp_path / "log")
    async with Hub({"mail": {**entry, "args": [*entry["args"], "--handshake"]}}) as hub:
        result = await hub.call_tool("mail.create_issue", {"title": "x"})
        assert hub.status()["mail"].era == "legacy"
        assert result.data == json.loads(result.text) == {"url": "https://tracker.example/x", "number": 123}
        with pytest.raises(ProtocolError):  # MCP demands an object
            await hub.call_tool("mail.many")


async def test_results_of_any_type_and_errors_are_passed_on(tmp_path: Path) -> None:
    async with Hub({"mail": template(tmp_path / "log")}) as hub:
        many = await hub.call_tool("mail.many")
        assert (many.structured_content, many.data) == (None, [1, {"two": 2}])
        nothing = await hub.call_tool("mail.nothing")
        assert (nothing.text, nothing.data) == ("null", None)
        with pytest.raises(ProtocolError) as caught:
            await hub.call_tool("mail.explode")
        assert (caught.value.rpc_code, caught.value.executed) == (-32603, "unknown")
        assert caught.value.detail == "Internal error: boom"
        assert (await hub.call_tool("mail.result_field", {"a": 1})).data == {"result_field": "value", "a": 1}


async def test_server_that_ignores_handshake_is_remembered_as_bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(negotiation, "DISCOVER_GRACE_S", 0.5)
    async with Hub({"quiet": fake_server("ignores_unknown", era="bare")}) as hub:
        assert (await hub.call_tool("quiet.echo", {"text": "hi"})).data == {"text": "hi"}
        monkeypatch.setattr(negotiation, "DISCOVER_GRACE_S", 100.0)  # a second search would not end in time
        before = hub.status()["quiet"].pid
        hub.restart_server("quiet")
        while hub.status()["quiet"].pid in (None, before):
            await asyncio.sleep(0.01)
        assert (await hub.call_tool("quiet.echo", {"text": "hi"}, timeout=20)).data == {"text": "hi"}
        assert hub.status()["quiet"].era == "bare"


@pytest.mark.promise("A8")
@pytest.mark.parametrize("setting", ["auto", "bare"])
async def test_bare_url_server_is_used_with_post_only(setting: str) -> None:
    async with FakeHttp(era="bare") as server, Hub({"web": {"url": server.url, "era": setting}}) as hub:
        assert (await hub.call_tool("web.add", {"a": 1, "b": 2})).data == {"text": "3", "sum": 3}
        assert hub.status()["web"].era == "bare"
        probes = {"server/discover", "initialize"} if setting == "auto" else set()
        assert set(server.stats.requests) == {"tools/list", "tools/call"} | probes


async def test_timed_out_call_is_unknown_and_not_cancelled(tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    async with Hub({"slow": fake_server(era="bare", effects=str(effects))}) as hub:
        await hub.wait_ready("slow")
        with pytest.raises(CallTimeout) as caught:
            await hub.call_tool("slow.counter", {"seconds": 5}, timeout=0.5)
        assert caught.value.executed == "unknown"
        running = asyncio.ensure_future(hub.call_tool("slow.counter", {"seconds": 5}))
        while len(effects.read_text().splitlines()) < 2:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        seen = (await hub.call_tool("slow.stats")).data["requests"]
        assert set(seen) == {"server/discover", "initialize", "tools/list", "tools/call"}


async def test_health_check_uses_tools_list() -> None:
    async with FakeHttp(era="bare") as server, Hub({"web": server.url}) as hub:
        await hub.wait_ready("web")
        before = server.stats.requests["tools/list"]
        await hub._core._upstreams.upstreams["web"].ping()
        assert server.stats.requests["tools/list"] == before + 1
        assert "ping" not in server.stats.requests
