"""A terminal of 80 columns: no table of `top` is wider, and no hint of `ls` breaks inside a word."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_program import at_a_terminal
from toolway.cli.commands import activity
from toolway.cli.options import CommandContext, TargetOptions
from toolway.cli.output import Output, display_width, drop_columns

WHY = "exit code 1, the program could not find the folder that its entry names in the environment variable NOTES_HOME"
ABSENT = "a-program-with-a-long-name-that-no-folder-of-the-path-contains"


def overview(name: str = "a-server-with-a-long-name") -> dict[str, Any]:
    minutes = {"calls": 12345, "errors": 120, "p50": 0.25, "p95": 12.5, "per_minute": [1, 2, 3] * 10}
    server = {
        "state": "down",
        "breaker": "closed",
        "server": name,
        "minutes": minutes,
        "restarts": 3,
        "why": WHY,
    }
    return {"servers": [{**server, "in_flight": 10, "limit": 32}], "minutes": minutes}


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    del capsys  # it replaces stdout first
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_: os.terminal_size((80, 24)))
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True)


@pytest.mark.user_trial("27")
@pytest.mark.parametrize("name", ["s", "a-server-with-a-long-name"])
def test_top_breaks_no_line_at_80_columns(
    name: str, terminal: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gateway:
        async def request_admin(self, method: str, path: str) -> Any:
            return overview(name)

    async def find(*_: object) -> Gateway:
        return Gateway()

    monkeypatch.setattr(activity, "find_running_gateway", find)
    context = CommandContext(Output(color=False), TargetOptions())
    asyncio.run(activity.run_top(context, once=True))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(display_width, lines)) <= 80
    head = next(line.split() for line in lines if line.startswith("state"))
    assert {"state", "server", "calls", "p95", "why"} <= set(head)
    assert set(head) <= {"state", "server", "calls", "failed", "p50", "p95", "busy", "restarts", "why"}


def test_columns_are_dropped_until_the_rest_fits() -> None:
    cells = [["a", "bb", "ccc", "why"], ["x" * 16, "y" * 16, "z" * 16, "w" * 40]]
    assert drop_columns(cells, 200, ("bb", "ccc")) == cells
    assert drop_columns(cells, 60, ("bb", "ccc"))[0] == ["a", "ccc", "why"]
    assert drop_columns(cells, 20, ("bb", "ccc"))[0] == ["a", "why"]


def test_ls_breaks_no_word_at_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    monkeypatch.setenv("TOOLWAY_CONFIG", str(tmp_path / "mcp.json"))
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"broken": {"command": ABSENT}}}))
    text, _ = at_a_terminal(["ls", "--no-color"], tmp_path, COLUMNS="80", NO_COLOR="1")
    lines = [
        line for line in text.replace("\r", "\n").split("\n") if "\x1b" not in line and not line.startswith("  | ")
    ]
    assert any("hint: " in line for line in lines), text
    assert max(map(display_width, lines)) <= 80
