import pytest

from toolway import errors
from toolway.cli.exit_codes import ExitCode, UsageError, exit_code_for
from toolway.cli.targets import exit_code_for_statuses
from toolway.config.schema import ConfigIssue
from toolway.types import CallResult
from toolway.upstream.status import ServerStatus


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ToolwayError("x"), 1),
        (errors.NotFound("x"), 1),
        (errors.OutcomeUnknown("x"), 1),
        (errors.Overloaded("x"), 1),
        (errors.ProtocolError("x"), 1),
        (UsageError("x"), 2),
        (errors.InvalidArguments("x"), 2),
        (errors.ConfigError("x"), 3),
        (errors.ServerUnavailable("x"), 4),
        (errors.ToolError("x", result=CallResult("s", "t", {})), 5),
        (errors.AccessDenied("x"), 6),
        (errors.CallTimeout("x"), 7),
    ],
)
def test_every_error_has_its_exit_code(error, code):
    assert exit_code_for(error) == code


def status(state):
    return ServerStatus("s", "stdio", state)


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ([], ExitCode.OK),
        (["ready", "idle", "disabled"], ExitCode.OK),
        (["ready", "down"], ExitCode.PARTIAL),
        (["ready", "starting"], ExitCode.PARTIAL),
        (["down", "starting", "disabled"], ExitCode.UNREACHABLE),
    ],
)
def test_exit_code_shows_if_all_some_or_no_servers_work(states, code):
    assert exit_code_for_statuses([status(state) for state in states]) == code


def test_unusable_entry_counts_as_a_down_server():
    bad, note = ConfigIssue("b", "wrong"), ConfigIssue("b", "renamed", severity="note")
    assert exit_code_for_statuses([status("ready")], [bad]) == ExitCode.PARTIAL
    assert exit_code_for_statuses([status("ready")], [note]) == ExitCode.OK
    assert exit_code_for_statuses([], [bad]) == ExitCode.CONFIG
