"""Clients without a handshake at `/mcp`: one POST, one JSON document, and every check that other clients pass."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.gateway.bridge_lab import Json, full, lab, made, pipe_entry
from tests.gateway.program import program
from toolway.gateway.principals import FileApiKeyStore
from toolway.gateway.tool_filter import ToolFilter
from toolway.testing import fake_server

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parent.parent.parent
BARE = {"command": sys.executable, "args": [str(ROOT / "tests/hub/bare_server.py")]}


def body(method: str, **params: Any) -> Json:
    return {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}


async def post(url: str, content: Json, *, token: str = "", **headers: str) -> httpx2.Response:
    fields = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if token:
        fields["authorization"] = f"Bearer {token}"
    async with httpx2.AsyncClient(trust_env=False, timeout=60) as http:
        return await http.post(url, content=json.dumps(content), headers=fields)


@pytest.mark.promise("C15")
@pytest.mark.parametrize("accept", [None, "*/*", "application/json", "application/json, text/event-stream"])
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_one_post_is_answered_with_one_document(era: str, accept: str | None) -> None:
    fields = {} if accept is None else {"accept": accept}
    async with full(era, "http") as gateway:
        url = gateway.url()
        for method, key in (("tools/list", "tools"), ("prompts/list", "prompts"), ("resources/list", "resources")):
            answer = await post(url, body(method), **fields)
            assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
            assert answer.json()["id"] == 7 and answer.json()["result"][key]
            assert "mcp-session-id" not in answer.headers
        called = await post(url, body("tools/call", name="full__echo", arguments={"text": "hi"}), **fields)
        assert called.json()["result"]["content"][0]["text"] == "hi"
        progress = body("tools/call", name="full__progress", arguments={"n": 2}, _meta={"progressToken": 1})
        assert (await post(url, progress, **fields)).headers["content-type"] == "application/json"
        assert (await post(url, body("ping"), **fields)).json()["result"] == {}


async def test_client_without_handshake_calls_a_bare_server() -> None:
    async with lab({"mail": BARE}) as gateway:
        called = await post(gateway.url(), body("tools/call", name="mail__create_issue", arguments={"title": "x"}))
        result = called.json()["result"]
        assert result["structuredContent"] == {"url": "https://tracker.example/x", "number": 123}
        assert json.loads(result["content"][0]["text"]) == result["structuredContent"]


async def test_unsupported_stateless_requests_get_an_error() -> None:
    async with full("legacy", "http") as gateway:
        url = gateway.url()
        for method in ("logging/setLevel", "resources/subscribe", "resources/unsubscribe"):
            refused = (await post(url, body(method))).json()["error"]
            assert refused["code"] == -32600 and "initialize" in refused["message"]
        assert (await post(url, body("tools/dance"))).json()["error"]["code"] == -32601
        assert (await post(url, body("server/discover"))).json()["error"]["code"] == -32601
        unknown = (await post(url, body("tools/call", name="nope"))).json()["error"]
        assert unknown["code"] == -32602 and unknown["data"]["executed"] == "no"
        asked = await post(url, body("tools/call", name="full__elicit", arguments={"rounds": 1}))
        assert "not supported by this client" in asked.text  # the server gets this error
        notice = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await post(url, notice)).status_code == 400


async def test_stateless_requests_pass_every_check(tmp_path: Path) -> None:
    keyring = FileApiKeyStore(tmp_path / "keys.json", "tw_owner")
    scoped, _ = keyring.create_key_sync("scoped", ["sums"], False, 0.0)
    servers = {"a": fake_server(), "b": fake_server()}
    async with lab(servers, keyring=keyring, toolsets={"sums": ToolFilter(("a.add",))}) as gateway:
        url, listed = gateway.url(), body("tools/list")
        assert (await post(url, listed)).status_code == 401
        assert (await post(url, listed, token="wrong")).status_code == 401
        token = made(keyring, "mine")
        assert (await post(url, listed, token=token)).status_code == 200
        assert (await post(url, listed, token=token, origin="https://evil.example")).status_code == 403
        assert (await post(url, listed, token=token, host="evil.example")).status_code in (403, 421)
        assert (await post(url, listed, token=token, content_type="text/plain")).status_code == 415
        tools = (await post(url, listed, token=scoped)).json()["result"]["tools"]
        assert [tool["name"] for tool in tools] == ["a__add"]
        denied = await post(url, body("tools/call", name="b__add", arguments={"a": 1, "b": 2}), token=scoped)
        assert denied.json()["error"]["code"] == -32602
        half = await post(url, listed, token=token, mcp_protocol_version="2025-11-25")
        assert half.status_code == 400 and "initialize" in half.json()["error"]["message"]


async def test_idempotency_key_works_and_lost_connection_cancels() -> None:
    async with full("modern", "http") as gateway:
        url, stats = gateway.url(), gateway.fakes["full"].stats
        counted = body("tools/call", name="full__counter", arguments={})
        both = [await post(url, counted, idempotency_key="k1") for _ in range(2)]
        assert both[0].json()["result"]["structuredContent"] == both[1].json()["result"]["structuredContent"]
        assert stats.calls["counter"] == 1
        held = asyncio.create_task(post(url, body("tools/call", name="full__hold", arguments={})))
        async with asyncio.timeout(30):
            while not stats.calls.get("hold"):
                await asyncio.sleep(0.01)
            held.cancel()
            await asyncio.gather(held, return_exceptions=True)
            while not stats.cancelled:
                await asyncio.sleep(0.01)


@pytest.mark.promise("C15")
async def test_commands_without_handshake_work(tmp_path: Path) -> None:
    commands = re.findall(r"^\$ ((?:curl|echo '\{).*)$", (ROOT / "docs/howto/gateway.md").read_text(), re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["curl", "echo"]
    async with program(tmp_path, {"old": pipe_entry("legacy")}) as gateway:
        environ = {**os.environ, "TOOLWAY_STATE": str(tmp_path / "state"), "TOOLWAY_CONFIG": str(gateway.file)}
        environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
        for command in commands:
            local = command.replace(":8765", f":{gateway.port}")
            done = await asyncio.to_thread(
                subprocess.run, ["bash", "-c", local], env=environ, capture_output=True, timeout=100, check=False
            )
            assert done.returncode == 0, done.stderr.decode()
            assert "old__echo" in {tool["name"] for tool in json.loads(done.stdout)["result"]["tools"]}
        assert await gateway.stop() == 0
