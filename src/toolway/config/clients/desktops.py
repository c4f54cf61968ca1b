"""Desktop programs with one plain JSON file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from toolway.config.clients.dialect import Dialect, Timeout
from toolway.config.clients.paths import Paths, place
from toolway.config.clients.values import Client, Place
from toolway.config.syntaxes import BRACES


def _home(name: str, *candidates: str) -> Callable[[Paths], list[Place]]:
    return lambda paths: [place(name, "user", paths.home / candidate) for candidate in candidates]


def _kiro(paths: Paths) -> list[Place]:
    inner = Path(".kiro", "settings", "mcp.json")
    project = paths.nearest(str(inner))
    return [
        place("kiro", "user", paths.home / inner),
        place("kiro", "project", project, directory=project.parent.parent.parent),
    ]


def _trae(paths: Paths) -> list[Place]:
    project = paths.nearest(".trae/mcp.json")
    return [
        place("trae", "user", paths.support / "Trae" / "User" / "mcp.json"),
        place("trae", "project", project, directory=project.parent.parent),
    ]


def _qoder(paths: Paths) -> list[Place]:
    windows = paths.support / "Qoder" / "SharedClientCache"
    return [place("qoder", "user", (windows if paths.platform == "win32" else paths.home / ".qoder") / "mcp.json")]


CLIENTS: Final = (
    Client(
        "kiro",
        "Kiro",
        _kiro,
        Dialect(disabled="disabled", deny="disabledTools", timeout=Timeout("timeout"), syntax=BRACES),
    ),
    Client("lm-studio", "LM Studio", _home("lm-studio", ".lmstudio/mcp.json", ".cache/lm-studio/mcp.json"), Dialect()),
    Client("trae", "Trae", _trae, Dialect()),
    Client("qoder", "Qoder", _qoder, Dialect(types={"http": "http", "sse": "sse"})),
)
