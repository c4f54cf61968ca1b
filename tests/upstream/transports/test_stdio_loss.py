"""A link that ends stops sending: what is reported as not sent never arrives."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from toolway.errors import Certainty
from toolway.hub.hub import Hub
from toolway.testing import fake_server
from toolway.types import CallState
from toolway.upstream.transport import Disconnect, TransportError
from toolway.upstream.transports.stdio import StdioTransport

pytestmark = pytest.mark.anyio


async def test_queued_calls_never_run_after_link_ends(tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    async with Hub({"fake": fake_server(effects=str(effects))}, catalog_storage=None) as hub:
        await hub.wait_ready(timeout=30)
        session = hub._core._upstreams.upstreams["fake"].session
        assert session is not None and isinstance(session.transport, StdioTransport)
        attempts = [CallState() for _ in range(20)]
        calls = [
            asyncio.create_task(session.request("tools/call", _counter(number), attempt))
            for number, attempt in enumerate(attempts)
        ]
        await asyncio.sleep(0)  # all have written, the first at once and the others to leave with the end of the turn
        session.transport._disconnect(Disconnect("a fault", "E-FRAME-BAD"))
        results = await asyncio.gather(*calls, return_exceptions=True)
        unsent = {
            f"n{number}"
            for number, result in enumerate(results)
            if isinstance(result, TransportError) and result.certainty is Certainty.NOT_SENT
        }
        assert len(unsent) >= 18, results
        await asyncio.sleep(0.5)
        seen = effects.read_text() if effects.exists() else ""
        executed = {line.split("\t")[1] for line in seen.splitlines()}
        assert not executed & unsent


def _counter(number: int) -> dict[str, object]:
    return {"name": "counter", "arguments": {"nonce": f"n{number}"}}
