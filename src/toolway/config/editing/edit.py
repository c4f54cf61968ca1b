"""A change of a file that has been thought out and not been made: it can be shown first."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from toolway.errors import ConfigError

MAX_BYTES: Final = 32 * 1024 * 1024  # a client that keeps its history in the same file has megabytes of it


@dataclass(frozen=True, slots=True)
class Edit:
    """One file, before and after. `write.apply` makes the change, if the file is still as it was."""

    path: Path
    before: bytes | None = field(repr=False)  # None: there is no such file yet
    after: bytes = field(repr=False)
    secrets: frozenset[str] = field(default=frozenset(), repr=False)  # are not shown in the diff

    @property
    def changed(self) -> bool:
        return self.before != self.after

    def diff(self, context: int = 3) -> str:
        """The change as `diff -u` shows it, without secrets; empty where nothing changes."""
        old, new = (self._lines(data) for data in (self.before or b"", self.after))
        name = str(self.path)
        source = name if self.before is not None else "/dev/null"
        return "\n".join(difflib.unified_diff(old, new, source, name, lineterm="", n=context))

    def _lines(self, data: bytes) -> list[str]:
        text = data.decode(errors="replace").removeprefix("\ufeff")
        for secret in sorted(self.secrets, key=len, reverse=True):
            for written in {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}:
                text = text.replace(written, "***")
        return text.splitlines()


def read_bytes(path: Path) -> bytes | None:
    """What a file holds, None where there is none. Raises `ConfigError`."""
    try:
        with path.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise _unreadable(path, exc.strerror or str(exc)) from None
    if len(data) > MAX_BYTES:
        raise _unreadable(path, f"it is longer than {MAX_BYTES} bytes")
    return data


def decode(data: bytes, path: Path) -> str:
    """Raises `ConfigError` where it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise _unreadable(path, f"byte {exc.start} is not UTF-8", "save the file as UTF-8") from None


def _unreadable(path: Path, evidence: str, fix: str = "") -> ConfigError:
    file = str(path)
    return ConfigError(f"{file} cannot be read", file=file, evidence=evidence, fix=fix, code="E-CONFIG-FILE")
