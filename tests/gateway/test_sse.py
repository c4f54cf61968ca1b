"""`/sse`: clients of 2024-11-05, by the SDK's own."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.sse import sse_client

from tests.gateway.bridge_lab import OLD_WORDS, Lab, full, text, until
from toolway import CallTimeout, Hub, Server
from toolway.gateway.mcp.view import KINDS

pytestmark = [pytest.mark.anyio, OLD_WORDS]


def client(base: str, **options: Any) -> Client:
    def plain(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(trust_env=False, headers=headers, timeout=timeout, auth=auth)

    return Client(sse_client(f"{base}/sse", httpx_client_factory=plain), mode="legacy", **options)


SERVERS = pytest.mark.parametrize(("era", "transport"), [("modern", "http"), ("legacy", "http"), ("legacy", "sse")])


@SERVERS
async def test_sse_clients_list_call_and_are_asked(era: str, transport: str) -> None:
    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async with full(era, transport) as lab:
        await listed(lab)
        async with client(lab.base, elicitation_callback=elicit) as old:
            await use(old)


async def listed(lab: Lab) -> None:
    """A notification while the SDK's client leaves makes it fail."""
    for kind in KINDS:
        await lab.hub.lists.waits.wait_known(["full"], kind, 30)


async def use(old: Client) -> None:
    assert "full__echo" in {tool.name for tool in (await old.list_tools()).tools}
    assert text(await old.call_tool("full__echo", {"text": "hi"})) == "hi"
    assert "Ada" in text(await old.call_tool("full__elicit"))


async def test_ended_sse_stream_cancels_its_calls() -> None:
    async with full("legacy", "http") as lab:
        await listed(lab)
        async with client(lab.base) as old:
            held = asyncio.create_task(old.call_tool("full__hold"))
            await until(lambda: lab.fakes["full"].stats.calls.get("hold"))
            held.cancel()
            await asyncio.gather(held, return_exceptions=True)
        await until(lambda: lab.fakes["full"].stats.cancelled)


async def test_post_to_an_unknown_stream_gets_404() -> None:
    async with full("legacy", "http") as lab, httpx2.AsyncClient(trust_env=False) as http:
        body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        for session in ("", "?session=", "?session=made-up"):
            assert (await http.post(f"{lab.base}/messages{session}", json=body)).status_code == 404


@SERVERS
async def test_hub_works_as_an_sse_client(era: str, transport: str) -> None:
    """Our own two ends of HTTP+SSE, with every kind of server behind them."""
    reports: list[float] = []

    async def elicit(server: str, params: Any) -> dict[str, Any]:
        return {"action": "accept", "content": {"name": "Ada"}}

    async with full(era, transport) as lab:
        ours = Hub({"gate": f"{lab.base}/sse"}, catalog_storage=None, elicitation_callback=elicit)
        async with ours:
            await ours.wait_ready("gate", timeout=20)
            assert (ours.status()["gate"].transport, ours.status()["gate"].era) == ("sse", "legacy")
            said = await asyncio.gather(*(ours.call_tool("gate.full__echo", {"text": str(n)}) for n in range(50)))
            assert [reply.text for reply in said] == [str(n) for n in range(50)]
            assert "Ada" in (await ours.call_tool("gate.full__elicit")).text
            await ours.call_tool("gate.full__progress", {"n": 3}, progress_callback=lambda p, t, m: reports.append(p))
            assert len(reports) == 3
            with pytest.raises(CallTimeout):
                await ours.call_tool("gate.full__hold", timeout=0.5)
            await until(lambda: lab.fakes["full"].stats.cancelled)


async def test_hub_reconnects_after_its_stream_ended() -> None:
    async with full("legacy", "http") as lab, Hub({"gate": Server(url=f"{lab.base}/sse", sse=True)}) as ours:
        await ours.wait_ready("gate", timeout=20)
        for _, stream, _ in list(lab.gateway.legacy_sse._streams.values()):
            stream.close()
        await until(lambda: ours.status()["gate"].restarts == 1 and ours.status()["gate"].state == "ready")
        assert (await ours.call_tool("gate.full__echo", {"text": "hi"})).text == "hi"
