"""A call through the gateway makes no more function calls than it did: a figure that a busy machine cannot change."""

from __future__ import annotations

import asyncio
import selectors
import statistics
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import pytest

from bench import in_process, wire
from toolway.gateway.gateway import Gateway
from toolway.gateway.principals import FileApiKeyStore
from toolway.http.dialer import Dialer
from toolway.hub.core import HubCore
from toolway.hub.core_options import Reporting
from toolway.telemetry.metrics import Metrics

CALLS = 50
LOOP = (str(Path(asyncio.__file__).parent), selectors.__file__)  # what the loop does for itself is not counted
#: Function calls during one `echo`, including calls of C functions and some 25 of the harness.
MOST = {"modern": 170, "legacy": 192, "audited": 240}  # 170 is the goal


async def count(calls: int, era: wire.Era, *, audited: bool = False) -> float:
    """Return the number of function calls of one MCP call, with authentication, metrics and dashboard.

    With an audit log, the calls of its threads are not counted.

    It is the median of many calls: what runs in the background is not counted.
    """
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(Dialer, "dial", in_process._dial):
        keyring = FileApiKeyStore(Path(folder) / "keys.json", "tw_" + "a" * 40)
        token, _ = keyring.create_key_sync("bench", None, False, 0.0)
        log = Path(folder) / "audit.sqlite" if audited else None
        async with HubCore({"one": "http://127.0.0.1:9/mcp"}, catalog_storage=None, reporting=Reporting(log)) as hub:
            metrics = Metrics()
            hub.instrumentation.add_sink(metrics)
            gateway = Gateway(hub, b"k" * 32, keyring, metrics=metrics)
            await gateway.listen("127.0.0.1", 0)
            await hub.servers.wait_ready()
            client = in_process.Client(gateway, token, era)
            await client.start_session()
            request = client.request("echo")
            for _ in range(10):
                await client.send(request)
            counted = 0

            def count_call(frame: FrameType, event: str, _: Any) -> None:
                nonlocal counted
                inside = frame.f_code.co_filename.startswith(LOOP)
                counted += not inside and event in ("call", "c_call")

            counts = []
            sys.setprofile(count_call)
            try:
                for _ in range(calls):
                    counted = 0
                    await client.send(request)
                    counts.append(counted)
            finally:
                sys.setprofile(None)
                await gateway.subscriptions.close()
                gateway.http_server.stop_accepting()
                await asyncio.sleep(0)
            assert hub.calls.flights.landed >= calls
            return statistics.median(counts)


@pytest.mark.skipif(sys.getprofile() is not None, reason="a profiler is at work")
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_call_makes_no_more_function_calls_than_before(era: wire.Era) -> None:
    assert asyncio.run(count(CALLS, era)) <= MOST[era]


@pytest.mark.skipif(sys.getprofile() is not None, reason="a profiler is at work")
def test_audited_call_makes_no_more_function_calls() -> None:
    assert asyncio.run(count(CALLS, "modern", audited=True)) <= MOST["audited"]
