"""Servers that the user removed, so `toolway clients sync` does not import them again from a client's file.

Only digests are stored, because a command's arguments may contain a secret.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from toolway._os import state_folder
from toolway.errors import ConfigError
from toolway.secrets.encrypted_file import locked, read_private, write_private

MAX_REMOVED: Final = 1000  # the oldest are forgotten first


class RemovedServers:
    """The servers that the user removed, as digests of their identities in a file in the state folder."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @staticmethod
    def open(environment: Mapping[str, str]) -> RemovedServers | None:
        """Return this user's list of removed servers, or None if the environment does not define a folder for it."""
        base = state_folder(environment)
        return RemovedServers(base / "removed.json") if base else None

    def add(self, identity: str) -> None:
        """Record that the user removed this server. Raises `ConfigError` if the list cannot be written."""
        self._replace(lambda stored: [*(each for each in stored if each != digest(identity)), digest(identity)])

    def forget(self, identities: Collection[str]) -> None:
        """Take servers off the list, because the user added them again.

        Raises `ConfigError` if the list cannot be written.
        """
        added = {digest(each) for each in identities}
        if added & set(self._load()):
            self._replace(lambda stored: [each for each in stored if each not in added])

    def __contains__(self, identity: str) -> bool:
        return digest(identity) in self._load()

    def _load(self) -> list[str]:
        try:
            found = json.loads(read_private(self._file))
        except (OSError, ValueError):
            return []
        return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []

    def _replace(self, change: Callable[[list[str]], list[str]]) -> None:
        try:
            with locked(self._file):
                write_private(self._file, json.dumps(change(self._load())[-MAX_REMOVED:]).encode())
        except OSError as exc:
            detail = f"{self._file}: {exc.strerror or exc}"
            raise ConfigError("the removal cannot be remembered", detail=detail, code="E-STATE") from None


def digest(identity: str) -> str:
    return hashlib.sha256(identity.encode()).hexdigest()
