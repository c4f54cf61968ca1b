"""Files for their owner alone, replaced at once or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def write_private(file: Path, data: bytes) -> None:
    """Raises `OSError`; then the file is as it was."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, new = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")  # its owner alone may read it
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.replace(new, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise
    _settle(file.parent)


def read_private(file: Path) -> bytes:
    """Raises `OSError`. What others could read is closed to them."""
    with open(file, "rb") as opened:
        mode = os.fstat(opened.fileno()).st_mode
        if mode & 0o077:
            os.fchmod(opened.fileno(), 0o600)
        return opened.read()


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """One at a time, among all processes that change `file`."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(os.open(file.with_name(f".{file.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600), "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _settle(folder: Path) -> None:
    """A rename is on disk when its folder is."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
