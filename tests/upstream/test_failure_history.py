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


@pytest.mark.user_trial("2")
def test_crash_loop_is_not_restarted_by_calls() -> None:
    one = past()
    for _ in range(3):
        one.record_end(CRASH, 0.2, 100.0)
    assert one.ignores_calls and one.next_chance() == one.retry_at
    one.start_failures = 1  # its last start failed: the next one may succeed
    assert not one.ignores_calls


def test_retries_back_off_until_the_server_gives_up() -> None:
    one = past()
    assert one.record_end(CRASH, 0.0, 100.0) is StateEvent.ENDED
    assert one.retry_at == 101.0
    assert one.record_end(CRASH, 0.0, 101.0) is StateEvent.ENDED
    assert one.retry_at == 103.0
    assert one.record_end(CRASH, 0.0, 103.0) is StateEvent.GAVE_UP
    assert one.retry_at == 133.0


def test_moved_server_is_not_a_failure() -> None:
    assert start_failure(TransportError("elsewhere", Certainty.NOT_SENT, code=SERVER_MOVED), 30.0).moved
    assert not start_failure(TransportError("gone", Certainty.NOT_SENT), 30.0).moved


def test_status_has_retry_time_and_reason() -> None:
    one = past()
    one.record_end(CRASH, 10.0, 100.0)
    one.state_since = 100.0
    status = one.build_status("s", SERVER, State.BACKING_OFF, None, "modern", 100.25)
    assert (status.next_retry, status.since, status.restarts, status.era) == (0.75, 0.25, 1, "modern")
    assert status.why.startswith("retrying in 0.8 s: the process ended")
    assert one.build_status("s", SERVER, State.READY, None, None, 100.25).next_retry is None
    due = one.build_status("s", SERVER, State.BACKING_OFF, None, "modern", 101.0)
    assert due.why.startswith("starting again now: the process ended")
    assert one.build_status("s", SERVER, State.FAILED, None, None, 101.0).why.endswith("; next attempt now")


def test_sandbox_hint_names_the_server() -> None:
    one = past()
    one.record_end(Disconnect("x was not started: no user namespaces", "E-SANDBOX"), 0.0, 100.0)
    assert one.build_status("git", SERVER, State.FAILED, None, None, 100.0).hint.endswith("toolway trust sandbox git")


def test_start_failure_has_reason_code_and_hint() -> None:
    assert "0.5 s" in start_failure(TimeoutError(), 0.5).reason
    assert '"1s"' in start_failure(TimeoutError(), 0.5).hint
    assert start_failure(JSONRPCError(-32603, "no"), 0.5).code == "E-START-REJECTED"
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


WEB = Server(url="http://127.0.0.1:9/mcp", restart=SERVER.restart)


@pytest.mark.attack("A2-D5")
@pytest.mark.user_trial("2")
@pytest.mark.parametrize("server", [WEB, SERVER])
def test_down_server_restarts_at_most_once_a_second_on_demand(server: Server) -> None:
    one = away(server)
    one.start_failures = 3
    one.begin_attempt(100.9)
    assert one.next_start() == one.retry_at == 131.0
    assert one.next_chance() == 101.9
    one.is_wanted = True
    assert one.next_start() == 101.9
    one.begin_attempt(101.9)
    assert one.next_start() == 131.0  # until someone asks again


def test_early_start_that_cannot_connect_keeps_retry_time() -> None:
    one = away(WEB)
    for _ in range(20):
        one.is_early = True
        assert one.record_end(REFUSED, 0.0, 102.0) is StateEvent.GAVE_UP
    assert (one.retry_at, one.backoff.total) == (131.0, 3)
    one.is_early = True
    assert one.record_end(Disconnect("401", "E-AUTH-TOKEN"), 0.0, 102.0) is StateEvent.GAVE_UP
    assert one.backoff.total == 4


@pytest.mark.parametrize("code", ["E-CONFIG-SECRET", "E-AUTH-TOKEN"])
def test_call_does_not_start_server_that_needs_attention(code: str) -> None:
    one = away(WEB)
    one.record_end(Disconnect("not now", code), 0.0, 102.0)
    assert one.ignores_calls and one.next_chance() == one.retry_at
    one.record_end(Disconnect("its login server is down", "E-AUTH-SERVER"), 0.0, 102.0)
    assert not one.needs_user


@pytest.mark.user_trial("2")
def test_url_server_retries_every_30_seconds_at_most() -> None:
    one = FailureHistory(Server(url="http://127.0.0.1:9/mcp"), lambda: 1.0, 100.0)
    waits = []
    for n in range(30):
        one.record_end(REFUSED, 0.0, 100.0 + n)
        waits.append(one.retry_at - 100.0 - n)
    assert max(waits) == 30.0
    process = FailureHistory(Server(command="x"), lambda: 1.0, 100.0)
    for _ in range(30):
        process.record_end(CRASH, 0.0, 100.0)
    assert process.retry_at == 400.0
