"""What a node is told is in the body: it judges no status."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from toolway.gateway.codes import DEADLINE
from toolway.gateway.discovery import Discovery
from toolway.gateway.failures import Failure
from toolway.gateway.http.exchange import Exchange
from toolway.gateway.listen import Listening
from toolway.gateway.modern import Modern
from toolway.gateway.principals import Principal
from toolway.gateway.relay import Relay
from toolway.gateway.view import View
from toolway.protocol.wire import Message

pytestmark = pytest.mark.anyio


class Paper:
    """What was answered."""

    opened = answered = gone = False
    on_look = request = None
    status = 0
    body = b""

    def reply(self, status: int, body: bytes = b"", fields: Any = ()) -> None:
        self.status, self.body = status, body


class TooLate(Modern):
    def _visit(self, *given: Any) -> Any:
        raise Failure(DEADLINE, "it was still starting", {"executed": "no"})


@pytest.mark.parametrize(("node", "status"), [(False, 504), (True, 200)])
async def test_an_error_for_a_node_has_no_status_by_which_it_could_be_judged(node: bool, status: int):
    paper = Paper()
    modern = TooLate(cast(Relay, None), cast(Discovery, None), cast(Listening, None))
    message = Message("request", 1, "tools/call", {})
    who = Principal("n", "n", "n", node=node)
    await modern.handle(cast(Exchange, paper), message, who, cast(View, None), "")
    assert paper.status == status
    assert msgspec.json.decode(paper.body)["error"]["data"] == {"executed": "no"}
