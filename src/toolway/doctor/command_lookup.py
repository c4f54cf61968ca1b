"""Lookup of a server's command: on PATH, on the desktop PATH and in common bin folders.

A terminal runs the shell's startup files, in which nvm, mise and similar tools add themselves to PATH. The system
starts desktop applications without these files, so a command that works in a terminal is "not found" there.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toolway._os import HAS_SESSIONS, SYSTEM_NAME, home_folder, kill_session
from toolway.config.schema import Server
from toolway.upstream.diagnosis import NODE_PROGRAMS

LOGIN_SHELL_TIMEOUT_S: Final = 5.0  # seconds for the startup files of a login shell
_PATH_MARKER: Final = "__toolway_path__"
_DESKTOP_PATHS: Final = {
    "darwin": "/usr/bin:/bin:/usr/sbin:/sbin",
    "linux": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/snap/bin",
}
#: Version managers and the bin folders that only shell startup files put on PATH.
_HOME_BIN_DIRS: Final = (
    ("nvm", ".nvm/versions/node/*/bin"),
    ("fnm", ".local/share/fnm/node-versions/*/installation/bin"),
    ("volta", ".volta/bin"),
    ("asdf", ".asdf/shims"),
    ("mise", ".local/share/mise/shims"),
    ("pyenv", ".pyenv/shims"),
    ("bun", ".bun/bin"),
    ("deno", ".deno/bin"),
    ("cargo", ".cargo/bin"),
    ("npm", ".npm-global/bin"),
    ("~/.local/bin", ".local/bin"),
    ("~/bin", "bin"),
)
_SYSTEM_BIN_DIRS: Final = (
    ("Homebrew", "/opt/homebrew/bin"),
    ("Homebrew", "/home/linuxbrew/.linuxbrew/bin"),
    ("/usr/local/bin", "/usr/local/bin"),
)


@dataclass(frozen=True, slots=True)
class CommandMatch:
    """Result of looking up a server's command: its path on PATH, or its path elsewhere."""

    path: str | None = None  # on the PATH that the server would be started with
    other_path: str | None = None  # path outside PATH, if it is not on PATH
    manager: str = ""  # the manager of that other folder: nvm, volta, the login shell …
    path_on_desktop: str | None = None  # path that a desktop application would find
    search_path: str = ""  # the PATH that was searched

    @property
    def searched_folders(self) -> str:
        """Describe the searched PATH and, if it differs, the PATH of desktop applications."""
        here, there = (_format_folders(path) for path in (self.search_path, desktop_path()))
        return f"searched {here or 'no folder'}" + (
            "" if here == there else f"\na desktop application searches {there}"
        )


def _format_folders(path: str) -> str:
    return ", ".join(dict.fromkeys(filter(None, path.split(os.pathsep))))


async def find_command(command: str, path: str, environ: Mapping[str, str], cwd: str | None = None) -> CommandMatch:
    """Find a server's `command` on the PATH `path`, or else in other folders that often have it.

    The other folders are common bin folders and the PATH of the login shell.
    """
    on_path = _which(command, path, cwd)
    desktop = _which(command, desktop_path(), cwd)
    if on_path is not None or os.path.dirname(command):
        return CommandMatch(path=on_path, path_on_desktop=desktop, search_path=path)
    for manager, folder in common_bin_dirs(environ):
        found = shutil.which(command, path=str(folder))
        if found:
            return CommandMatch(other_path=found, manager=manager, search_path=path)
    login = await login_shell_path(environ)
    other_path = _which(command, login, cwd) if login else None
    return CommandMatch(other_path=other_path, manager="your login shell", search_path=path)


def _which(command: str, path: str, cwd: str | None) -> str | None:
    if os.path.dirname(command):
        # Like exec: relative to the server's working directory.
        full = os.path.join(cwd or os.getcwd(), command)
        return full if os.path.isfile(full) and os.access(full, os.X_OK) else None
    return shutil.which(command, path=path)


def desktop_path() -> str:
    """Return the usual PATH of an application that was not started from a terminal."""
    return _DESKTOP_PATHS.get(SYSTEM_NAME, _DESKTOP_PATHS["linux"])


def common_bin_dirs(environ: Mapping[str, str]) -> Iterable[tuple[str, Path]]:
    """Yield (manager, folder) for the existing bin folders of version managers such as nvm.

    Folders of newer versions are first. Homebrew and /usr/local/bin are last.
    """
    home = Path(home_folder(environ) or os.path.expanduser("~"))
    for manager, pattern in _HOME_BIN_DIRS:
        for folder in sorted(home.glob(pattern), key=_version_key, reverse=True):
            yield manager, folder
    for manager, name in _SYSTEM_BIN_DIRS:
        if os.path.isdir(name):
            yield manager, Path(name)


