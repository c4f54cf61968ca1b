"""Edits JSON and TOML files: read, plan an edit, back up, write atomically. YAML files are only read."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal, cast

import msgspec

from toolway._os import (
    O_PRIVATE,
    O_UNSHARED,
    copy_owner_and_mode,
    lock_folder_handle,
    lock_handle,
    state_folder,
    sync_folder,
)
from toolway.config.editing.patch import REMOVED, KeyPath, TextFormat, apply_value
from toolway.errors import ConfigError

FormatName = Literal["json", "toml", "yaml"]
MAX_EDITED_BYTES: Final = 32 * 1024 * 1024  # some clients keep megabytes of history in the same file
MAX_BACKUPS: Final = 50  # backups per file
_MODULES: Final = {"json": "jsonc", "toml": "toml", "yaml": "yaml"}  # imported on first use
_FORMAT_BY_SUFFIX: Final[dict[str, FormatName]] = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}
_BACKUP_SUFFIX: Final = ".bak"
_TEMPORARY_SUFFIX: Final = ".toolway-new"
_PRIVATE_MODE: Final = 0o600  # a new file may hold tokens


class ConfigDocument:
    """A config file in JSON, TOML, or YAML: its parsed value and its text. A missing file is empty.

    `set` changes the value and text only in memory, and `to_edit` returns the changes. Raises `ConfigError` if the file
    cannot be read or parsed.
    """

    def __init__(self, path: Path, format: FormatName | None = None) -> None:
        self.path = path
        self.format: FormatName = format or _FORMAT_BY_SUFFIX.get(path.suffix, "json")
        self._text_format = cast(TextFormat, import_module(f"toolway.config.editing.{_MODULES[self.format]}"))
        self._before = read_file_bytes(path)
        self.text = decode_file(self._before or b"", path)
        self.value: Any = self._text_format.parse_text(self.text, str(path))

    def get(self, path: KeyPath) -> Any:
        """Return the parsed value at a key path, or None if the path does not exist."""
        value = self.value
        for key in path:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def key_lines(self, root: KeyPath) -> dict[str | int, int]:
        """Return the line number of each key or list item directly below the key path `root`."""
        return self._text_format.key_lines(self.text, root)

    def set(self, path: KeyPath, value: Any) -> None:
        """Set the value at a key path, in memory only.

        Raises `ConfigError`, changing nothing, if this would change unrelated text in the file.
        """
        self.text = apply_value(self._text_format, self.text, path, value, str(self.path))
        self.value = self._text_format.parse_text(self.text, str(self.path))

    def remove(self, path: KeyPath) -> None:
        self.set(path, REMOVED)

    def to_edit(self, secrets: frozenset[str] = frozenset()) -> Edit:
        """Return all changes since the file was read as one edit, whose diff masks `secrets`."""
        if self._before is None and not self.text:
            return Edit(self.path, None, b"", secrets)
        return Edit(self.path, self._before, self.text.encode(), secrets)


@dataclass(frozen=True, slots=True)
class Edit:
    """A planned edit of a file: its content before and after. It can be shown as a diff first.

    `apply_edit` writes it if the file still has the content `before`.
    """

    path: Path
    before: bytes | None = field(repr=False)  # None: the file does not exist yet
    after: bytes = field(repr=False)
    secrets: frozenset[str] = field(default=frozenset(), repr=False)  # masked in the diff

    @property
    def has_changes(self) -> bool:
        return self.before != self.after

    def diff(self, context: int = 3) -> str:
        """Return the edit in the format of `diff -u` with secrets masked, or "" if nothing changes.

        A link's name is followed by the file it points to, because that is the file that changes.
        """
        old, new = (self._masked_lines(data) for data in (self.before or b"", self.after))
        is_link = self.path.is_symlink() or self.path.parent.is_symlink()
        name = f"{self.path} -> {os.path.realpath(self.path)}" if is_link else str(self.path)
        source = name if self.before is not None else "/dev/null"
        return "\n".join(difflib.unified_diff(old, new, source, name, lineterm="", n=context))

    def _masked_lines(self, data: bytes) -> list[str]:
        text = data.decode(errors="replace").removeprefix("\ufeff")
        for secret in sorted(self.secrets, key=len, reverse=True):
            for spelling in {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}:
                text = text.replace(spelling, "***")
        return text.splitlines()


# -- write ------------------------------------------------------------------------------------------------------------


def apply_edit(edit: Edit, backup_folder: Path | None = None) -> Path | None:
    """Write the edit atomically: after a crash the file has its old or its new content.

    The new content is written to a temporary file, synced to disk, and renamed to the file. A backup of the old content
    is saved before.

    Args:
        edit: the planned edit.
        backup_folder: folder with all backups; default: the user's.

    Returns:
        The backup of the old file; None if there was no file or nothing to change.

    Raises:
        ConfigError: the file has changed since the edit was planned, or cannot be written. Nothing is changed.
    """
    if not edit.has_changes:
        return None
    path = Path(os.path.realpath(edit.path))  # keep symbolic links: many users keep these files in a repository
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock_folder(path.parent):
            return _replace_file(
                path, edit, default_backup_folder(os.environ) if backup_folder is None else backup_folder
            )
    except OSError as exc:
        raise ConfigError(
            f"{edit.path} cannot be written",
            file=str(edit.path),
            detail=f"{exc.filename or path}: {exc.strerror or exc}; nothing was changed",
            hint=f"ls -ld {path.parent} {path}",
            code="E-EDIT-WRITE",
        ) from None


def _replace_file(path: Path, edit: Edit, backup_folder: Path) -> Path | None:
    if read_file_bytes(path) != edit.before:
        raise ConfigError(
            f"{edit.path} was changed by another program",
            file=str(edit.path),
            detail="it changed after this change was prepared; nothing was written",
            hint="run the command again",
            code="E-EDIT-CHANGED",
        )
    _remove_stale_files(path)
    backup = None if edit.before is None else save_backup(path, edit.before, backup_folder)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY_SUFFIX}")
    try:
        _write_synced(temporary, edit.after, path)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)
    return backup


def _write_synced(temporary: Path, data: bytes, like: Path) -> None:
    """Write `data` to the new file `temporary` and sync it, with the mode and owner of `like`.

    `like` is the file that it will replace. If `like` does not exist, the mode is 0600.
    """
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_PRIVATE, _PRIVATE_MODE)
    with open(handle, "wb") as opened:
        with suppress(FileNotFoundError):
            copy_owner_and_mode(like.stat(), handle)
        opened.write(data)
        opened.flush()
        os.fsync(handle)


def _remove_stale_files(path: Path) -> None:
    """Remove the temporary files that killed writers of `path` left behind.

    The caller holds the lock on the folder, so no other writer is active.
    """
    for left in path.parent.glob(f".{_escape_glob(path.name)}.*{_TEMPORARY_SUFFIX}"):
        left.unlink(missing_ok=True)


def _escape_glob(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder, across all processes. Waits until the lock is free.

    The folder itself is locked, so no lock file is left behind.
    """
    handle = lock_folder_handle(folder)
    try:
        lock_handle(handle)
        yield
    finally:
        os.close(handle)


