"""Orders npm (Semantic Versioning) and PyPI (PEP 440) versions, for the ranges in OSV records. No I/O."""

from __future__ import annotations

import re
from typing import Any, Final

from toolway.parts.lock.runner_command import Ecosystem

_SEMVER: Final = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:-([0-9A-Za-z.-]+))?(?:\+.*)?")
_PEP440: Final = re.compile(
    r"v?(?:(\d+)!)?(\d+(?:\.\d+)*)"
    r"(?:[-_.]?(a|alpha|b|beta|rc|c|pre|preview)[-_.]?(\d*))?"
    r"(?:(?:[-_.]?(post|rev|r)[-_.]?(\d*))|-(\d+))?"
    r"(?:[-_.]?(dev)[-_.]?(\d*))?"
    r"(?:\+([a-z0-9]+(?:[-_.][a-z0-9]+)*))?",
    re.IGNORECASE,
)
_STAGES: Final = {"a": 0, "alpha": 0, "b": 1, "beta": 1, "rc": 2, "c": 2, "pre": 2, "preview": 2}
_LAST: Final = 1 << 62


def version_key(ecosystem: Ecosystem, version: str) -> tuple[Any, ...] | None:
    """Return a sort key for an npm or PyPI version, or None if the text is not a valid version."""
    return _semver_key(version) if ecosystem == "npm" else _pep440_key(version)


def _semver_key(version: str) -> tuple[Any, ...] | None:
    found = _SEMVER.fullmatch(version.strip())
    if found is None:
        return None
    numbers = tuple(int(each or 0) for each in found.groups()[:3])
    if found[4] is None:
        return (*numbers, 1, ())
    parts = tuple((0, int(each), "") if each.isdigit() else (1, 0, each) for each in found[4].split("."))
    return (*numbers, 0, parts)


def _pep440_key(version: str) -> tuple[Any, ...] | None:
    found = _PEP440.fullmatch(version.strip())
    if found is None:
        return None
    epoch, release, stage, stage_number, post, post_number, implicit_post, dev, dev_number, _ = found.groups()
    numbers = [int(each) for each in release.split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    is_post = post is not None or implicit_post is not None
    if stage is not None:
        pre = (_STAGES[stage.lower()], int(stage_number or 0))
    else:
        pre = (-1, 0) if dev is not None and not is_post else (3, 0)
    after = int(post_number or implicit_post or 0) if is_post else -1
    return (int(epoch or 0), tuple(numbers), pre, after, int(dev_number or 0) if dev is not None else _LAST)
