"""Run every command in one process, each in a fresh home: `every_command --help`, or `--json`.

Prints as JSON the exit codes, or the commands by how they ended: a result, the error that they should have, or neither.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from typer.testing import CliRunner

from tests.cli.test_every_command import FILE, WORDS, WRONG, commands
from toolway.cli.app import app

NAMES = [*commands(), "serve"]
#: Exit codes of commands that end with an error, by which Windows differs: it has no sandbox to advise.
ENDED = WRONG | ({"trust sandbox": 3} if sys.platform == "win32" else {})


def show_help() -> dict[str, int]:
    return {name: CliRunner().invoke(app, [*name.split(), "--help"]).exit_code for name in NAMES}


def run_all() -> dict[str, list[str]]:
    """Run each command as tests/cli/test_every_command.py does, and sort them by how they ended."""
    found: dict[str, list[str]] = {"works": [], "errors": [], "wrong": []}
    home = Path.cwd()
    own = home / ("toolway" if sys.platform == "win32" else ".config/toolway") / "mcp.json"
    for name in commands():
        for each in home.iterdir():
            shutil.rmtree(each, ignore_errors=True) if each.is_dir() else each.unlink()
        own.parent.mkdir(parents=True)
        own.write_text(json.dumps(FILE), encoding="utf-8")
        (home / ".cursor").mkdir()
        (home / ".cursor" / "mcp.json").write_text('{"mcpServers": {"docs": {"url": "https://docs.example.com/mcp"}}}')
        words = WORDS.get(name, [])
        at = words.index("--") if "--" in words else len(words)
        line = [*name.split(), *words[:at], "--json", *words[at:]]
        result = CliRunner().invoke(app, line, input="a-secret-value\n")
        try:
            is_error = "error" in json.loads(result.stdout)
        except ValueError:
            found["wrong"].append(f"{name}: exit code {result.exit_code}, {result.exception!r}, {result.output[-300:]}")
            continue
        if (is_error, result.exit_code) != (name in ENDED, ENDED.get(name, 0)):
            found["wrong"].append(f"{name}: exit code {result.exit_code}: {result.stdout[-300:]}")
        else:
            found["errors" if is_error else "works"].append(name)
    return found


if __name__ == "__main__":
    os.environ["NO_COLOR"] = "1"
    print(json.dumps(show_help() if sys.argv[1] == "--help" else run_all()))
