"""A call that one gateway brings to another is counted once, where its client came in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.replica.hop_lab import TOKEN, cluster
from toolway.events import AttemptFinished, CallFinished, CallStarted, Event

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Ears:
    wants_steps = True

    def __init__(self, wants_brought: bool = False) -> None:
        self.wants_brought = wants_brought
        self.calls: list[CallFinished] = []
        self.events: list[Event] = []

    def on_call(self, fact: CallFinished) -> None:
        self.calls.append(fact)

    def on_event(self, fact: Event) -> None:
        self.events.append(fact)


async def test_a_call_is_told_of_where_it_came_in_and_at_its_owner_to_those_who_ask_for_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        owner, other = nodes.owner(), nodes.other()
        here, there, auditor = Ears(), Ears(), Ears(wants_brought=True)
        other.hub.listen(here)
        owner.hub.listen(there)

        async def call() -> None:
            async with other.raw(token=TOKEN) as raw:
                assert (await raw.call("pid")).result

        await call()
        assert len(here.calls) == 1 and there.calls == []
        owner.hub.listen(auditor)
        await call()
        assert len(here.calls) == 2 and there.calls == []
        assert [fact.id for fact in auditor.calls] == [here.calls[1].id]
        assert [type(fact) for fact in auditor.events] == [CallStarted, AttemptFinished] and there.events == []
        async with owner.raw(token=TOKEN) as raw:
            assert (await raw.call("pid")).result
        assert len(there.calls) == 1
