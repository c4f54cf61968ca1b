"""A call that one gateway brings to another is counted once, where its client came in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.node.hop_lab import TOKEN, cluster
from toolway.events import AttemptFinished, CallFinished, CallStarted, Event

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class RecordingSink:
    wants_attempts = True

    def __init__(self, wants_forwarded: bool = False) -> None:
        self.wants_forwarded = wants_forwarded
        self.calls: list[CallFinished] = []
        self.events: list[Event] = []

    def on_call(self, event: CallFinished) -> None:
        self.calls.append(event)

    def on_event(self, event: Event) -> None:
        self.events.append(event)


async def test_forwarded_call_is_reported_once_unless_requested(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        owner, other = nodes.owner(), nodes.other()
        here, there, auditor = RecordingSink(), RecordingSink(), RecordingSink(wants_forwarded=True)
        other.hub.instrumentation.add_sink(here)
        owner.hub.instrumentation.add_sink(there)

        async def call() -> None:
            async with other.raw(token=TOKEN) as raw:
                assert (await raw.call("pid")).result

        await call()
        assert len(here.calls) == 1 and there.calls == []
        owner.hub.instrumentation.add_sink(auditor)
        await call()
        assert len(here.calls) == 2 and there.calls == []
        assert [fact.id for fact in auditor.calls] == [here.calls[1].id]
        assert [type(fact) for fact in auditor.events] == [CallStarted, AttemptFinished] and there.events == []
        async with owner.raw(token=TOKEN) as raw:
            assert (await raw.call("pid")).result
        assert len(there.calls) == 1


async def test_node_without_links_gets_posts_and_others_one_connection(tmp_path: Path) -> None:
    """While a cluster is upgraded, nodes of two versions work side by side."""
    async with cluster(tmp_path) as nodes:
        owner, other = nodes.owner(), nodes.other()
        accept, owner.gateway.http_server.accept_upgrade = owner.gateway.http_server.accept_upgrade, None

        async def call() -> None:
            async with other.raw(token=TOKEN) as raw:
                assert (await raw.call("pid")).result

        await call()
        assert b"POST /node HTTP" in owner.tap.sent
        owner.gateway.http_server.accept_upgrade = accept
        owner.tap.sent.clear()
        await call()
        assert b"GET /node/link" not in owner.tap.sent  # not asked again for a while
        for peer in other.replica.context.peers._by_id.values():
            peer._no_link_until = 0.0
        owner.tap.sent.clear()
        for _ in range(3):
            await call()
        assert owner.tap.sent.count(b"GET /node/link") == 1 and b"POST" not in owner.tap.sent
