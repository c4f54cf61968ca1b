"""Published results of the checks, one file per system."""

from __future__ import annotations

import json
import platform as python_platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, get_args

from tests.platforms.checks import Outcome

Platform = Literal["linux", "macos", "windows"]
PLATFORMS: Final[tuple[str, ...]] = get_args(Platform)
FOLDER: Final = Path(__file__).parent


def describe_system() -> str:
    """Return the Python and the system that run the checks, and whether the system is an imitation."""
    python = f"CPython {python_platform.python_version()}"
    if sys.platform == "win32":
        return f"{python} for Windows, {_wine() or 'Windows'}"
    if sys.platform == "darwin":
        is_real = Path("/System/Library").exists()
        return f"{python}, {'macOS' if is_real else 'macOS emulated on Linux'}"
    return f"{python}, Linux"


def _wine() -> str:
    """Return the version of Wine; "" on a real Windows."""
    if sys.platform == "win32":
        import ctypes

        version = getattr(ctypes.WinDLL("ntdll"), "wine_get_version", None)
        if version is not None:
            version.restype = ctypes.c_char_p
            return f"Wine {version().decode()} on Linux"
    return ""


def write_results(platform: Platform, outcomes: Sequence[Outcome]) -> Path:
    """Write what the page shows of a full run."""
    rows = []
    for each in outcomes:
        row = asdict(each)
        del row["seconds"]
        rows.append(row)
    content = {"system": describe_system(), "date": f"{datetime.now(UTC):%Y-%m-%d}", "checks": rows}
    file = FOLDER / f"{platform}.json"
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")
    return file


def read_results(platform: str) -> dict[str, Any] | None:
    """Return the published result of a system; None if there is none."""
    file = FOLDER / f"{platform}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
