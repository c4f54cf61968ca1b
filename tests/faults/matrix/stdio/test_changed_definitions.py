"""A stdio server whose definitions change with a restart."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.faults.fault_lab import ERAS, lab, odd_server
from toolway import AccessDenied, NotFound

pytestmark = pytest.mark.anyio


@ERAS
@pytest.mark.fault("A25")
async def test_no_call_is_sent_under_definition_changed_by_restart(era: str, tmp_path: Path) -> None:
    async with lab({}) as bench:
        bench.hub._core.lists.use_pins(tmp_path / "pins", lambda server: "hold")
        await bench.add("bad", odd_server(f"changed_after_restart={tmp_path / 'started'}", era=era))
        (await bench.call("bad.counter")).expect(None)
        first = bench.pid("bad")
        under_way = [bench.start("bad.counter") for _ in range(20)]
        os.kill(first, signal.SIGKILL)
        await asyncio.gather(*under_way)
        await bench.until(lambda: (bench.hub.status()["bad"].pid or first) != first, 15)
        await bench.until(lambda: "echo" not in {tool.name for tool in bench.hub.known_tools(server="bad")}, 15)

        for tool, error in (("counter", AccessDenied), ("grab", AccessDenied), ("echo", NotFound)):
            calls = [bench.start(f"bad.{tool}", {"effect": True}, timeout=5) for _ in range(5)]
            for refused in await asyncio.gather(*calls):
                assert bench.happened(refused.expect(error, "no")) == 0
        (await bench.call("bad.bad_read", {"effect": True})).expect(None)  # its definition is the pinned one
        assert {tool.name for tool in bench.hub.known_tools(server="bad")}.isdisjoint({"counter", "grab", "echo"})
