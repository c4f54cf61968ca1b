"""Making an edit: the file is the old one or the new one at every moment, whatever ends us.

The new content is written beside the file, reaches the disk, and takes the file's name in one step. Before that a copy
of the old one has been put aside, and nobody else's change is overwritten: the file must still be what the edit began
with.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from toolway.config.editing import backups
from toolway.config.editing.edit import Edit, read_bytes
from toolway.errors import ConfigError

_ENDING: Final = ".toolway-new"
_PRIVATE: Final = 0o600  # a new file may hold tokens


def apply(edit: Edit, folder: Path | None = None) -> Path | None:
    """Make the change. Returns the copy of the old file; None where there was none, or nothing to change.

    `folder` is where copies are kept, the user's own if it is not said. Raises `ConfigError` and changes nothing where
    the file is not what it was when the edit was made, or cannot be written.
    """
    if not edit.changed:
        return None
    path = Path(os.path.realpath(edit.path))  # a link stays a link: many keep their files in a repository
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone_in(path.parent):
            return _replace(path, edit, backups.folder(os.environ) if folder is None else folder)
    except OSError as exc:
        raise ConfigError(
            f"{edit.path} cannot be written",
            file=str(edit.path),
            evidence=f"{exc.filename or path}: {exc.strerror or exc}; nothing was changed",
            fix=f"ls -ld {path.parent} {path}",
            code="E-EDIT-WRITE",
        ) from None


def _replace(path: Path, edit: Edit, folder: Path) -> Path | None:
    if read_bytes(path) != edit.before:
        raise ConfigError(
            f"{edit.path} was changed by somebody else",
            file=str(edit.path),
            evidence="it is not what it was when this change was prepared; nothing was written",
            fix="run the command again",
            code="E-EDIT-CHANGED",
        )
    _clear(path)
    copy = None if edit.before is None else backups.keep(path, edit.before, folder)
    new = path.with_name(f".{path.name}.{os.getpid()}{_ENDING}")
    try:
        _write(new, edit.after, path)
        os.replace(new, path)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise
    _sync(path.parent)
    return copy


def _write(new: Path, data: bytes, like: Path) -> None:
    """`data` on the disk, with the mode and the owner of the file that it will replace."""
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _PRIVATE)
    with open(handle, "wb") as opened:
        with suppress(FileNotFoundError):
            old = like.stat()
            if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                with suppress(PermissionError):
                    os.fchown(handle, old.st_uid, old.st_gid)
            os.fchmod(handle, stat.S_IMODE(old.st_mode))
        opened.write(data)
        opened.flush()
        os.fsync(handle)


def _clear(path: Path) -> None:
    """Remove what a writer left that was killed. Nobody else writes now: we hold the lock."""
    for left in path.parent.glob(f".{_escaped(path.name)}.*{_ENDING}"):
        left.unlink(missing_ok=True)


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """One writer of ours at a time in a folder. The lock is the folder's own: it leaves nothing behind."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
