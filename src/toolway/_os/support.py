"""Features that only some systems have, and advice for the others. `missing` answers for this system."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

System = Literal["linux", "macos", "windows", "other"]
Feature = Literal["sandbox", "sandbox-limits", "workers", "orphans"]

_SYSTEMS: Final[Mapping[str, System]] = {"linux": "linux", "darwin": "macos", "win32": "windows"}
SYSTEM: System = _SYSTEMS.get(sys.platform, "other")  # tests replace it

NAMES: Final[Mapping[System, str]] = {
    "linux": "Linux",
    "macos": "macOS",
    "windows": "Windows",
    "other": "this system",
}


class Missing(NamedTuple):
    """A feature that this system lacks: what failed, the evidence, and a fix to copy."""

    message: str
    detail: str
    hint: str


#: What each feature needs: the systems that have it, what the others say, why, and what to do there.
_FEATURES: Final[Mapping[Feature, tuple[frozenset[System], Missing]]] = {
    "sandbox": (
        frozenset({"linux", "macos"}),
        Missing(
            "{system} has no sandbox for servers",
            '"sandbox": "guard" and "strict" need Landlock and bubblewrap of Linux, or sandbox-exec of macOS',
            'use a container instead of a sandbox: "command": "docker", "args": ["run", "-i", "--rm", "IMAGE"]',
        ),
    ),
    "sandbox-limits": (
        frozenset({"linux"}),
        Missing(
            "a sandbox with hosts by name or with limits needs Linux",
            "the sandbox of {system} cannot grant hosts by name, and cannot limit memory and processes",
            'grant the whole network or none, without limits: "sandbox": {"network": true}',
        ),
    ),
    "workers": (
        frozenset({"linux"}),
        Missing(
            "--workers needs Linux",
            "{system} does not distribute the connections of one address to several processes",
            "run one process: toolway serve",
        ),
    ),
    "orphans": (
        frozenset({"linux"}),
        Missing(
            "the search for orphaned processes needs Linux",
            "it reads /proc, which {system} does not have",
            "look through all processes: {processes}",
        ),
    ),
}


def has_file_modes() -> bool:
    """Return True if each file says who may read it. On Windows, the folder decides for all files in it."""
    return SYSTEM != "windows"


def missing(feature: Feature) -> Missing | None:
    """Return the message for a feature that this system lacks, or None if it has it."""
    systems, texts = _FEATURES[feature]
    if SYSTEM in systems:
        return None
    facts = {"{system}": NAMES[SYSTEM], "{processes}": "tasklist /v" if SYSTEM == "windows" else "ps -axo pid,command"}
    filled = []
    for text in texts:
        for mark, value in facts.items():
            text = text.replace(mark, value)
        filled.append(text)
    return Missing(*filled)
