"""Sessions of the handshake era: how they start, their caller, and how they end."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from tests.gateway.bridge_lab import OLD_WORDS, Json, Raw, full, made, until
from toolway.gateway.principals import FileApiKeyStore
from toolway.testing import fake_server

pytestmark = [pytest.mark.anyio, OLD_WORDS]


@pytest.mark.parametrize("version", HANDSHAKE_PROTOCOL_VERSIONS)
async def test_every_legacy_revision_is_supported(version: str) -> None:
    async with full("modern", "http") as lab, lab.raw() as raw:
        begun = (await raw.initialize(version)).result
        assert begun["protocolVersion"] == version and begun["serverInfo"]["name"] == "full"
        assert (await raw.request("tools/call", {"name": "echo", "arguments": {"text": "hi"}})).result["content"]
        assert (await raw.request("ping")).result == {}


@pytest.mark.parametrize("version", ["0.1.0", "1999-01-01", "2026-07-28", ""])
@pytest.mark.promise("D5")
async def test_unsupported_revision_is_offered_the_latest(version: object) -> None:
    async with full("legacy", "http") as lab, lab.raw() as raw:
        answer = await raw.request("initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": {}})
        assert answer.result["protocolVersion"] == "2025-11-25"


@pytest.mark.promise("D12")
async def test_only_protocol_capabilities_are_announced() -> None:
    known = {"tools", "prompts", "resources", "completions", "logging", "tasks", "extensions"}
    async with full("legacy", "http") as lab, lab.raw("") as raw:
        assert (await raw.initialize("2025-11-25")).result["capabilities"].keys() <= known


async def test_initialize_without_a_revision_starts_no_session() -> None:
    async with full("legacy", "http") as lab, lab.raw() as raw:
        for params in ({}, {"protocolVersion": None}, {"protocolVersion": 7}):
            refused = await raw.request("initialize", params)
            assert refused.status == 400 and refused.error["code"] == -32602
            assert "mcp-session-id" not in refused.headers


@pytest.mark.attack("held-24")
@pytest.mark.attack("held-25")
async def test_session_works_only_for_its_caller_and_endpoint(tmp_path: Path) -> None:
    keyring = FileApiKeyStore(tmp_path / "keys.json", "tw_owner")
    mine, other = made(keyring, "mine"), made(keyring, "other")
    async with full("legacy", "http", keyring=keyring) as lab, lab.raw(token=mine) as raw:
        await raw.initialize()
        for endpoint, token in (("server/full", other), ("server/full", "tw_owner"), ("", mine)):
            async with lab.raw(endpoint, token) as stranger:
                stranger.session = raw.session
                assert (await stranger.request("tools/list")).status == 404
                deleted = await stranger.http.delete(stranger.url, headers=stranger.headers())
                assert deleted.status_code == 404
        assert (await raw.request("tools/list")).status == 200
        raw.session = f"{raw.session}x"
        assert (await raw.request("tools/list")).status == 404
        named = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        fields = raw.headers()
        del fields["mcp-session-id"]
        assert (await raw.post(named, fields)).status == 400


async def test_session_ends_when_its_client_deletes_it() -> None:
    async with full("legacy", "http") as lab, lab.raw() as raw:
        await raw.initialize()
        held = asyncio.create_task(raw.request("tools/call", {"name": "hold", "arguments": {}}))
        await until(lambda: lab.fakes["full"].stats.calls.get("hold"))
        assert (await raw.http.delete(raw.url, headers=raw.headers())).status_code == 204
        assert (await raw.request("tools/list")).status == 404
        await until(lambda: lab.fakes["full"].stats.cancelled)  # what it was doing ends with it
        await asyncio.gather(held, return_exceptions=True)


async def test_request_id_in_use_is_rejected() -> None:
    async with full("legacy", "http") as lab, lab.raw() as raw:
        await raw.initialize()
        body = {"jsonrpc": "2.0", "id": "same", "method": "tools/call", "params": {"name": "hold", "arguments": {}}}
        held = asyncio.create_task(raw.post(body, raw.headers()))
        await until(lambda: lab.fakes["full"].stats.calls.get("hold"))
        assert "already in use" in (await raw.post(body, raw.headers())).error["message"]
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)


# -- two processes ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(config: Path, state: Path) -> AsyncIterator[str]:
    """A gateway as its own process; its URL."""
    command = [sys.executable, "-m", "toolway.cli", "serve", "--config", str(config), "--port", "0", "--no-auth"]
    process = await asyncio.create_subprocess_exec(
        *command,
        "--drain-delay",
        "0",
        "--json",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "TOOLWAY_STATE": str(state)},
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            said = await process.stdout.readuntil(b"}\n")
        url: str = json.loads(said)["url"]
        yield url
    finally:
        process.terminate()
        async with asyncio.timeout(30):
            await process.wait()


async def test_session_continues_in_another_process_with_the_key(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"fake": fake_server(era="legacy")}}))
    call: Json = {"name": "fake__echo", "arguments": {"text": "hi"}}
    async with (
        serving(config, tmp_path / "state") as one,
        serving(config, tmp_path / "state") as two,
        serving(config, tmp_path / "other") as stranger,
        httpx2.AsyncClient(trust_env=False, timeout=60) as http,
    ):
        first, second, third = (Raw(http, url) for url in (one, two, stranger))
        await first.initialize()
        second.session = third.session = first.session
        for each in (first, second):
            assert (await each.request("tools/call", call)).result["content"][0]["text"] == "hi"
        assert (await third.request("tools/call", call)).status == 404  # it has another key
        assert (await second.http.delete(two, headers=second.headers())).status_code == 204
        assert (await second.request("tools/list")).status == 404
