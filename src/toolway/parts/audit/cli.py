"""`toolway audit verify` and `ls`: verify the audit log, and list its records. The rest is in `cli_export.py`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolway.audit.log import load_redactor
from toolway.audit.sink import ChainHead
from toolway.cli.exit_codes import ExitCode, UsageError
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.output import Output
from toolway.config.field_reader import parse_duration
from toolway.errors import ConfigError
from toolway.parts.audit.known_checkpoints import LogCheckpoints
from toolway.parts.audit.log_access import (
    LogFile,
    audit_settings,
    describe_pruned,
    open_logs,
    read_unstored,
    with_cluster_key,
)
from toolway.parts.audit.queries import AuditQuery, find_newest, find_unstored
from toolway.parts.audit.whole_logs import AlteredLog, WholeLogs, report_unusable

if TYPE_CHECKING:
    from toolway.audit.sink import RecordFields
    from toolway.part_api import AuditSettings
    from toolway.parts.audit.verify import Beginning, VerifiedLog

_HEAD_PATTERN = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})")
_PROGRESS_STEP = 10_000  # records between two progress updates
_DAYS_PATTERN = re.compile(r"([0-9]{1,6})d")
Since = Annotated[str, typer.Option("--since", metavar="TIME", help="Maximum age: 30m, 2h, 7d.", show_default=False)]
Kind = Annotated[
    str, typer.Option("--kind", metavar="KIND", help="For example call, call.intent, process.", show_default=False)
]


def audit_verify(
    context: CommandContext,
    log: LogFile = None,
    head: Annotated[
        str | None,
        typer.Option("--head", metavar="NUMBER:HASH", help="Head printed by an earlier verify.", show_default=False),
    ] = None,
    first: Annotated[
        int | None,
        typer.Option(
            "--first",
            metavar="NUMBER",
            min=1,
            help="Fail if the log starts after this record.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option("--key", metavar="FILE", help="Key file of a log at another path.", show_default=False),
    ] = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option(
            "--checkpoints",
            metavar="FILE",
            help="Checkpoints that a webhook received, one per line.",
            show_default=False,
        ),
    ] = None,
    public_key: Annotated[
        list[Path] | None,
        typer.Option(
            "--public-key", metavar="FILE", help="Public key of checkpoints; may be repeated.", show_default=False
        ),
    ] = None,
    without_key: Annotated[
        bool, typer.Option("--without-key", help="Accept that MACs or signatures are not checked.")
    ] = False,
) -> CommandResult:
    """Verify the whole log. Exit with 9 if a record was changed, removed or added, or if a key is missing."""
    return run_audit_verify(context, log, head, first, key, checkpoints, public_key, without_key=without_key)


def audit_ls(
    context: CommandContext,
    log: LogFile = None,
    server: Annotated[str | None, typer.Option("--server", metavar="NAME", show_default=False)] = None,
    tool: Annotated[str | None, typer.Option("--tool", metavar="NAME", show_default=False)] = None,
    call: Annotated[str | None, typer.Option("--call", metavar="ID", show_default=False)] = None,
    caller: Annotated[str | None, typer.Option("--caller", metavar="WHO", show_default=False)] = None,
    outcome: Annotated[
        str | None, typer.Option("--outcome", metavar="WORD", help="For example ok, unknown.", show_default=False)
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Idempotency key.", show_default=False)
    ] = None,
    kind: Kind = "",
    since: Since = "",
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=1, help="Number of records.")] = 50,
) -> CommandResult:
    """Show the recorded intents and outcomes of calls, and other events."""
    field_filters = {"server": server, "tool": tool, "call": call, "caller": caller, "outcome": outcome, "key": key}
    return run_audit_ls(context, log, field_filters, kind, since, lines)


# -- verify and list -------------------------------------------------------------------------------------------


def run_audit_verify(
    context: CommandContext,
    file: str | None,
    head: str | None,
    first: int | None,
    key: Path | None,
    checkpoints: Path | None = None,
    public_keys: Sequence[Path] | None = None,
    *,
    without_key: bool = False,
) -> ExitCode:
    """Verify all records of the audit log and print a summary.

    Returns 9 if it was altered, or if a key is missing and `without_key` is False.
    """
    output, settings = context.output, audit_settings(context, file)
    signed = LogCheckpoints(with_cluster_key(settings), checkpoints, public_keys or ())
    logs = WholeLogs(settings, key, signed, _parse_head(head) if head is not None else None, first)
    try:
        with output.spinner("verifying the log") as update:
            found = logs.verify(_verify_progress(update))
    except AlteredLog as exc:
        return report_unusable(output, exc)
    missing = _list_missing_keys(found.values(), has_key=logs.has_key, has_public_key=signed.has_keys)
    if missing and not without_key:
        output.print_error(unchecked_error(" and ".join(found), missing))
        return ExitCode.LINT
    if len(found) > 1 and output.as_json:
        output.print_json(
            {"intact": True, "logs": [_verified_to_json(location, each) for location, each in found.items()]}
        )
    else:
        for location, each in found.items():
            _print_verified(output, location, each, show_location=len(found) > 1)
    for what in missing:
        output.info(what, "yellow")
    return ExitCode.OK


def _list_missing_keys(found: Iterable[VerifiedLog], *, has_key: bool, has_public_key: bool) -> list[str]:
    """Return what could not be checked because keys are missing."""
    missing = []
    if not has_key:
        missing.append("skipped the MAC check: no log key found (pass --key FILE)")
    if not has_public_key and any(each.checkpoints for each in found):
        missing.append("signatures were not checked, because the public key was not found: --public-key FILE")
    return missing


def unchecked_error(location: str, missing: list[str]) -> ConfigError:
    """Return the error for a log that was read without the keys that could prove it is intact."""
    return ConfigError(
        f"the audit log cannot be verified without its keys: {location}",
        detail="; ".join(missing),
        hint="add the keys. To check only the hashes, which proves much less: toolway audit verify --without-key",
        code="E-AUDIT-UNCHECKED",
    )


def run_audit_ls(
    context: CommandContext,
    file: str | None,
    field_filters: Mapping[str, str | None],
    kind: str,
    since: str,
    limit: int,
) -> ExitCode:
    """Print the newest audit records that match the filters."""
    output, settings = context.output, audit_settings(context, file)
    record_filter = build_filter(settings, field_filters, kind, since)
    with open_logs(settings) as logs:
        journal = read_unstored(settings)
        newest = (find_newest(sink, record_filter, limit, find_unstored(journal, sink)) for sink in logs)
        found = sorted((each for some in newest for each in some), key=timestamp)[-limit:]
    if output.as_json:
        output.print_json({"records": found})
    elif found:
        rows = [
            (_format_time(each), each["kind"], _record_subject(each), _record_outcome(each), str(each.get("call", "")))
            for each in found
        ]
        output.print_table(("time", "kind", "what", "outcome", "call"), rows)
    else:
        output.info("no record matches")
    return ExitCode.OK


# -- selection of the log ----------------------------------------------------------------------------------------------


# -- filters -----------------------------------------------------------------------------------------------------------


def build_filter(
    settings: AuditSettings, field_filters: Mapping[str, str | None], kind: str, since: str, until: str = ""
) -> AuditQuery:
    fields = {name: value for name, value in field_filters.items() if value is not None}
    if "key" in fields:
        try:
            fields["key"] = load_redactor(with_cluster_key(settings), create=False).digest(fields["key"])
        except OSError as exc:
            raise UsageError("a search by key needs the key file of the log", detail=str(exc)) from None
    return AuditQuery(fields, kind, _parse_since(since), until)


def parse_time(option: str, text: str) -> str:
    """Parse an ISO date or time (in UTC if it names no time zone), or an age such as `7d`.

    Return the time in the form that audit records use.
    """
    if not text:
        return ""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        try:
            return _parse_since(text)
        except UsageError:
            hint = "use 2026-11-01, 2026-11-01T08:30:00Z, or 7d"
            if option == "--to":
                hint += "; the output file is named by --output FILE"
            raise UsageError(f"{option} must be a time or an age", hint=hint) from None
    found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return found.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _parse_since(text: str) -> str:
    if not text:
        return ""
    days = _DAYS_PATTERN.fullmatch(text)
    try:
        seconds = int(days[1]) * 86_400.0 if days else parse_duration("--since", text)
    except ConfigError as exc:
        raise UsageError("--since must be a duration", hint="use 30m, 2h, or 7d") from exc
    return datetime.fromtimestamp(time.time() - seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _parse_head(text: str) -> ChainHead:
    found = _HEAD_PATTERN.fullmatch(text)
    if found is None:
        raise UsageError("--head must be a head printed by an earlier verify: NUMBER:HASH")
    return ChainHead(int(found[1]), found[2])


def _verify_progress(update: Callable[[str], None]) -> Callable[[int], None]:
    def on_record(count: int) -> None:
        if not count % _PROGRESS_STEP:
            update(f"verifying the log: {count:,} records")

    return on_record


# -- output ------------------------------------------------------------------------------------------------------------


def _verified_to_json(location: str, found: VerifiedLog) -> RecordFields:
    fields = {
        "where": location,
        "records": found.record_count,
        "first": found.first_seq,
        "head": _format_head(found.head),
    }
    pruned = [
        {
            "through": each.through,
            "from": each.first_time,
            "to": each.last_time,
            "keepDays": each.keep_days,
            "steps": each.steps,
        }
        for each in found.pruned
    ]
    calls = {"intents": found.intent_count, "open": found.open_intents}
    signed = {"checkpoints": found.checkpoints, "signedThrough": found.signed_through}
    begun = found.beginning
    restarted = (
        {"time": begun.time, "who": begun.who, "why": begun.why, "after": _format_head(begun.after)} if begun else None
    )
    return {**fields, **calls, **signed, "unstored": found.unstored, "pruned": pruned, "restarted": restarted}


def _format_head(head: ChainHead) -> str:
    return f"{head.seq}:{head.hash}"


def _print_verified(output: Output, location: str, found: VerifiedLog, *, show_location: bool) -> None:
    head = _format_head(found.head)
    if output.as_json:
        output.print_json({"intact": True, **_verified_to_json(location, found)})
        return
    if show_location:
        output.print_line(f"{location}:")
    output.print_line(f"intact: {found.record_count:,} records from {found.first_seq} to {found.head.seq}", "green")
    output.print_line(
        f"{found.intent_count:,} calls could change something; {found.open_intents} of them have no outcome yet"
    )
    if removed := describe_pruned(found):
        output.print_line(removed)
    if found.beginning is not None and found.beginning.is_confirmed:
        output.print_line(_describe_restart(found.beginning))
    if found.unstored:
        output.print_line(
            f"{found.unstored:,} more records are in the journal; a running gateway stores them, or the next start"
        )
    if found.checkpoints:
        signed = f"signed through record {found.signed_through} at {found.signed_at[:19].replace('T', ' ')}"
        output.print_line(f"{signed}; {found.checkpoints:,} checkpoints")
    output.print_line(f"head {head}")
    output.info(f"store the head elsewhere; later: toolway audit verify --head {head}", "dim")


def _describe_restart(found: Beginning) -> str:
    why = f": {found.why}" if found.why else ""
    when = found.time[:19].replace("T", " ")
    return f"started over at {when} by {found.who}{why}; the previous log was signed through record {found.after.seq}"


def timestamp(found: RecordFields) -> str:
    return str(found.get("time", ""))


def _format_time(found: RecordFields) -> str:
    return str(found.get("time", ""))[:19].replace("T", " ")


def _record_subject(found: RecordFields) -> str:
    server, tool = str(found.get("server", "")), str(found.get("tool", ""))
    return f"{server}.{tool}" if server and tool else server or tool or str(found.get("why", ""))


def _record_outcome(found: RecordFields) -> str:
    words = [str(found.get("outcome", "")), str(found.get("code", ""))]
    return " ".join(word for word in words if word)
