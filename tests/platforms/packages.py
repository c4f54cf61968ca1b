"""`toolway trust lock`, with a registry on loopback."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tests.parts.lock.registry import serving
from tests.platforms.checks import Message, NotRun, check
from tests.platforms.home import IS_WINDOWS, ROOT, Home


def find_uv() -> str | None:
    """Return the folder of uv: on PATH, of scripts/install, or of requirements/windows.txt."""
    places = [None, str(ROOT / ".uv/bin"), *(os.path.join(each, "bin") for each in sys.path)]
    found = next((found for place in places if (found := shutil.which("uv", path=place))), None)
    return found and str(Path(found).parent)


@check("Packages", "`toolway trust lock` pins a `uvx` server, which then starts from its tree without a registry")
def lock(home: Home) -> str | Message | NotRun:
    folder = find_uv()
    if folder is None:
        return NotRun("uv is not installed")
    with serving() as registry:
        programs = (folder, str(Path(sys.executable).parent), home.environ["PATH"])
        home.environ |= registry.environment() | {"PATH": os.pathsep.join(programs)}
        if IS_WINDOWS:
            home.environ["PIP_CONFIG_FILE"] = "nul"
        home.serve_these({"acme": {"command": "uvx", "args": ["acme-tiny", "hallo"]}})
        home.toolway("trust", "lock", "--min-age", "0")
        home.toolway("trust", "lock", "--check")
    assert "hallo" in home.toolway("call", "acme.words")
    return "the registry is gone, and the server answers"
