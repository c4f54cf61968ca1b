"""Replies between nodes are in the sealed body; their status does not matter."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from tests.cluster.node.nats_lab import SEALER, call
from toolway.cluster.node_auth import CallToken, CallTokenVerifier
from toolway.cluster.routing.call_cipher import join_request
from toolway.cluster.routing.node_http import NodeEndpoint
from toolway.gateway.mcp.context import Notify
from toolway.gateway.mcp.errors import DEADLINE, SHUTTING_DOWN, RpcFailure
from toolway.gateway.mcp.responses import RpcResult
from toolway.http.exchange import Exchange
from toolway.protocol.jsonrpc import Message, encode_request

pytestmark = pytest.mark.anyio


@dataclass
class FakeExchange:
    """What was answered."""

    request: Any
    opened: bool = False
    completed: bool = False
    disconnected: bool = False
    on_tick: Any = None
    request_id: str = ""
    answers: list[tuple[int, bytes]] = field(default_factory=list)

    def reply(self, status: int, body: bytes = b"", fields: Any = ()) -> None:
        self.answers.append((status, body))


async def too_late(token: CallToken, message: Message, notify: Notify) -> RpcResult:
    raise RpcFailure(DEADLINE, "it was still starting", {"executed": "no"})


@pytest.mark.parametrize("refusal", [None, RpcFailure(SHUTTING_DOWN, "it ends", {"executed": "no"})])
async def test_node_error_has_status_200_and_a_sealed_body(refusal: RpcFailure | None) -> None:
    asked = call()
    assert asked.cipher is not None
    sealed = asked.cipher.seal_request(encode_request(7, asked.method, asked.params))
    request = SimpleNamespace(path="/node", method="POST", body=join_request(asked.call_token, sealed))
    exchange = FakeExchange(request)
    verifier = CallTokenVerifier("owner", SEALER, lambda *place: 1, lambda: 0.0, SEALER._now)
    await NodeEndpoint(verifier, too_late).handle(cast(Exchange, exchange), refusal)
    [(status, body)] = exchange.answers
    opened = asked.cipher.open_reply(body)
    assert status == 200 and opened is not None
    answer = msgspec.json.decode(opened)
    assert (answer["id"], answer["error"]["data"]) == (7, {"executed": "no"})
