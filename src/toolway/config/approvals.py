"""Which files of projects a person has approved, by their exact content.

Whoever can change a repository can change the file in it, and the file starts programs. So nothing in it is used before
a person has seen it, and a change of one byte asks again. What cannot be read approves nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from toolway.errors import ConfigError
from toolway.secrets.files import locked, read_private, write_private


class Approvals:
    """Kept in a file of the user's own: real path → digest of the content."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def approved(self, path: Path, content: bytes) -> bool:
        return self.all().get(os.path.realpath(path)) == digest(content)

    def approve(self, path: Path, content: bytes) -> None:
        """From now on this content of this file is used; another is not. Raises `ConfigError`."""
        self._change({os.path.realpath(path): digest(content)})

    def withdraw(self, path: Path) -> bool:
        """Whether it was approved. Raises `ConfigError`."""
        there = os.path.realpath(path) in self.all()
        if there:
            self._change({os.path.realpath(path): None})
        return there

    def all(self) -> dict[str, str]:
        try:
            found = json.loads(read_private(self.file))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _change(self, changes: Mapping[str, str | None]) -> None:
        try:
            with locked(self.file):
                new = {path: kept for path, kept in {**self.all(), **changes}.items() if kept is not None}
                write_private(self.file, json.dumps(new, indent=2).encode())
        except OSError as exc:
            raise ConfigError(
                "the approval cannot be kept", evidence=f"{self.file}: {exc.strerror or exc}", code="E-STATE"
            ) from None


def open_approvals(environment: Mapping[str, str]) -> Approvals:
    """Those of this user. Raises `ConfigError`."""
    base = environment.get("XDG_STATE_HOME")
    if not base and not environment.get("HOME"):
        raise ConfigError(
            "there is no place to keep approvals",
            evidence="neither HOME nor XDG_STATE_HOME is set",
            fix="name the file that is meant: --config FILE",
            code="E-STATE",
        )
    return Approvals(Path(base or f"{environment['HOME']}/.local/state") / "toolway" / "approvals.json")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
