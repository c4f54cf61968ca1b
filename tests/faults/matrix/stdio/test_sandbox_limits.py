"""A server in the sandbox `strict` that keeps taking processes and memory."""

from __future__ import annotations

import asyncio

import pytest

from tests.attacks.test_limits import MIB, attack
from tests.attacks.test_sandbox import needs_bubblewrap
from tests.faults.fault_lab import lab

pytestmark = pytest.mark.anyio


@needs_bubblewrap
@pytest.mark.fault("A21")
@pytest.mark.parametrize("kind", ["fork", "memory"])
async def test_fork_bomb_and_memory_hog_stop_at_sandbox_limits(kind: str) -> None:
    async with lab({}):
        found = await asyncio.to_thread(lambda: attack(kind, 40, 256 * MIB, as_user=True))
    got = int(found["got"].split()[0]) if found["got"] else 0
    assert got < (40 if kind == "fork" else 256), found
