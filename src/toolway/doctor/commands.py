"""Where a command is found: on the PATH that we have, on that of a desktop application, or where people keep programs.

A terminal reads the files of its shell, and with them nvm, mise and others put themselves on PATH. A desktop
application is started by the system and knows nothing of that: what works in a terminal is "not found" there.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SHELL_WAIT: Final = 5.0  # for the files of a login shell
_MARK: Final = "__toolway_path__"
_DESKTOP: Final = {
    "darwin": "/usr/bin:/bin:/usr/sbin:/sbin",
    "linux": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/snap/bin",
}
#: Where programs are that only the files of a shell put on PATH, and who keeps them there.
_KEPT: Final = (
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
_SYSTEM: Final = (
    ("Homebrew", "/opt/homebrew/bin"),
    ("Homebrew", "/home/linuxbrew/.linuxbrew/bin"),
    ("/usr/local/bin", "/usr/local/bin"),
)


@dataclass(frozen=True, slots=True)
class Found:
    """Where a command is."""

    path: str | None = None  # on the PATH that the server would be started with
    elsewhere: str | None = None  # where it is if not there
    keeper: str = ""  # who keeps it there: nvm, volta, the login shell …
    desktop: str | None = None  # what a desktop application would find
    searched: str = ""  # the PATH

    @property
    def looked_in(self) -> str:
        """Both PATHs side by side: what was searched, and what a desktop application would search."""
        here, there = (_folders(path) for path in (self.searched, desktop_path()))
        return f"looked in {here or 'no folder'}" + (
            "" if here == there else f"\na desktop application looks in {there}"
        )


def _folders(path: str) -> str:
    return ", ".join(dict.fromkeys(filter(None, path.split(os.pathsep))))


async def look_up(command: str, path: str, environ: Mapping[str, str], cwd: str | None = None) -> Found:
    """Find `command` as a start with this PATH would, and elsewhere if that fails."""
    here = _which(command, path, cwd)
    desktop = _which(command, desktop_path(), cwd)
    if here is not None or os.path.dirname(command):
        return Found(path=here, desktop=desktop, searched=path)
    for keeper, folder in kept_folders(environ):
        found = shutil.which(command, path=str(folder))
        if found:
            return Found(elsewhere=found, keeper=keeper, searched=path)
    login = await login_path(environ)
    elsewhere = _which(command, login, cwd) if login else None
    return Found(elsewhere=elsewhere, keeper="your login shell", searched=path)


def _which(command: str, path: str, cwd: str | None) -> str | None:
    if os.path.dirname(command):
        # As exec does: relative to the folder in which the server is started.
        full = os.path.join(cwd or os.getcwd(), command)
        return full if os.path.isfile(full) and os.access(full, os.X_OK) else None
    return shutil.which(command, path=path)


def desktop_path() -> str:
    """The PATH of an application that was not started from a terminal."""
    return _DESKTOP["darwin" if sys.platform == "darwin" else "linux"]


def kept_folders(environ: Mapping[str, str]) -> Iterable[tuple[str, Path]]:
    """The folders of programs that exist, and who keeps them."""
    home = Path(environ.get("HOME") or os.path.expanduser("~"))
    for keeper, pattern in _KEPT:
        for folder in sorted(home.glob(pattern), key=_version, reverse=True):
            yield keeper, folder
    for keeper, name in _SYSTEM:
        if os.path.isdir(name):
            yield keeper, Path(name)


def _version(path: Path) -> tuple[int, ...]:
    found = re.search(r"v?(\d+(?:\.\d+)*)", str(path).partition(".nvm")[2] or str(path))
    return tuple(int(part) for part in found[1].split(".")) if found else ()


async def login_path(environ: Mapping[str, str]) -> str:
    """The PATH of a login shell of this user; empty where there is none, or it takes too long."""
    shell = environ.get("SHELL", "")
    if not os.path.isfile(shell) or os.path.basename(shell) not in ("bash", "zsh", "sh", "dash", "ksh", "fish"):
        return ""
    # The files of a shell may write what they like: the mark shows where our own line begins.
    script = f'printf "%s%s\\n" {_MARK} "$PATH"'
    text = await output_of([shell, "-l", "-i", "-c", script], environ, SHELL_WAIT)
    found = re.search(rf"{_MARK}(.*)", text)
    return found[1].strip() if found else ""


async def output_of(argv: list[str], environ: Mapping[str, str], limit: float) -> str:
    """What a program writes to stdout; empty where it cannot be started, or takes longer than `limit`."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=dict(environ),
            start_new_session=True,  # an interactive shell would take our terminal
        )
    except OSError:
        return ""
    try:
        async with asyncio.timeout(limit):
            data, _ = await process.communicate()
    except TimeoutError:
        return ""
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        with suppress(ProcessLookupError):
            await process.wait()
    return data.decode(errors="replace")
