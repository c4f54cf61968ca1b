"""What an upstream remembers of how it ended, and what follows from that."""

from __future__ import annotations

import pytest

from toolway.config.schema import RestartPolicy, Server
from toolway.types import Certainty
from toolway.upstream.start_policy import FailureHistory, start_failure
from toolway.upstream.state import State, StateEvent
from toolway.upstream.transport import SERVER_MOVED, Disconnect, JSONRPCError, TransportError

CRASH = Disconnect("the process ended", "E-STDIO-EXIT", exit_code=1)
SERVER = Server(
    command="x", restart=RestartPolicy(max_restarts=2, window=60.0, failed_retry_interval=30.0, initial_backoff=1.0)
)


def past() -> FailureHistory:
    return FailureHistory(SERVER, lambda: 1.0, 100.0)


def test_an_end_has_a_time_for_the_next_try_until_there_were_too_many() -> None:
    one = past()
    assert one.record_end(CRASH, 0.0, 100.0) is StateEvent.ENDED
    assert one.retry_at == 101.0
    assert one.record_end(CRASH, 0.0, 101.0) is StateEvent.ENDED
    assert one.retry_at == 103.0
    assert one.record_end(CRASH, 0.0, 103.0) is StateEvent.GAVE_UP
    assert one.retry_at == 133.0


def test_a_server_that_is_elsewhere_now_has_not_failed() -> None:
    assert start_failure(TransportError("elsewhere", Certainty.NOT_SENT, code=SERVER_MOVED), 30.0).moved
    assert not start_failure(TransportError("gone", Certainty.NOT_SENT), 30.0).moved


def test_nobody_waits_for_a_server_that_cannot_be_started_or_is_tried_too_late() -> None:
    one = past()
    one.record_end(CRASH, 10.0, 100.0)
    assert not one.is_terminal(max_wait=5.0, now=100.0)
    assert one.is_terminal(max_wait=0.5, now=100.0)
    one.start_failures += 1
    assert one.is_terminal(max_wait=5.0, now=100.0)


def test_the_status_says_when_and_why() -> None:
    one = past()
    one.record_end(CRASH, 10.0, 100.0)
    one.state_since = 100.0
    status = one.build_status("s", SERVER, State.BACKING_OFF, None, "modern", 100.25)
    assert (status.next_retry, status.since, status.restarts, status.era) == (0.75, 0.25, 1, "modern")
    assert status.why.startswith("backing off 0.8 s: the process ended")
    assert one.build_status("s", SERVER, State.READY, None, None, 100.25).next_retry is None
    due = one.build_status("s", SERVER, State.BACKING_OFF, None, "modern", 101.0)
    assert due.why.startswith("starting again now: the process ended")
    assert one.build_status("s", SERVER, State.FAILED, None, None, 101.0).why.endswith("; next attempt now")


def test_the_hint_about_a_sandbox_names_the_server() -> None:
    one = past()
    one.record_end(Disconnect("x was not started: no user namespaces", "E-SANDBOX"), 0.0, 100.0)
    assert one.build_status("git", SERVER, State.FAILED, None, None, 100.0).hint.endswith("toolway trust sandbox git")


def test_why_a_start_failed() -> None:
    assert "0.5 s" in start_failure(TimeoutError(), 0.5).reason
    assert '"1s"' in start_failure(TimeoutError(), 0.5).hint
    assert start_failure(JSONRPCError(-32603, "no"), 0.5).code == "E-START-REFUSED"
    refused = start_failure(TransportError("refused", Certainty.NOT_SENT, code="E-HTTP-CONNECT", hint="start it"), 0.5)
    assert (refused.reason, refused.code, refused.hint, refused.moved) == (
        "refused",
        "E-HTTP-CONNECT",
        "start it",
        False,
    )


# -- a server at a URL that cannot be reached --------------------------------------------------------------------------

REFUSED = Disconnect("cannot connect", "E-HTTP-CONNECT")


def away(server: Server) -> FailureHistory:
    """Give up on it at 101.0, for 30 seconds."""
    found = FailureHistory(server, lambda: 1.0, 100.0)
    for _ in range(3):
        found.record_end(REFUSED, 0.0, 101.0)
    found.state_since = 101.0
    return found


@pytest.mark.attack("A2-D5")
def test_a_server_that_could_not_be_reached_is_tried_twice_a_second_while_calls_want_it() -> None:
    one = away(Server(url="http://127.0.0.1:9/mcp", restart=SERVER.restart))
    assert (one.next_start(101.1), one.retry_at) == (131.0, 131.0)
    one.wanted_until = 106.0
    assert one.next_start(101.1) == 101.5
    assert one.next_start(106.0) == 131.0  # nobody wants it any more


def test_a_start_before_its_time_that_does_not_reach_the_server_changes_nothing() -> None:
    one = away(Server(url="http://127.0.0.1:9/mcp", restart=SERVER.restart))
    for _ in range(20):
        one.is_early = True
        assert one.record_end(REFUSED, 0.0, 102.0) is StateEvent.GAVE_UP
    assert (one.retry_at, one.backoff.total) == (131.0, 3)
    one.is_early = True
    assert one.record_end(Disconnect("401", "E-AUTH-TOKEN"), 0.0, 102.0) is StateEvent.GAVE_UP
    assert one.backoff.total == 4


def test_a_process_and_a_server_that_was_reached_are_not_started_before_their_time() -> None:
    for server, end in ((SERVER, CRASH), (Server(url="http://127.0.0.1:9/mcp"), Disconnect("hangs", "E-HEALTH"))):
        one = away(server)
        one.record_end(end, 0.0, 102.0)
        one.wanted_until = 200.0
        assert one.next_start(103.0) == one.retry_at
