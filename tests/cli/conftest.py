"""A new machine for each test: a home, a project, and the command line in it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from toolway.cli.app import app


class Machine:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.project = home / "project"
        self.own = home / ".config/toolway/mcp.json"

    def write(self, name, value):
        """A file below the home: a text as it is, anything else as JSON."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value, indent=2))
        return path

    def toolway(self, *words, **more):
        return CliRunner().invoke(app, list(words), catch_exceptions=False, **more)

    def entries(self):
        return json.loads(self.own.read_text())["mcpServers"]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = Machine(tmp_path)
    made.project.mkdir()
    for name in (
        "XDG_CONFIG_HOME",
        "XDG_STATE_HOME",
        "XDG_DATA_HOME",
        "TOOLWAY_CONFIG",
        "TOOLWAY_STATE",
        "EDITOR",
        "VISUAL",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("toolway.parts.registry.settings.OFFICIAL_URL", "http://127.0.0.1:9")  # no test asks it
    monkeypatch.chdir(made.project)
    return made
