"""Windows of callers that all nodes share, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from toolway.cluster.db.part_database import ClusterDatabase
from toolway.parts.flows.labels import WINDOW_S, LabelledCall, Window
from toolway.parts.flows.store import FlowStore, FlowStoreError

pytestmark = pytest.mark.anyio


def DbFlowStore(engine: AsyncEngine, tenant: str) -> FlowStore:
    return FlowStore(ClusterDatabase(engine, tenant))


async def test_labels_from_all_nodes_share_one_window(engine: AsyncEngine) -> None:
    nodes = [DbFlowStore(engine, "t") for _ in range(3)]

    def add(label: str) -> Window:
        return {label: LabelledCall(f"s.{label}", 100.0)}

    for node, label in zip(nodes, ("private", "untrusted", "sink"), strict=True):
        added = add(label)
        await node.change("key:k", partial(_merge, added), 100.0)
    assert set((await nodes[0].load(100.0))["key:k"]) == {"private", "untrusted", "sink"}
    await nodes[1].change("key:k", lambda window: None, 100.0)  # nothing changes
    assert len((await nodes[2].load(100.0))["key:k"]) == 3
    assert await nodes[0].load(100.0 + WINDOW_S) == {} == await DbFlowStore(engine, "other").load(100.0)
    assert await nodes[0].remove("key:k") and not await nodes[0].remove("key:k")


async def test_concurrent_changes_are_serialized(engine: AsyncEngine) -> None:
    seen: list[int] = []

    def change(window: Window) -> Window:
        seen.append(len(window))
        return {**window, f"label-{len(window)}": LabelledCall("s.t", 100.0)}

    await asyncio.gather(*(DbFlowStore(engine, "t").change("key:k", change, 100.0) for _ in range(4)))
    assert max(seen) == 3 and len((await DbFlowStore(engine, "t").load(100.0))["key:k"]) == 4


async def test_invalid_window_raises(engine: AsyncEngine) -> None:
    store = DbFlowStore(engine, "t")
    await store.change("key:k", lambda window: {"sink": LabelledCall("s.t", 1.0)}, 100.0)
    async with engine.begin() as db:
        await db.execute(text("UPDATE flow_windows SET entries = 'no JSON'"))
    with pytest.raises(FlowStoreError):
        await store.change("key:k", lambda window: window, 100.0)


@pytest.mark.attack("A2-D2")
async def test_damaged_window_affects_no_other_caller(engine: AsyncEngine) -> None:
    flows = DbFlowStore(engine, "t")
    for caller in ("bad", "good"):
        await flows.change(caller, lambda window: {"private": LabelledCall("s.t", 100.0)}, 100.0)
    async with engine.begin() as db:
        await db.execute(text("UPDATE flow_windows SET entries = 'x' WHERE key = 'bad'"))
    assert list(await flows.load(100.0)) == ["good"]
    with pytest.raises(FlowStoreError):
        await flows.change("bad", lambda window: None, 100.0)


def _merge(added: Window, window: Window) -> Window:
    return {**window, **added}
