"""Answers and their requests: by id, once, and never someone else's."""

from __future__ import annotations

import pytest

from toolway.protocol.jsonrpc import Message
from toolway.types import CallState, Certainty
from toolway.upstream.transport import JSONRPCError, Request, TransportError
from toolway.upstream.transports.pending_requests import PendingRequests

pytestmark = pytest.mark.anyio


def asked(certainty: Certainty = Certainty.UNKNOWN) -> Request:
    return Request("tools/call", {}, CallState(certainty=certainty))


def result(id_: int | str | None, **body: object) -> Message:
    return Message("result", id_, body=body)


async def test_response_resolves_request_with_its_id() -> None:
    waiting = PendingRequests()
    (first, one), (second, two) = waiting.add(asked()), waiting.add(asked())
    waiting.resolve(result(second, n=2))
    waiting.resolve(result(first, n=1))
    assert (one.result(), two.result(), len(waiting)) == ({"n": 1}, {"n": 2}, 0)


async def test_ids_are_never_reused() -> None:
    waiting = PendingRequests()
    ids = []
    for _ in range(100):
        id_, _ = waiting.add(asked())
        waiting.remove(id_)
        ids.append(id_)
    assert (len(set(ids)), sorted(ids), len(waiting)) == (100, ids, 0)


async def test_second_response_is_dropped() -> None:
    waiting = PendingRequests()
    id_, answer = waiting.add(asked())
    waiting.resolve(result(id_, n=1))
    waiting.resolve(result(id_, n=2))
    waiting.resolve(Message("error", id_, body={"code": 1, "message": "x"}))
    assert (answer.result(), waiting.dropped) == ({"n": 1}, 2)


@pytest.mark.parametrize("id_", [0, 99, -1, "99", "x", "", "-1", "1.0", " 1", "1e0", None, "9" * 16, "9" * 5000])
@pytest.mark.attack("held-34")
async def test_unmatched_response_is_dropped_and_counted(id_) -> None:
    waiting = PendingRequests()
    _, answer = waiting.add(asked())
    waiting.resolve(result(id_))
    assert (answer.done(), waiting.dropped, len(waiting)) == (False, 1, 1)
    assert not waiting.reject(id_, "x")
    assert not answer.done()


@pytest.mark.attack("W15")
async def test_response_with_id_as_string_fails_its_request() -> None:
    waiting = PendingRequests()
    id_, answer = waiting.add(asked())
    waiting.resolve(result(str(id_), n=1))
    with pytest.raises(TransportError, match='"1" instead of 1'):
        answer.result()
    assert len(waiting) == 0


async def test_late_response_does_not_resolve_next_request() -> None:
    waiting = PendingRequests()
    gone, answer = waiting.add(asked())
    answer.cancel()
    waiting.remove(gone)
    _, next_answer = waiting.add(asked())
    waiting.resolve(result(gone, n=1))
    assert (next_answer.done(), waiting.dropped) == (False, 1)


async def test_response_to_cancelled_request_is_dropped() -> None:
    waiting = PendingRequests()
    id_, answer = waiting.add(asked())
    answer.cancel()
    waiting.resolve(result(id_))
    assert waiting.dropped == 1


async def test_server_error_keeps_code_message_and_data() -> None:
    waiting = PendingRequests()
    id_, answer = waiting.add(asked())
    waiting.resolve(Message("error", id_, body={"code": -32602, "message": "no\x00 such", "data": {"a": 1}}))
    error = answer.exception()
    assert isinstance(error, JSONRPCError)
    assert (error.code, error.message, error.data) == (-32602, "no such", {"a": 1})


async def test_invalid_response_fails_only_its_request() -> None:
    waiting = PendingRequests()
    (first, one), (_, two) = waiting.add(asked()), waiting.add(asked())
    assert waiting.reject(first, "bad JSON")
    error = one.exception()
    assert isinstance(error, TransportError)
    assert (error.reason, error.certainty, error.code) == ("bad JSON", Certainty.UNKNOWN, "E-ANSWER")
    assert not two.done()


async def test_link_end_fails_each_request_with_its_certainty() -> None:
    waiting = PendingRequests()
    answers = [waiting.add(asked(certainty))[1] for certainty in (Certainty.NOT_SENT, Certainty.UNKNOWN)]
    _, left = waiting.add(asked())
    left.cancel()
    waiting.fail_all("the process ended", "E-STDIO-EXIT", "start it again")
    errors = [answer.exception() for answer in answers]
    assert [(e.certainty, e.code, e.hint) for e in errors if isinstance(e, TransportError)] == [
        (Certainty.NOT_SENT, "E-STDIO-EXIT", "start it again"),
        (Certainty.UNKNOWN, "E-STDIO-EXIT", "start it again"),
    ]
    assert len(waiting) == 0
    waiting.fail_all("again", "E-STDIO-EXIT")