# -- read -------------------------------------------------------------------------------------------------------------


def read_file_bytes(path: Path) -> bytes | None:
    """Return a file's content, or None if the file does not exist.

    Raises `ConfigError` if it cannot be read, or is larger than `MAX_EDITED_BYTES` (32 MiB).
    """
    try:
        with path.open("rb") as opened:
            data = opened.read(MAX_EDITED_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise _unreadable_error(path, exc.strerror or str(exc)) from None
    if len(data) > MAX_EDITED_BYTES:
        raise _unreadable_error(path, f"it is larger than {MAX_EDITED_BYTES} bytes")
    return data


def decode_file(data: bytes, path: Path) -> str:
    """Decode a file's content. Raises `ConfigError` if it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise _unreadable_error(path, f"byte {exc.start} is not UTF-8", "save the file as UTF-8") from None


def _unreadable_error(path: Path, detail: str, hint: str = "") -> ConfigError:
    file = str(path)
    return ConfigError(f"{file} cannot be read", file=file, detail=detail, hint=hint, code="E-CONFIG-FILE")


# -- backups ----------------------------------------------------------------------------------------------------------


class Backup(msgspec.Struct, frozen=True):
    """A backup of a config file's earlier content, and when the backup was made.

    Backups are not kept next to the file, because a project folder is shared, and a backup may contain secrets from the
    file.
    """

    path: Path
    created: datetime

    def read(self) -> bytes:
        return self.path.read_bytes()


def default_backup_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder with all of this user's backups, which is `toolway/backups` in the state folder."""
    return (state_folder(environment) or Path.home() / ".local" / "state" / "toolway") / "backups"


def list_backups(file: Path, backup_folder: Path) -> list[Backup]:
    """Return a config file's backups, newest first."""
    found = [
        (path, _parse_created(path)) for path in _backup_folder_for(file, backup_folder).glob(f"*{_BACKUP_SUFFIX}")
    ]
    return sorted(
        (Backup(path, created) for path, created in found if created), key=lambda each: each.path.name, reverse=True
    )


def save_backup(file: Path, data: bytes, backup_folder: Path) -> Path:
    """Save `data`, the old content of `file`, as a backup; sync it to disk and return its path.

    Only the newest 50 backups of the file are kept.
    """
    file_folder = _backup_folder_for(file, backup_folder)
    file_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = file_folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}{_BACKUP_SUFFIX}"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_UNSHARED, 0o600)
    with open(handle, "wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())
    for old in list_backups(file, backup_folder)[MAX_BACKUPS:]:
        old.path.unlink(missing_ok=True)
    return path


def _backup_folder_for(file: Path, backup_folder: Path) -> Path:
    # The name is for humans; the digest distinguishes files with the same name.
    digest = hashlib.sha256(str(file).encode()).hexdigest()[:12]
    return backup_folder / f"{file.name.lstrip('.') or 'file'}-{digest}"


def _parse_created(path: Path) -> datetime | None:
    try:
        return datetime.strptime(path.name, f"%Y%m%dT%H%M%S.%fZ{_BACKUP_SUFFIX}").replace(tzinfo=UTC)
    except ValueError:
        return None
