"""What files held before we changed them: a folder of ours per file, one copy per change, for its owner alone.

They are not beside the file, because a project's folder is shared and a copy may hold what its file held.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

KEPT: Final = 50  # copies of one file
_ENDING: Final = ".bak"


@dataclass(frozen=True, slots=True)
class Backup:
    """One copy, and when it was made."""

    path: Path
    made: datetime

    def read(self) -> bytes:
        return self.path.read_bytes()


def folder(environment: Mapping[str, str]) -> Path:
    """Where all copies are."""
    home = Path(environment.get("HOME") or Path.home())
    state = environment.get("XDG_STATE_HOME")
    return (Path(state) if state else home / ".local" / "state") / "toolway" / "backups"


def of(file: Path, within: Path) -> list[Backup]:
    """The copies of a file, newest first."""
    found = [(path, _made(path)) for path in _folder_of(file, within).glob(f"*{_ENDING}")]
    return sorted((Backup(path, made) for path, made in found if made), key=lambda each: each.path.name, reverse=True)


def keep(file: Path, data: bytes, within: Path) -> Path:
    """A copy of what the file holds. It is on the disk when this returns."""
    place = _folder_of(file, within)
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = place / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}{_ENDING}"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())
    for old in of(file, within)[KEPT:]:
        old.path.unlink(missing_ok=True)
    return path


def _folder_of(file: Path, within: Path) -> Path:
    # The name is for people; the digest keeps two files of one name apart.
    digest = hashlib.sha256(str(file).encode()).hexdigest()[:12]
    return within / f"{file.name.lstrip('.') or 'file'}-{digest}"


def _made(path: Path) -> datetime | None:
    try:
        return datetime.strptime(path.name, f"%Y%m%dT%H%M%S.%fZ{_ENDING}").replace(tzinfo=UTC)
    except ValueError:
        return None
