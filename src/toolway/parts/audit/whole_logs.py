"""Verifies whole audit logs: their records, MACs, checkpoints, and links to the logs they continue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from toolway.audit.log import missing_log_error
from toolway.audit.sink import AuditSink, ChainHead, SinkBroken, StoredRecord
from toolway.audit.verify import MissingLog, TamperedLog
from toolway.cli.exit_codes import ExitCode
from toolway.cli.output import Output
from toolway.errors import ConfigError
from toolway.part_api import AuditSettings
from toolway.parts.audit.known_checkpoints import LogCheckpoints
from toolway.parts.audit.log_access import describe_pruned, load_macs, open_logs, read_unstored, report_altered
from toolway.parts.audit.queries import find_unstored
from toolway.parts.audit.verify import VerifiedLog, read_beginning, refuse_replacement, verify_log


class AlteredLog(Exception):
    """Raised when an audit log was altered, damaged, or removed. It has the log's location and the reason."""

    def __init__(self, location: str, reason: TamperedLog | SinkBroken) -> None:
        super().__init__(f"{location}: {reason}")
        self.location = location
        self.reason = reason


def report_unusable(output: Output, exc: AlteredLog) -> ExitCode:
    """Print that a log was altered or removed, and return exit code 9."""
    if isinstance(exc.reason, MissingLog):
        output.print_error(missing_log_error(exc.location, exc.reason))
        return ExitCode.LINT
    return report_altered(output, exc.location, str(exc.reason))


class WholeLogs:
    """Verifies the configured audit log, or the logs of all gateways that share its name."""

    def __init__(
        self,
        settings: AuditSettings,
        key: Path | None,
        signed: LogCheckpoints,
        head: ChainHead | None = None,
        first: int | None = None,
    ) -> None:
        """Load the log's key from the file `key`, or from the file in the settings.

        `head` is a record that must exist. `first` is the latest record that a log may begin with. Raises `UsageError`
        if the file `key` cannot be read.
        """
        self._settings = settings
        self._key = key
        self._signed = signed
        self._head = head
        self._first = first
        self._macs = load_macs(settings, key)

    @property
    def has_key(self) -> bool:
        """Return True if the log's key was found, so MACs are checked."""
        return self._macs is not None

    def verify(self, on_progress: Callable[[int], None] = lambda _: None) -> dict[str, VerifiedLog]:
        """Verify all records, and return a summary of each log by its location.

        Raises `AlteredLog` if a log was altered, and `ConfigError` if the log is missing or cannot be read.
        """
        where = self._settings.file
        try:
            if where and not Path(where).exists():
                self._signed.check_missing(where)
        except TamperedLog as exc:
            raise AlteredLog(where, exc) from None
        with open_logs(self._settings) as logs:
            found: dict[str, VerifiedLog] = {}
            try:
                heads = _Heads(self._head, logs)
                for sink in logs:
                    where = sink.location
                    found[where] = self._verify_one(sink, heads, on_progress, is_only=len(logs) == 1)
                for location, each in found.items():
                    where = location
                    refuse_replacement(each, heads.found)
                where = " and ".join(found)
                if len(found) > 1:
                    self._signed.check_names(found)
                if self._head is not None and self._head not in heads.found:
                    reason = "it differs from the given head: records were removed from the end, or all rewritten"
                    raise TamperedLog(self._head.seq, reason)
            except (TamperedLog, SinkBroken) as exc:
                failure = AlteredLog(where, exc)
            else:
                return found
        raise failure

    def _verify_one(
        self, sink: AuditSink, heads: _Heads, on_progress: Callable[[int], None], *, is_only: bool
    ) -> VerifiedLog:
        journal = read_unstored(self._settings, self._key)
        checker = self._signed.checker(sink, self._macs, is_only=is_only)
        verified = verify_log(checker.rows(heads.watch(sink.read_forward())), on_progress, self._macs)
        _check_beginning(verified, self._first, has_key=self.has_key)
        newest = checker.newest
        return replace(
            verified,
            unstored=len(find_unstored(journal, sink)),
            checkpoints=checker.count,
            signed_through=newest.through if newest is not None else 0,
            signed_at=newest.time if newest is not None else "",
        )


class _Heads:
    """The records that one of the logs must contain: the given head, and the heads of continued logs."""

    def __init__(self, given: ChainHead | None, logs: Sequence[AuditSink]) -> None:
        self._wanted = {given} if given is not None else set()
        for sink in logs:
            try:
                beginning = read_beginning(next(sink.read_forward(), None))
            except ValueError as exc:
                raise TamperedLog(1, f"it cannot be read: {exc}") from None
            if beginning is not None:
                self._wanted.add(beginning.after)
        self.found: set[ChainHead] = set()

    def watch(self, rows: Iterator[StoredRecord]) -> Iterator[StoredRecord]:
        """Yield a log's records, noting which of the wanted records it contains."""
        numbers = {each.seq for each in self._wanted}
        for row in rows:
            if row.seq in numbers and ChainHead(row.seq, row.hash) in self._wanted:
                self.found.add(ChainHead(row.seq, row.hash))
            yield row


def _check_beginning(found: VerifiedLog, first: int | None, *, has_key: bool) -> None:
    """Raise `TamperedLog` if the audit log begins after the record number `first`, so older records are missing.

    Raises `ConfigError` if the log says that old records were removed, and the key to verify that is missing.
    """
    if first is not None and found.record_count and found.first_seq > first:
        reason = f"the log begins with it, not with record {first} or earlier"
        raise TamperedLog(found.first_seq, f"{reason}; {describe_pruned(found) or 'no removal is recorded'}")
    if found.first_seq > 1 and not has_key:
        raise ConfigError(
            "cannot verify how old audit records were removed",
            detail="the log's key was not found",
            hint="pass the log's key file: toolway audit verify --key FILE",
            code="E-AUDIT-OPEN",
        )
