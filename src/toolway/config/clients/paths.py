"""Where programs keep their files, by system: the few folders that all paths start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolway.config.clients.values import Format, KeyPath, Place, Platform, Scope


@dataclass(frozen=True, slots=True)
class Paths:
    """The folders of one person on one system, and the directory that they work in."""

    environment: Mapping[str, str]
    directory: Path
    platform: Platform

    @property
    def home(self) -> Path:
        key = "USERPROFILE" if self.platform == "win32" else "HOME"
        return Path(self.environment.get(key) or Path.home())

    @property
    def config(self) -> Path:
        """`~/.config`, or what the environment says instead."""
        return Path(self.environment.get("XDG_CONFIG_HOME") or self.home / ".config")

    @property
    def support(self) -> Path:
        """Where desktop programs keep their settings."""
        if self.platform == "darwin":
            return self.home / "Library" / "Application Support"
        if self.platform == "win32":
            return Path(self.environment.get("APPDATA") or self.home / "AppData" / "Roaming")
        return self.config

    def named(self, variable: str, otherwise: Path) -> Path:
        """A folder that a variable of the client names."""
        return Path(self.environment[variable]) if self.environment.get(variable) else otherwise

    def nearest(self, name: str) -> Path:
        """The file of that name in this directory or the first above it that has one, within the repository.

        What lies at home belongs to the user, not to every folder below it.
        """
        for folder in (self.directory, *self.directory.parents):
            if folder == self.home and folder != self.directory:
                break
            if (folder / name).is_file():
                return folder / name
            if (folder / ".git").exists():
                break
        return self.directory / name


def place(
    client: str,
    scope: Scope,
    path: Path,
    format: Format = "json",
    root: KeyPath = ("mcpServers",),
    directory: Path | None = None,
) -> Place:
    return Place(client, scope, path, path.is_file(), format, root, directory)
