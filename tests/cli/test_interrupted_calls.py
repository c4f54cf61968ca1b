"""Ctrl-C while a call runs: the terminal says whether the call may have run."""

import os
import sys
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal

pytestmark = pytest.mark.user_trial("20")
ASKING = {"command": sys.executable, "args": [str(Path(__file__).with_name("asking_server.py"))], "era": "legacy"}
HANGING = {"command": "sleep", "args": ["1000"]}


def interrupt(machine, tool, *words, after):
    machine.write("mcp.json", {"mcpServers": {"asking": ASKING, "hanging": HANGING}})
    environ = {**os.environ, "HOME": str(machine.home)}
    terminal = Terminal("call", tool, *words, "-c", "mcp.json", env=environ, cwd=machine.home)
    terminal.expect(after)
    terminal.press("c")
    assert terminal.close() == 130
    return terminal.text


def test_interrupted_sent_call_may_have_run(machine):
    """The server asks in the middle of the call, so it has certainly begun."""
    shown = interrupt(machine, "asking.confirm", after="Accept? ")
    assert "interrupted: asking.confirm may have run; check before you call it again" in shown


def test_interrupted_call_before_start_did_not_run(machine):
    assert "interrupted: hanging.tool did not run" in interrupt(machine, "hanging.tool", after="calling hanging.tool")
