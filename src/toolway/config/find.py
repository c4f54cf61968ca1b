"""Where our files are: of a user, of a project, and of a user in a project."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from toolway.errors import ConfigError

Scope = Literal["user", "project", "local"]
VARIABLE: Final = "TOOLWAY_CONFIG"
EXAMPLE: Final = '{"mcpServers": {"name": {"command": "npx", "args": ["-y", "package"]}}}'
PROJECT_FILES: Final = (".mcp.json", "mcp.json")  # of both, the last one wins


@dataclass(frozen=True, slots=True)
class Places:
    """Where files are looked for. `project` are those that exist."""

    root: Path  # of the project
    user: Path
    project: tuple[Path, ...]
    local: Path

    def all(self) -> Iterator[tuple[Scope, Path]]:
        """Lowest first."""
        yield "user", self.user
        yield from (("project", path) for path in self.project)
        yield "local", self.local


def find(environment: Mapping[str, str], directory: Path) -> Places:
    """Where the files are for somebody who works in `directory`."""
    home = Path(environment.get("HOME") or Path.home())
    config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "toolway"
    user = config / "mcp.json"
    root = _root(directory.absolute(), home)
    found = (root / name for name in PROJECT_FILES)
    project = tuple(path for path in found if path.is_file() and not _same(path, user))
    label = re.sub(r"[^A-Za-z0-9.-]+", "-", root.name).strip("-") or "root"
    number = hashlib.sha256(os.path.realpath(root).encode()).hexdigest()[:10]
    return Places(root, user, project, config / "projects" / f"{label}-{number}" / "mcp.json")


def nothing_found(places: Places) -> ConfigError:
    looked = [*(places.root / name for name in PROJECT_FILES), places.user]
    return ConfigError(
        "no configuration was found",
        evidence=f"looked for {', '.join(map(str, looked))}",
        fix=f"write {EXAMPLE} to {places.user}, or name a file with --config or ${VARIABLE}",
        code="E-CONFIG-NONE",
    )


def _root(directory: Path, home: Path) -> Path:
    """The nearest folder with a project's file, no further up than its repository, and not as far as the home."""
    for folder in (directory, *directory.parents):
        if folder != directory and _same(folder, home):
            break
        if any((folder / name).is_file() for name in PROJECT_FILES):
            return folder
        if (folder / ".git").exists():
            return folder
    return directory


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
