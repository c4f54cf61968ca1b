"""Owners in their own processes that are killed or stopped while they work for others."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.cluster.nats_server import nats_server, program
from tests.cluster.node.nats_lab import answered, call, caller, link_to, owner_process
from tests.timing import within
from toolway.cluster.nats_rpc.rpc_client import NatsTransport
from toolway.types import Certainty
from toolway.upstream.transport import TransportError

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(program() is None, reason="nats-server is not installed")]

ROOT = Path(__file__).resolve().parents[3]


async def _lost(link: NatsTransport, pid: int, end: signal.Signals) -> None:
    """Three calls of an owner that ends so."""
    waiting = [asyncio.create_task(link.request(call(seconds=30))) for _ in range(3)]
    await asyncio.sleep(1.5)
    assert not any(task.done() for task in waiting)
    os.kill(pid, end)
    began = time.monotonic()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert time.monotonic() - began < within(2.0)  # less than one, where the machine is not busy
    for fault in found:
        assert isinstance(fault, TransportError)
        assert (fault.certainty, fault.code) == (Certainty.UNKNOWN, "E-OWNER-LOST")
    for _ in range(20):
        with pytest.raises(TransportError) as absent:
            await link.request(call())
        assert absent.value.certainty is Certainty.NOT_SENT  # nothing is sent to an owner known to be lost


async def test_dead_or_hung_owner_is_detected_and_others_continue() -> None:
    async with nats_server() as server, caller(server) as way, AsyncExitStack() as stack:
        starting = [owner_process(server, name) for name in ("killed", "stopped", "well")]
        killed, stopped, _ = await asyncio.gather(*(stack.enter_async_context(each) for each in starting))
        to_killed, to_stopped, to_well = [await link_to(way, name) for name in ("killed", "stopped", "well")]
        well = asyncio.create_task(to_well.request(call(seconds=3)))
        await asyncio.gather(_lost(to_killed, killed, signal.SIGKILL), _lost(to_stopped, stopped, signal.SIGSTOP))
        os.kill(stopped, signal.SIGCONT)
        assert await answered(to_stopped) == await well == {"content": []}


@pytest.mark.slow
async def test_nats_rpc_overhead_is_measured() -> None:
    """`make cluster ARGS=nats-rpc` at its shortest; the goal that counts is set in the long form."""
    words = (str(ROOT / "scripts" / "cluster_nats_rpc.py"), "--short", "--goal", "0.1")
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    lines = said.decode().splitlines()
    assert (process.returncode, lines[-1]) == (0, "less than 0.1 of bare NATS: 0 of 3"), said
    assert [line.split()[0] for line in lines if "/s" in line] == ["bare", "ours"] * 3
