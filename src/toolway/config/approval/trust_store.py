"""The trust store: which project files, and which entries in their own files, a user trusts, by content."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from toolway._os import state_folder
from toolway.config.approval.accesses import runs_secret_command
from toolway.config.editing import jsonc
from toolway.errors import ConfigError
from toolway.secrets.encrypted_file import locked, read_private, write_private

_WITH_COMMANDS: Final = " with commands"  # after the digest: the commands in references were approved too
_ENTRIES_KEY: Final = "entries"  # no path of a project file: those are absolute
_WORKFLOWS_KEY: Final = "workflows"  # the same
MAX_APPROVED_ENTRIES: Final = 2000  # digests per file; the oldest are dropped


class TrustStore:
    """The project files and entries that the user trusts, in a JSON file in the state folder.

    A project file (`is_trusted`) starts programs, and everyone who can change the repository can change the file. So
    nothing in it is used until the user has reviewed it, and any change needs a new review. Trust is bound to the
    project's real folder, the file name, and the file's content, so it does not carry over to another project. Content
    with `${command:…}` also needs explicit permission to run commands.

    The workflow files that a project file names are approved one by one, by digest (`approved_workflows`).

    Entries in the user's own files (`approved_entries`) are approved by digest. See `held_entries.py`.

    If the trust store cannot be read, nothing is trusted.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    # -- project files ------------------------------------------------------------------------------------------------

    def is_trusted(self, path: Path, content: bytes) -> bool:
        found, digest = self._load().get(_project_key(path)), content_digest(content)
        return found == digest + _WITH_COMMANDS or (found == digest and not has_commands(content))

    def was_trusted(self, path: Path) -> bool:
        """Return True if the user trusted this project file, with its current content or an earlier one."""
        return _project_key(path) in self._load()

    def trust(self, path: Path, content: bytes, *, allow_commands: bool = False) -> None:
        """Trust this content of a project file, and no other content.

        Without `allow_commands`, content with `${command:…}` stays untrusted. Raises `ConfigError` if the trust store
        cannot be written.
        """
        value = content_digest(content) + (_WITH_COMMANDS if allow_commands else "")
        self._update(lambda stored: {**stored, _project_key(path): value})

    def revoke(self, path: Path) -> bool:
        """Stop trusting a project file. Return True if it was trusted.

        Raises `ConfigError` if the trust store cannot be written.
        """
        was_trusted = self.was_trusted(path)
        if was_trusted:
            self._update(lambda stored: {key: value for key, value in stored.items() if key != _project_key(path)})
            self._update_digests(_WORKFLOWS_KEY, _project_key(path), lambda known: [])
        return was_trusted

    def approved_workflows(self, path: Path) -> frozenset[str]:
        """Return the digests of a project file's trusted workflow files."""
        return self._digests(_WORKFLOWS_KEY, _project_key(path)) or frozenset()

    def approve_workflows(self, path: Path, digests: Collection[str]) -> None:
        """Add these digests to a project file's trusted workflow files.

        Raises `ConfigError` if the store cannot be written.
        """
        self._update_digests(_WORKFLOWS_KEY, _project_key(path), partial(_with_digests, digests))

    def revoke_workflows(self, path: Path, digests: Collection[str]) -> bool:
        """Remove these digests from a project file's trusted workflow files. Return True if any was trusted.

        Raises `ConfigError` if the store cannot be written.
        """
        was_approved = bool(self.approved_workflows(path) & set(digests))
        self._update_digests(_WORKFLOWS_KEY, _project_key(path), partial(_without_digests, digests))
        return was_approved

    # -- entries of the user's own files ------------------------------------------------------------------------------

    @property
    def has_entries(self) -> bool:
        """True if trusted entries are stored for any file, or if the store is damaged."""
        return self._is_damaged() or _ENTRIES_KEY in self._load()

    def approved_entries(self, file: str) -> frozenset[str] | None:
        """Return the digests of a file's trusted entries, or None if nothing is stored for the file."""
        found = self._digests(_ENTRIES_KEY, os.path.abspath(file))
        return frozenset() if found is None and self._is_damaged() else found

    def approve_entries(self, file: str, digests: Collection[str]) -> None:
        """Add digests to a file's trusted entries. Raises `ConfigError` if the store cannot be written."""
        self._update_digests(_ENTRIES_KEY, os.path.abspath(file), partial(_with_digests, digests))

    def revoke_entries(self, file: str, digests: Collection[str]) -> bool:
        """Remove digests from a file's trusted entries. Return True if any was trusted.

        Raises `ConfigError` if the store cannot be written.
        """
        was_approved = bool((self.approved_entries(file) or frozenset()) & set(digests))
        self._update_digests(_ENTRIES_KEY, os.path.abspath(file), partial(_without_digests, digests))
        return was_approved

    def _digests(self, kind: str, file: str) -> frozenset[str] | None:
        recorded = self._load().get(kind)
        found = recorded.get(file) if isinstance(recorded, dict) else None
        return frozenset(each for each in found if isinstance(each, str)) if isinstance(found, list) else None

    def _update_digests(self, kind: str, file: str, change: Callable[[list[str]], list[str]]) -> None:
        def update(stored: dict[str, Any]) -> dict[str, Any]:
            recorded = stored.get(kind)
            by_file = dict(recorded) if isinstance(recorded, dict) else {}
            known = by_file.get(file)
            by_file[file] = change(known if isinstance(known, list) else [])[-MAX_APPROVED_ENTRIES:]
            return {**stored, kind: by_file}

        self._update(update)

    # -- file ---------------------------------------------------------------------------------------------------------

    def _is_damaged(self) -> bool:
        """Return True if the trust store's file is not a JSON object, or False if it is missing or unreadable."""
        try:
            return not isinstance(json.loads(read_private(self.file)), dict)
        except OSError:
            return False
        except ValueError:
            return True

    def _load(self) -> dict[str, Any]:
        try:
            found = json.loads(read_private(self.file))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _update(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        try:
            with locked(self.file):
                write_private(self.file, json.dumps(change(self._load()), indent=2).encode())
        except OSError as exc:
            raise ConfigError(
                "the trust cannot be saved", detail=f"{self.file}: {exc.strerror or exc}", code="E-STATE"
            ) from None


def open_trust_store(environment: Mapping[str, str]) -> TrustStore:
    """Return this user's trust store.

    Raises `ConfigError` if neither `XDG_STATE_HOME` nor `HOME` is set.
    """
    folder = state_folder(environment)
    if folder is None:
        raise ConfigError(
            "no folder for the list of trusted files",
            detail="neither HOME nor XDG_STATE_HOME is set",
            hint="use --config FILE",
            code="E-STATE",
        )
    return TrustStore(folder / "approvals.json")


def content_digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def has_commands(content: bytes) -> bool:
    """Return True if a config file has a reference `${command:…}`.

    Return False if the file cannot be parsed, because then it does not run anything.
    """
    try:
        return runs_secret_command(jsonc.parse_jsonc(content.decode()).value)
    except (ConfigError, UnicodeDecodeError):
        return False


def _with_digests(digests: Collection[str], known: list[str]) -> list[str]:
    return [*_without_digests(digests, known), *digests]


def _without_digests(digests: Collection[str], known: list[str]) -> list[str]:
    return [each for each in known if each not in digests]


def _project_key(path: Path) -> str:
    """Return a project file's key in the trust store: the real path of its folder, and its name in that folder."""
    return os.path.join(os.path.realpath(path.parent), path.name)
