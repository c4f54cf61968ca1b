"""What `--fix` does. Every change of a file is made by `config/editing`: all or nothing, with a copy of the old one."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from toolway.config.editing.documents import Document
from toolway.config.editing.edit import Edit, read_bytes
from toolway.config.editing.write import apply
from toolway.errors import ConfigError

Change = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class FileRepair:
    """A change of a file. It is made of what the file holds by then, so that several can follow each other."""

    what: str
    path: Path
    change: Change = field(compare=False, repr=False)

    def apply(self) -> str:
        before = read_bytes(self.path)
        if before is None:
            raise ConfigError(f"{self.path} is gone", file=str(self.path), code="E-CONFIG-FILE")
        copy = apply(Edit(self.path, before, self.change(before)))
        return f"{self.what}; the old file is kept as {copy}" if copy is not None else f"{self.what}: nothing to do"


@dataclass(frozen=True, slots=True)
class Executable:
    """Give a file the right to be run, to whoever may read it."""

    path: Path

    @property
    def what(self) -> str:
        return f"make {self.path} executable"

    def apply(self) -> str:
        mode = stat.S_IMODE(self.path.stat().st_mode)
        try:
            os.chmod(self.path, mode | (mode & 0o444) >> 2)
        except OSError as exc:
            raise ConfigError(f"{self.path} cannot be changed", evidence=str(exc), code="E-EDIT-WRITE") from None
        return f"made {self.path} executable"


@dataclass(frozen=True, slots=True)
class EntryRepair:
    """Other values for some keys of one entry; everything else in the file stays as it is."""

    what: str
    path: Path
    at: tuple[str, ...]  # where in the file the entry is
    changes: tuple[tuple[tuple[str, ...], str], ...]  # key, and keys below it → the value

    def apply(self) -> str:
        document = Document(self.path)
        for keys, value in self.changes:
            document.put((*self.at, *keys), value)
        copy = apply(document.edit())
        return f"{self.what}; the old file is kept as {copy}" if copy is not None else f"{self.what}: nothing to do"
