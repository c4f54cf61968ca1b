"""What an upstream remembers of how it ended, and what follows from that."""

from __future__ import annotations

from toolway.config.spec import Restart, Server
from toolway.model import Certainty
from toolway.upstream.link import MOVED, Fault, Loss, RpcError
from toolway.upstream.past import Past, why_no_start
from toolway.upstream.state import Event, State

CRASH = Loss("the process ended", "E-STDIO-EXIT", exit_code=1)
SERVER = Server(command="x", restart=Restart(limit=2, window=60.0, pause=30.0, delay=1.0))


def past() -> Past:
    return Past(SERVER, lambda: 1.0, 100.0)


def test_an_end_has_a_time_for_the_next_try_until_there_were_too_many() -> None:
    one = past()
    assert one.ended(CRASH, 0.0, 100.0) is Event.ENDED
    assert one.retry_at == 101.0
    assert one.ended(CRASH, 0.0, 101.0) is Event.ENDED
    assert one.retry_at == 103.0
    assert one.ended(CRASH, 0.0, 103.0) is Event.GAVE_UP
    assert one.retry_at == 133.0


def test_a_server_that_is_elsewhere_now_has_not_failed() -> None:
    assert why_no_start(Fault("elsewhere", Certainty.C0, code=MOVED), 30.0).moved
    assert not why_no_start(Fault("gone", Certainty.C0), 30.0).moved


def test_nobody_waits_for_a_server_that_cannot_be_started_or_is_tried_too_late() -> None:
    one = past()
    one.ended(CRASH, 10.0, 100.0)
    assert not one.is_hopeless(patience=5.0, now=100.0)
    assert one.is_hopeless(patience=0.5, now=100.0)
    one.start_failures += 1
    assert one.is_hopeless(patience=5.0, now=100.0)


def test_the_status_says_when_and_why() -> None:
    one = past()
    one.ended(CRASH, 10.0, 100.0)
    one.since = 100.0
    status = one.status("s", SERVER, State.BACKING_OFF, None, "modern", 100.25)
    assert (status.next_retry, status.since, status.restarts, status.era) == (0.75, 0.25, 1, "modern")
    assert status.why.startswith("backing off 0.8 s: the process ended")
    assert one.status("s", SERVER, State.READY, None, None, 100.25).next_retry is None


def test_why_a_start_failed() -> None:
    assert "0.5 s" in why_no_start(TimeoutError(), 0.5).reason
    assert '"1s"' in why_no_start(TimeoutError(), 0.5).fix
    assert why_no_start(RpcError(-32603, "no"), 0.5).code == "E-START-REFUSED"
    refused = why_no_start(Fault("refused", Certainty.C0, code="E-HTTP-CONNECT", fix="start it"), 0.5)
    assert (refused.reason, refused.code, refused.fix, refused.moved) == (
        "refused",
        "E-HTTP-CONNECT",
        "start it",
        False,
    )
