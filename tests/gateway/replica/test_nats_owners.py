"""Owners in processes of their own that are killed or stopped while they work for others."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from tests.cluster.nats_server import nats_server, program
from tests.gateway.replica.nats_lab import call, caller, link_to, owner_process
from toolway.model import Certainty
from toolway.upstream.link import Fault

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(program() is None, reason="there is no nats-server here")]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
async def test_an_owner_that_died_or_hangs_is_known_in_about_a_second_and_other_owners_work_on(
    end: signal.Signals,
) -> None:
    async with (
        nats_server() as server,
        owner_process(server, "a") as ends,
        owner_process(server, "b"),
        caller(server) as way,
    ):
        to_a, to_b = await link_to(way, "a"), await link_to(way, "b")
        requests = [call(seconds=30) for _ in range(3)]
        lost = [asyncio.create_task(to_a.request(request)) for request in requests]
        well = asyncio.create_task(to_b.request(call(seconds=4)))
        await asyncio.sleep(2)
        assert not any(task.done() for task in (*lost, well))
        os.kill(ends, end)
        began = time.monotonic()
        found = await asyncio.gather(*lost, return_exceptions=True)
        assert time.monotonic() - began < 2.0  # less than one, where the machine is not busy
        for fault in found:
            assert isinstance(fault, Fault)
            assert (fault.certainty, fault.code) == (Certainty.C2, "E-OWNER-LOST")
        if end == signal.SIGKILL:
            with pytest.raises(Fault) as absent:
                await to_a.request(call())
            assert absent.value.certainty is Certainty.C0
        assert await well == {"content": []}
