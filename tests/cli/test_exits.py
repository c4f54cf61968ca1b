import pytest

from toolway import errors
from toolway.cli.exits import Exit, UsageError, of_error
from toolway.cli.running import exit_of
from toolway.config.problems import Problem
from toolway.model import Reply
from toolway.upstream.status import Status


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ToolwayError("x"), 1),
        (errors.NotFound("x"), 1),
        (errors.OutcomeUnknown("x"), 1),
        (errors.Overloaded("x"), 1),
        (errors.ProtocolError("x"), 1),
        (UsageError("x"), 2),
        (errors.ConfigError("x"), 3),
        (errors.Unavailable("x"), 4),
        (errors.ToolFailed("x", reply=Reply("s", "t", {})), 5),
        (errors.Denied("x"), 6),
        (errors.TimedOut("x"), 7),
    ],
)
def test_every_error_has_its_exit_code(error, code):
    assert of_error(error) == code


def status(state):
    return Status("s", "stdio", state)


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ([], Exit.OK),
        (["ready", "idle", "disabled"], Exit.OK),
        (["ready", "failed"], Exit.PARTIAL),
        (["ready", "starting"], Exit.PARTIAL),
        (["failed", "backing_off", "disabled"], Exit.UNREACHABLE),
    ],
)
def test_the_exit_code_tells_whether_all_some_or_none_work(states, code):
    assert exit_of([status(state) for state in states]) == code


def test_an_entry_that_cannot_be_used_counts_as_a_server_that_is_down():
    bad, note = Problem("b", "wrong"), Problem("b", "renamed", severity="note")
    assert exit_of([status("ready")], [bad]) == Exit.PARTIAL
    assert exit_of([status("ready")], [note]) == Exit.OK
    assert exit_of([], [bad]) == Exit.CONFIG
