"""What a node knows of the servers of others."""

from __future__ import annotations

from typing import Any, cast

import pytest

from toolway.cluster.db.catalog import ListStore, StoredList
from toolway.cluster.replication.catalog import SharedCatalog

pytestmark = pytest.mark.anyio
TOOL = {"name": "echo", "inputSchema": {"type": "object"}}


class OneServer:
    """A record of one server, as it was before the node started."""

    async def load_changed(self, tenant: str, after: int = 0) -> dict[str, StoredList]:
        return {"s": StoredList("print", "modern", {"capabilities": {"tools": {}}}, {"tools": [TOOL]}, 1, 7)}


async def test_stored_lists_are_known_right_after_refresh():
    known = SharedCatalog(cast(ListStore, OneServer()), "default", lambda server: None, lambda server: None)
    assert known.get_list("s", "tools") is None
    await known.refresh()
    about: Any = known.get_summary("s")
    assert about.capabilities == {"tools": {}}
    assert known.get_list("s", "tools") == [TOOL]
    assert known.get_list("s", "prompts") == []
    assert known.get_list("other", "tools") is None
