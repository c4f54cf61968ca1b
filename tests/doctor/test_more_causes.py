"""Causes that new users met: paths of Windows, backslashes in JSON, an old Node, slow starts, floods of stderr."""

from __future__ import annotations

import pytest

from toolway.config.editing.jsonc import parse_jsonc
from toolway.config.schema import Server
from toolway.doctor.entry_checks import CheckTarget
from toolway.doctor.start_checks import check_process
from toolway.doctor.trial_start import TrialStart
from toolway.errors import ConfigError
from toolway.upstream.diagnosis import diagnose
from toolway.upstream.transport import Disconnect


@pytest.mark.parametrize("command", [r"C:\Users\me\node.exe", "D:/tools/node.exe", r"\\server\share\node.exe"])
def test_windows_path_is_recognized(command: str) -> None:
    found = diagnose(command, None, "", "E-STDIO-ENOENT")
    assert found is not None and "is a Windows path" in found.cause
    assert found.hint.endswith('"command": "node"')


def test_missing_node_module_means_old_node() -> None:
    stderr = "Error [ERR_UNKNOWN_BUILTIN_MODULE]: No such built-in module: node:sqlite\n    at x\nNode.js v18.19.0\n"
    found = diagnose("npx", 1, stderr, "E-STDIO-EXIT")
    assert found is not None and found.cause == "Node.js is too old for this server"


def test_backslash_and_comma_errors_in_json_are_explained() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_jsonc('{"command": "C:\\Users"}', "mcp.json")
    assert "backslash" in caught.value.hint
    with pytest.raises(ConfigError) as caught:
        parse_jsonc('{"command": "x" "args": []}', "mcp.json")
    assert "missing comma" in caught.value.hint


TARGET = CheckTarget("git", Server(command="x"))


def trial(**facts: object) -> TrialStart:
    found = TrialStart(30.0, spawned_at=0.01, first_byte_at=0.1, agreed_at=0.2, listed_at=0.3)
    for name, value in facts.items():
        setattr(found, name, value)
    return found


def states(found: TrialStart) -> dict[str, str]:
    return {check.name: check.state for check in check_process(TARGET, Server(command="x"), found)}


def test_failed_sandbox_hint_has_command_for_this_server() -> None:
    failed = TrialStart(30.0, failure=Disconnect("x was not started: no user namespaces", "E-SANDBOX"))
    [check] = check_process(TARGET, Server(command="x"), failed)
    assert (check.state, check.copy, check.code) == ("fail", "toolway trust sandbox git", "E-SANDBOX")


def test_slow_start_and_long_stderr_are_warnings() -> None:
    assert states(trial()) == {"start": "ok", "stdout": "ok"}
    assert states(trial(listed_at=12.0))["start"] == "warn"
    assert states(trial(listed_at=12.0, fetched_at=9.0))["start"] == "ok"  # the download is not the server's
    assert states(trial(stderr="x" * 65_000))["stderr"] == "warn"
    assert states(trial(listed_at=40.0))["start"] == "fail"  # we would have given up
