"""The installed trees of locked packages: where they are, and what this machine knows about each.

A tree is stored in the data folder under the digest of its content. The digest of its local part (`tree.py`) is in the
state folder, which sandboxed servers cannot see.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toolway._os import data_folder, machine_name, state_folder
from toolway.errors import ConfigError
from toolway.parts.lock import PackageLocks
from toolway.parts.lock.lock_file import LOCK_CODE
from toolway.parts.lock.tree import hash_tree

_NAME_DIGITS: Final = 32  # of a digest, in the name of a folder: the path of a script's interpreter must stay short


def machine_platform() -> str:
    """Return this machine's platform for npm, such as `linux-x86_64`."""
    return machine_name()


@dataclass(frozen=True, slots=True)
class TreeStore:
    """The user's installed packages: one folder (tree) for each locked entry, named after its digest."""

    trees: Path
    records: Path

    @classmethod
    def open(cls, environ: Mapping[str, str]) -> TreeStore:
        """Return the package store in this user's data folder. Raises `ConfigError` if the user has no home folder."""
        data, state = data_folder(environ), state_folder(environ)
        if not data or not state:
            raise ConfigError("no folder for locked packages", detail="HOME is not set", code=LOCK_CODE)
        return cls(data / PackageLocks.program_folder, state / PackageLocks.program_folder)

    def folder(self, digest: str, platform_name: str) -> Path:
        """Return the folder of the installed packages (tree) with this digest."""
        tag = platform_name.rpartition("-")[2]
        return self.trees / (f"{digest[:_NAME_DIGITS]}-{tag}" if tag.startswith("cp") else digest[:_NAME_DIGITS])

    def is_installed(self, digest: str, platform_name: str) -> bool:
        folder = self.folder(digest, platform_name)
        return folder.is_dir() and self._record(folder).is_file()

    def check(self, digest: str, platform_name: str) -> str:
        """Compare all files of installed packages (a tree) with the stored digests.

        Return "" if they are unchanged, or else what differs.
        """
        folder = self.folder(digest, platform_name)
        try:
            record = json.loads(self._record(folder).read_bytes())
            expected = record["local"] if record["tree"] == digest else ""
            found = hash_tree(os.fspath(folder))
        except FileNotFoundError:
            return "it is not installed on this machine"
        except (OSError, ValueError, KeyError, TypeError) as exc:
            return f"it cannot be read: {exc}"[:200]
        if (found.portable, found.local) == (digest, expected):
            return ""
        return f"its files differ from those that were locked; the newest change is {found.newest}"

    @contextmanager
    def new_tree(self) -> Iterator[Path]:
        """Yield an empty folder to install packages into. Unless `add` has moved it, it is removed at the end."""
        self.trees.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".new-", dir=self.trees))
        try:
            yield folder
        finally:
            remove_tree(folder)

    def add(self, new: Path, digest: str, platform_name: str) -> Path:
        """Move installed packages (a complete tree) into the store, and record the digest of their local files."""
        folder = self.folder(digest, platform_name)
        _make_read_only(new)
        local = hash_tree(os.fspath(new)).local
        self.records.mkdir(mode=0o700, parents=True, exist_ok=True)
        record = self._record(folder)
        record.unlink(missing_ok=True)  # until the tree is complete
        os.chmod(new, 0o755)  # a folder that is moved must be writable
        if folder.exists():
            with self.new_tree() as old:
                os.chmod(folder, 0o755)
                os.rename(folder, old / "old")
                os.rename(new, folder)
        else:
            os.rename(new, folder)
        os.chmod(folder, 0o555)
        temporary = record.with_suffix(".new")
        temporary.write_text(json.dumps({"tree": digest, "local": local}))
        os.replace(temporary, record)
        return folder

    def _record(self, folder: Path) -> Path:
        return self.records / f"{folder.name}.json"


def remove_tree(folder: Path) -> None:
    """Delete a folder and everything in it, even if it contains read-only folders."""
    if not folder.exists():
        return
    for path, _, _ in os.walk(folder):
        with suppress(OSError):
            os.chmod(path, 0o755)
    shutil.rmtree(folder, ignore_errors=True)


def _make_read_only(folder: Path) -> None:
    """Make an installed tree read-only, because a server that writes into its own package would change the digest."""
    for path, _, files in os.walk(folder, topdown=False):
        for name in files:
            file = os.path.join(path, name)
            mode = os.lstat(file).st_mode
            if stat.S_ISREG(mode):
                os.chmod(file, 0o555 if mode & 0o100 else 0o444)
        os.chmod(path, 0o555)
