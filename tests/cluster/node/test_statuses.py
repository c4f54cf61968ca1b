"""What a node is told is in the body: it judges no status."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from toolway.gateway.cluster_hooks import NO_CLUSTER
from toolway.gateway.mcp.dispatcher import RequestDispatcher
from toolway.gateway.mcp.errors import DEADLINE, RpcFailure
from toolway.gateway.mcp.modern import Discovery, ModernEndpoint
from toolway.gateway.mcp.subscriptions import SubscriptionService
from toolway.gateway.mcp.view import EndpointView
from toolway.gateway.principals import Principal
from toolway.http.exchange import Exchange
from toolway.protocol.jsonrpc import Message

pytestmark = pytest.mark.anyio


class Paper:
    """What was answered."""

    opened = completed = disconnected = False
    on_tick = request = None
    status = 0
    body = b""

    def reply(self, status: int, body: bytes = b"", fields: Any = ()) -> None:
        self.status, self.body = status, body


class TooLate(ModernEndpoint):
    def _build_context(self, *given: Any) -> Any:
        raise RpcFailure(DEADLINE, "it was still starting", {"executed": "no"})


@pytest.mark.parametrize(("node", "status"), [(False, 504), (True, 200)])
async def test_an_error_for_a_node_has_no_status_by_which_it_could_be_judged(node: bool, status: int):
    paper = Paper()
    modern = TooLate(cast(RequestDispatcher, None), cast(Discovery, None), cast(SubscriptionService, None), NO_CLUSTER)
    message = Message("request", 1, "tools/call", {})
    who = Principal("n", "n", "n", is_node=node)
    await modern.handle(cast(Exchange, paper), message, who, cast(EndpointView, None), "")
    assert paper.status == status
    assert msgspec.json.decode(paper.body)["error"]["data"] == {"executed": "no"}