def _version_key(path: Path) -> tuple[int, ...]:
    found = re.search(r"v?(\d+(?:\.\d+)*)", str(path).partition(".nvm")[2] or str(path))
    return tuple(int(part) for part in found[1].split(".")) if found else ()


async def login_shell_path(environ: Mapping[str, str]) -> str:
    """Return the PATH of the user's login shell; "" if the shell is unknown or times out."""
    shell = environ.get("SHELL", "")
    if not os.path.isfile(shell) or os.path.basename(shell) not in ("bash", "zsh", "sh", "dash", "ksh", "fish"):
        return ""
    # Startup files may print anything: the marker shows where our own line begins.
    script = f'printf "%s%s\\n" {_PATH_MARKER} "$PATH"'
    text = await run_for_output([shell, "-l", "-i", "-c", script], environ, LOGIN_SHELL_TIMEOUT_S)
    found = re.search(rf"{_PATH_MARKER}(.*)", text)
    return found[1].strip() if found else ""


async def run_for_output(argv: list[str], environ: Mapping[str, str], timeout: float) -> str:
    """Return the stdout of a program; "" if it cannot be started or exceeds `timeout` seconds.

    Its process group is killed in the end.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=dict(environ),
            start_new_session=HAS_SESSIONS,  # an interactive shell would take over our terminal
        )
    except OSError:
        return ""
    try:
        async with asyncio.timeout(timeout):
            data, _ = await process.communicate()
    except TimeoutError:
        return ""
    finally:
        with suppress(ProcessLookupError):
            kill_session(process.pid)
        with suppress(ProcessLookupError):
            await process.wait()
    return data.decode(errors="replace")


# -- runtime of a command (Node.js, uv, Docker …) and its package version ----------------------------------------------


MIN_NODE_VERSION: Final = 18  # older versions have no `fetch`, which nearly every server needs
VERSION_TIMEOUT_S: Final = 3.0  # seconds
_RUNTIMES: Final = {**dict.fromkeys(NODE_PROGRAMS, "node"), "uvx": "uv", "uv": "uv", "docker": "docker", "deno": "deno"}
_OPTIONS_WITH_VALUE: Final = frozenset({"--python", "--with", "--registry", "--cache", "--index", "--prefix"})
_PACKAGE_OPTIONS: Final = ("--package", "-p", "--from")


async def detect_runtime(server: Server, path: str, environ: Mapping[str, str]) -> str:
    """Return the runtime of a server's command with its version, like `node v22.1.0`.

    Return "" if the command has no known runtime or its version cannot be read.
    """
    program = _RUNTIMES.get(os.path.basename(server.command or ""))
    if program is None:
        return ""
    # If the command is a full path, its folder is searched too, as after the fix for a command not on PATH.
    folder = os.path.dirname(server.command or "")
    search_path = os.pathsep.join(filter(None, (path, folder)))
    output = await run_for_output(
        ["/usr/bin/env", program, "--version"], {**environ, "PATH": search_path}, VERSION_TIMEOUT_S
    )
    found = re.search(r"v?\d+(?:\.\d+)+", output)
    return f"{program} {found[0]}" if found else ""


def is_old_node(runtime: str) -> bool:
    """Return True if `runtime` is a Node.js version that is too old for most MCP servers."""
    found = re.fullmatch(r"node v?(\d+)\..*", runtime)
    return found is not None and int(found[1]) < MIN_NODE_VERSION


def unpinned_package(server: Server) -> str:
    """Return the package that a server's npx, uvx or bunx command runs without a pinned version.

    Return "" if the version is pinned, or if the command is another one.
    """
    if os.path.basename(server.command or "") not in ("npx", "uvx", "bunx"):
        return ""
    package = _package_argument(server.args)
    version = re.search(r"(?<=.)@\d|[=<>~]=|^(?:git\+|https?:|file:|[./])", package)
    return "" if version else package


def _package_argument(args: tuple[str, ...]) -> str:
    rest = list(args)
    while rest:
        word = rest.pop(0)
        if word.startswith(tuple(f"{flag}=" for flag in _PACKAGE_OPTIONS)):
            return word.partition("=")[2]
        if word in _PACKAGE_OPTIONS:
            return rest[0] if rest else ""
        if word in _OPTIONS_WITH_VALUE and rest:
            rest.pop(0)
        elif not word.startswith("-"):
            return word
    return ""
