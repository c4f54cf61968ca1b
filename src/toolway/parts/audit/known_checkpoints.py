"""The public keys and signed checkpoints that `toolway audit verify` uses, from the state folder or a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolway.audit.checkpoints import Checkpoint, log_name, read_checkpoints
from toolway.audit.log import create_notes
from toolway.audit.signing import PublicKey, load_verifier, read_public_key
from toolway.audit.sink import AuditSink, ChainHead
from toolway.audit.verify import MissingLog
from toolway.cli.exit_codes import UsageError
from toolway.parts.audit.checkpoint_checker import CheckpointChecker

if TYPE_CHECKING:
    from toolway.audit.mac import RecordMacs
    from toolway.part_api import AuditSettings

MAX_FILE_BYTES = 64 * 1024 * 1024


class LogCheckpoints:
    """Public keys and known checkpoints (signed ends) for the audit logs to verify."""

    def __init__(self, settings: AuditSettings, file: Path | None, keys: Sequence[Path]) -> None:
        """Load the public keys and the checkpoints. Raises `UsageError` if a file that the user gave cannot be used."""
        self._notes = create_notes(settings)
        own = load_verifier(settings)
        self._keys = [*map(load_public_key, keys), *([own] if own is not None else [])]
        self._given = _read_file(file) if file is not None else []

    @property
    def has_keys(self) -> bool:
        return bool(self._keys)

    def checker(self, sink: AuditSink, macs: RecordMacs | None, *, is_only: bool) -> CheckpointChecker:
        """Return an object that compares one audit log with its checkpoints.

        `is_only` means that all given checkpoints belong to this log, even if it was renamed.
        """
        given = [each for each in self._given if is_only or each.log == log_name(sink.location)]
        return CheckpointChecker(self._keys, [*self._notes.read_for(sink, macs), *given])

    def check_missing(self, location: str) -> None:
        """Raise `MissingLog` if `location` has no log although one was signed there."""
        CheckpointChecker(self._keys, [*self._notes.read(location), *self._given]).check_end(ChainHead())

    def check_names(self, locations: Iterable[str]) -> None:
        """Raise `MissingLog` if a given checkpoint belongs to none of these logs."""
        names = {log_name(each) for each in locations}
        for each in self._given:
            if each.log not in names:
                raise MissingLog(each.through, f"it was signed at {each.time}, and its log is missing: {each.log}")


def load_public_key(path: Path) -> PublicKey:
    """Read a public key that the user named. Raises `UsageError` if it cannot be read."""
    try:
        return read_public_key(path)
    except (OSError, ValueError) as exc:
        hint = "print it where the log is written: toolway audit key"
        raise UsageError(f"the public key cannot be read: {path}", detail=str(exc), hint=hint) from None


def _read_file(file: Path) -> list[Checkpoint]:
    try:
        with file.open("rb") as lines:
            return read_checkpoints(lines.read(MAX_FILE_BYTES))
    except (OSError, ValueError) as exc:
        raise UsageError(f"the checkpoints cannot be read: {file}", detail=str(exc)) from None
