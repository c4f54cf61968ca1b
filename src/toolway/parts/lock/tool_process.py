"""Runs package managers (npm, uv, and pip) with a time limit and without prompts."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from toolway.errors import ToolwayError

RUN_TIMEOUT_S: Final = 900.0  # the largest trees have thousands of packages
#: The caller's own folder may be an untrusted project: uv would use its settings and its `.venv`, and pip its pip.py.
NEUTRAL_FOLDER: Final = os.sep
_MAX_SHOWN_CHARS: Final = 1500
#: Settings of the calling environment that could make a package manager run code of packages, or skip hashes.
_DROPPED: Final = ("npm_config_ignore_scripts", "PIP_NO_BINARY", "UV_NO_BINARY", "UV_NO_BUILD", "PIP_REQUIRE_HASHES")


class LockError(ToolwayError):
    """Raised when packages cannot be resolved, installed or verified."""

    code = "E-LOCK"


def find_tool(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the path of a program on PATH, or None if it is not installed."""
    found = shutil.which(name, path=environ.get("PATH", os.defpath))
    return os.path.abspath(found) if found else None


def run_tool(
    argv: Sequence[str], environ: Mapping[str, str], *, folder: str | None = None, text: str = "", what: str = ""
) -> str:
    """Run a package manager and return its stdout. It runs in `folder`, or else in a folder without project files.

    Raises `LockError` with the end of its messages if it fails or takes too long.
    """
    env = {name: value for name, value in environ.items() if name not in _DROPPED and not name.startswith("TOOLWAY_")}
    env["PIP_USER"] = "0"  # cannot be combined with a folder
    name = os.path.basename(argv[0])
    try:
        done = subprocess.run(
            list(argv),
            cwd=folder or NEUTRAL_FOLDER,
            env=env,
            input=text,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LockError(what or f"{name} failed", detail=f"{name} did not end within {RUN_TIMEOUT_S:.0f} s") from None
    except OSError as exc:
        raise LockError(f"{name} cannot be started", detail=exc.strerror or str(exc)) from None
    if done.returncode:
        lines = [
            line for line in (done.stderr or done.stdout).splitlines() if line.strip() and "A complete log" not in line
        ]
        text = "\n".join(lines)
        detail = text if len(text) <= _MAX_SHOWN_CHARS else f"…{text[-_MAX_SHOWN_CHARS:]}"
        raise LockError(what or f"{name} failed", detail=detail, hint="fix the package in the entry, or try again")
    return done.stdout
