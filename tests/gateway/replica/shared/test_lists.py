"""What a node knows of the servers of others."""

from __future__ import annotations

from typing import Any, cast

import pytest

from toolway.cluster.record.lists import Listed, Lists
from toolway.gateway.replica.shared.lists import SharedLists

pytestmark = pytest.mark.anyio
TOOL = {"name": "echo", "inputSchema": {"type": "object"}}


class OneServer:
    """A record of one server, as it was before the node started."""

    async def all(self, tenant: str, since: int) -> dict[str, Listed]:
        return {"s": Listed("print", "modern", {"capabilities": {"tools": {}}}, {"tools": [TOOL]}, 1, 7)}


async def test_what_was_in_the_record_before_a_node_started_is_known_to_it_at_once():
    known = SharedLists(cast(Lists, OneServer()), "default", lambda server: None, lambda server: None)
    assert known.listed("s", "tools") is None
    await known.look()
    about: Any = known.about("s")
    assert about.capabilities == {"tools": {}}
    assert known.listed("s", "tools") == [TOOL]
    assert known.listed("s", "prompts") == []
    assert known.listed("other", "tools") is None
