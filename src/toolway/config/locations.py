"""The paths of Toolway's own files: user, project, and local configuration, and gateway state."""

from __future__ import annotations

import hashlib
import ntpath
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PureWindowsPath
from typing import Final, Literal

import msgspec

from toolway._os import config_folder, data_folder, home_folder, state_folder
from toolway.errors import ConfigError

Scope = Literal["user", "project", "local"]
CONFIG_FILE_VARIABLE: Final = "TOOLWAY_CONFIG"
STATE_FOLDER_VARIABLE: Final = "TOOLWAY_STATE"
EXAMPLE_CONFIG: Final = '{"mcpServers": {"name": {"command": "npx", "args": ["-y", "package"]}}}'
PROJECT_FILE_NAMES: Final = (".mcp.json", "mcp.json")  # the last one has priority

_private_files: set[str] = set()


class ConfigPaths(msgspec.Struct, frozen=True):
    """The paths of Toolway's configuration files for one working directory, by scope.

    `project` contains only existing files. The `user` and `local` files may be missing.
    """

    root: Path  # root folder of the project
    user: Path
    project: tuple[Path, ...]
    local: Path

    def iter_by_scope(self) -> Iterator[tuple[Scope, Path]]:
        """Yield the scope and path of each configuration file, lowest priority first."""
        yield "user", self.user
        yield from (("project", path) for path in self.project)
        yield "local", self.local


def find_config_paths(environment: Mapping[str, str], directory: Path) -> ConfigPaths:
    """Return the paths of the configuration files for the working directory `directory`."""
    home = Path(home_folder(environment) or Path.home())
    config = config_folder(environment) or home / ".config" / "toolway"
    user = config / "mcp.json"
    root = _find_project_root(directory.absolute(), home)
    found = (root / name for name in PROJECT_FILE_NAMES)
    project = tuple(path for path in found if path.is_file() and not _is_same_path(path, user))
    label = re.sub(r"[^A-Za-z0-9.-]+", "-", root.name).strip("-") or "root"
    number = hashlib.sha256(os.path.realpath(root).encode()).hexdigest()[:10]
    return ConfigPaths(root, user, project, config / "projects" / f"{label}-{number}" / "mcp.json")


def no_config_error(paths: ConfigPaths) -> ConfigError:
    searched = [*(paths.root / name for name in PROJECT_FILE_NAMES), paths.user]
    return ConfigError(
        "no configuration found",
        detail=f"searched for {', '.join(map(str, searched))}",
        hint=(
            "import the servers of your clients: toolway init; or add one: toolway add NAME -- COMMAND; "
            f"or pick a file with --config or ${CONFIG_FILE_VARIABLE}"
        ),
        code="E-CONFIG-NONE",
    )


def _find_project_root(directory: Path, home: Path) -> Path:
    """Return the nearest folder, from `directory` upwards, with a project file or `.git`.

    The search stops below the home folder. If it finds nothing, return `directory`.
    """
    for folder in (directory, *directory.parents):
        if folder != directory and _is_same_path(folder, home):
            break
        if any((folder / name).is_file() for name in PROJECT_FILE_NAMES):
            return folder
        if (folder / ".git").exists():
            return folder
    return directory


def _is_same_path(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


# -- state folder -----------------------------------------------------------------------------------------------------


def own_folders(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the folders with Toolway's tokens, keys, secrets, and configuration, which servers never need."""
    found = (state_folder(environ), data_folder(environ), config_folder(environ), gateway_state_folder(environ))
    return tuple(folder for folder in found if folder is not None)


def add_private_file(path: str | os.PathLike[str]) -> None:
    """Remember a file with a secret that this process uses, such as the cluster key, to hide it from servers."""
    _private_files.add(os.path.abspath(path))


def private_files() -> tuple[str, ...]:
    """Return the files that `add_private_file` was told to hide from servers."""
    return tuple(sorted(_private_files))


def gateway_state_folder(environ: Mapping[str, str]) -> Path | None:
    """Return a gateway's state folder: `$TOOLWAY_STATE`, or else the default folder.

    Return None if neither `XDG_STATE_HOME` nor `HOME` is set. The gateway uses this folder, and so do the commands that
    inspect it.
    """
    if environ.get(STATE_FOLDER_VARIABLE):
        return Path(environ[STATE_FOLDER_VARIABLE])
    base = state_folder(environ)
    return base / "gateway" if base else None


# -- profile of a Windows user ----------------------------------------------------------------------------------------

PROFILE_VARIABLES: Final = ("USERPROFILE", "APPDATA", "LOCALAPPDATA")  # the last two may be redirected elsewhere
_LONG_PATH: Final = "\\\\?\\"  # prefix of paths that may have more than 260 characters


def profile_folders(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the folders that, on Windows, only their user, the system, and administrators can read."""
    return tuple(environ[name] for name in PROFILE_VARIABLES if environ.get(name))


def is_outside(folder: str, profile: Iterable[str]) -> bool:
    """Return True if a Windows folder is outside all folders of a profile, or False if the profile is unknown."""
    places = [_comparable_path(each) for each in profile]
    return bool(places) and not any(_comparable_path(folder).is_relative_to(each) for each in places)


def _comparable_path(path: str) -> PureWindowsPath:
    """Return a Windows path in a form for comparing: without `..` and long-path prefix, in lower case."""
    path = path.replace("/", "\\")
    if path.startswith(_LONG_PATH):
        path = path.removeprefix(_LONG_PATH)
        path = f"\\\\{path[4:]}" if path.upper().startswith("UNC\\") else path
    return PureWindowsPath(ntpath.normpath(path))
