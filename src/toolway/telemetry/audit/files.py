"""What the sinks that are files have in common: one writer at a time, and a file for its owner alone."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from toolway.telemetry.audit.sink import SinkInUse


def lock(path: Path) -> int:
    """Raises `SinkInUse`. The lock ends with the process, however that ends."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise SinkInUse(f"{path} is written to by another process") from None
    return handle


def make_private(path: Path) -> None:
    """Let the file exist, and nobody else read it."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def sync_folder(path: Path) -> None:
    """A file that was just made is found again after a power cut only when its folder is on disk too."""
    handle = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_same_file(path: Path, inode: int) -> bool:
    try:
        return path.stat().st_ino == inode
    except FileNotFoundError:
        return False
