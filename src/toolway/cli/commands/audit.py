"""`toolway audit`: verify the audit log, list and export its records."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from heapq import merge
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from toolway._lazy import compile_pattern
from toolway.cli.exit_codes import ExitCode, UsageError
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.output import Output
from toolway.errors import ConfigError, ToolwayError

if TYPE_CHECKING:
    from toolway.audit.mac import RecordMacs
    from toolway.audit.sink import AuditSink, ChainHead, RecordFields, StoredRecord
    from toolway.audit.verify import AuditQuery, VerifiedLog
    from toolway.config.settings import AuditSettings

_HEAD_PATTERN = compile_pattern(r"([0-9]{1,18}):([0-9a-f]{64})")
_PROGRESS_STEP = 10_000  # records between two progress updates
_DAYS_PATTERN = compile_pattern(r"([0-9]{1,6})d")
LogFile = Annotated[
    str | None,
    typer.Option("--log", metavar="FILE", help="Log to read: a file, or postgresql://…", show_default=False),
]
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
            help="Record with which the log must begin, at latest.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option("--key", metavar="FILE", help="Key file of a log at another path.", show_default=False),
    ] = None,
) -> CommandResult:
    """Verify the whole log. Exit with 9 if a record was changed, removed or added."""
    return run_audit_verify(context, log, head, first, key)


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


def audit_export(
    context: CommandContext,
    log: LogFile = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="Output file. Default: stdout.", show_default=False)
    ] = None,
    kind: Kind = "",
    since: Since = "",
) -> CommandResult:
    """Write the oldest record of the audit log first, each record with its hash."""
    return run_audit_export(context, log, kind, since, to)


# -- verify, list and export -------------------------------------------------------------------------------------------


def run_audit_verify(
    context: CommandContext, file: str | None, head: str | None, first: int | None, key: Path | None
) -> ExitCode:
    """Verify all records of the audit log and print a summary. Returns 9 if it was altered."""
    from toolway.audit.sink import SinkBroken
    from toolway.audit.verify import TamperedLog, verify_log

    output, settings = context.output, _audit_settings(context, file)
    macs = _load_macs(settings, key)
    expected_head = _parse_head(head) if head is not None else None
    matching_heads: list[ChainHead] = []
    found: dict[str, VerifiedLog] = {}
    with _open_logs(settings) as logs, output.spinner("verifying the log") as update:
        for sink in logs:
            try:
                verified = verify_log(
                    _rows_tracking_head(sink, expected_head, matching_heads), _verify_progress(update), macs
                )
                _check_beginning(verified, first, has_key=macs is not None)
                found[sink.location] = replace(verified, unstored=_count_unstored(settings, key, sink))
            except (TamperedLog, SinkBroken) as exc:
                return _report_altered(output, sink.location, str(exc))
    if expected_head is not None and expected_head not in matching_heads:
        differs = f"record {expected_head.seq} differs from the given head"
        detail = f"{differs}: records were removed from the end, or all rewritten"
        return _report_altered(output, " and ".join(found), detail)
    if len(found) > 1 and output.as_json:
        output.print_json(
            {"intact": True, "logs": [_verified_to_json(location, each) for location, each in found.items()]}
        )
    else:
        for location, each in found.items():
            _print_verified(output, location, each, show_location=len(found) > 1)
        if macs is None:
            output.info("MACs were not checked, because the key of the log was not found: --key FILE")
    return ExitCode.OK


def run_audit_ls(
    context: CommandContext,
    file: str | None,
    field_filters: Mapping[str, str | None],
    kind: str,
    since: str,
    limit: int,
) -> ExitCode:
    """Print the newest audit records that match the filters."""
    from toolway.audit.verify import find_newest

    output, settings = context.output, _audit_settings(context, file)
    record_filter = _build_filter(settings, field_filters, kind, since)
    with _open_logs(settings) as logs:
        found = sorted((each for sink in logs for each in find_newest(sink, record_filter, limit)), key=_timestamp)[
            -limit:
        ]
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


def run_audit_export(context: CommandContext, file: str | None, kind: str, since: str, to: Path | None) -> ExitCode:
    """Write audit records as JSON lines, oldest first, with their hashes, to a file or stdout."""
    from toolway.audit.verify import find_all

    output, settings = context.output, _audit_settings(context, file)
    count = 0
    record_filter = _build_filter(settings, {}, kind, since)
    with _open_logs(settings) as logs, _open_output(to) as out:
        for each in merge(*(find_all(sink, record_filter) for sink in logs), key=_timestamp):
            out.write(json.dumps(each, ensure_ascii=False) + "\n")
            count += 1
    output.info(f"{count} records")
    return ExitCode.OK


# -- selection of the log ----------------------------------------------------------------------------------------------


def _audit_settings(context: CommandContext, file: str | None) -> AuditSettings:
    """Return the settings of the audit log `file`, the configured log, or the default log.

    Without `--config`, the file of the running gateway is used, which may be any. Raises `ConfigError` if the config
    file cannot be read.
    """
    from toolway.cli.targets import load_masked_config
    from toolway.config.settings import AuditSettings
    from toolway.gateway.state_dir import StateDir

    state = StateDir.default(os.environ)
    if file is not None:
        return AuditSettings.from_location(file)
    config, running = context.target_options.config, state.read_running()
    if config is None and running is not None and os.path.isfile(running.config):
        config = Path(running.config)
    try:
        configured = load_masked_config(context.output, config).gateway.audit
    except ConfigError as exc:
        if exc.code != "E-CONFIG-NONE":
            raise
        configured = None
    return (configured or AuditSettings()).with_folder(state.folder)


@contextmanager
def _open_logs(settings: AuditSettings) -> Iterator[Sequence[AuditSink]]:
    """Open the audit log for reading, or the logs of all gateways that share its name.

    Raises `ConfigError` if the log does not exist or cannot be read.
    """
    from toolway.audit.log import create_sink, list_logs
    from toolway.secrets.detection import mask_secrets

    if settings.to != "postgresql" and not Path(settings.file).exists():
        raise ConfigError(
            f"audit log not found: {settings.file}",
            detail="the log is written only if the config file enables it",
            hint='enable it: "toolway": {"audit": true}, then toolway serve',
            code="E-AUDIT-NONE",
        )
    sink = create_sink(settings, read_only=True)
    try:
        sink.open()
        yield list_logs(sink, settings)
    except ToolwayError:
        raise
    except Exception as exc:
        raise ConfigError(
            f"the audit log cannot be read: {sink.location}",
            detail=mask_secrets(str(exc)),
            hint="check its permissions, and that its disk or database responds",
            code="E-AUDIT-OPEN",
        ) from exc
    finally:
        sink.close()


@contextmanager
def _open_output(to: Path | None) -> Iterator[TextIO]:
    if to is None:
        yield sys.stdout
        return
    with os.fdopen(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
        yield out


# -- filters -----------------------------------------------------------------------------------------------------------


def _build_filter(
    settings: AuditSettings, field_filters: Mapping[str, str | None], kind: str, since: str
) -> AuditQuery:
    from toolway.audit.log import load_redactor
    from toolway.audit.verify import AuditQuery

    fields = {name: value for name, value in field_filters.items() if value is not None}
    if "key" in fields:
        try:
            fields["key"] = load_redactor(_with_cluster_key(settings), create=False).digest(fields["key"])
        except OSError as exc:
            raise UsageError("a search by key needs the key file of the log", detail=str(exc)) from None
    return AuditQuery(fields, kind, _parse_since(since))


def _load_macs(settings: AuditSettings, key: Path | None) -> RecordMacs | None:
    """Return the object that checks the MACs of the log, or None if there is no key file.

    Raises `UsageError` if the file `key` cannot be read.
    """
    from toolway.audit.mac import RecordMacs

    settings = replace(settings, digest_key_file=os.fspath(key)) if key is not None else _with_cluster_key(settings)
    try:
        return RecordMacs.load(settings, create=False)
    except OSError as exc:
        if key is not None:
            raise UsageError(f"the key file cannot be read: {key}", detail=str(exc)) from None
        return None


def _count_unstored(settings: AuditSettings, key: Path | None, sink: AuditSink) -> int:
    """Return the number of records in the journal that are not in the log yet; 0 if the key is missing.

    Raises `SinkBroken` if the journal was changed.
    """
    from toolway.audit.log import read_unstored

    settings = replace(settings, digest_key_file=os.fspath(key)) if key is not None else settings
    try:
        return len(read_unstored(settings, sink))
    except OSError:  # without the key, or because a running gateway removes the journal
        return 0


def _with_cluster_key(settings: AuditSettings) -> AuditSettings:
    """Return the settings with the tenant's key from the environment, if it is set: cluster nodes use no key file."""
    from toolway.cluster.options import tenant_key_from_env

    tenant_key = tenant_key_from_env(os.environ)
    return settings.for_cluster(tenant_key) if tenant_key is not None else settings


def _check_beginning(found: VerifiedLog, first: int | None, *, has_key: bool) -> None:
    """Raise `TamperedLog` if the log begins after the record `first`.

    Raises `ConfigError` if records were removed and this cannot be checked, because the key is missing.
    """
    from toolway.audit.verify import TamperedLog

    if first is not None and found.record_count and found.first_seq > first:
        reason = f"the log begins with it, not with record {first} or earlier"
        raise TamperedLog(found.first_seq, f"{reason}; {_describe_pruned(found) or 'no removal is recorded'}")
    if found.first_seq > 1 and not has_key and any(each.has_mac for each in found.pruned):
        raise ConfigError(
            "the removal of old audit records cannot be checked",
            detail="the key of the log was not found",
            hint="give the key file of the log: toolway audit verify --key FILE",
            code="E-AUDIT-OPEN",
        )


def _parse_since(text: str) -> str:
    from toolway.config.field_reader import parse_duration

    if not text:
        return ""
    days = _DAYS_PATTERN.fullmatch(text)
    try:
        seconds = int(days[1]) * 86_400.0 if days else parse_duration("--since", text)
    except ConfigError as exc:
        raise UsageError("--since must be a duration", hint="write 30m, 2h or 7d") from exc
    return datetime.fromtimestamp(time.time() - seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _parse_head(text: str) -> ChainHead:
    from toolway.audit.sink import ChainHead

    found = _HEAD_PATTERN.fullmatch(text)
    if found is None:
        raise UsageError("--head must be a head printed by an earlier verify: NUMBER:HASH")
    return ChainHead(int(found[1]), found[2])


def _rows_tracking_head(
    sink: AuditSink, expected_head: ChainHead | None, matching_heads: list[ChainHead]
) -> Iterator[StoredRecord]:
    from toolway.audit.sink import ChainHead

    for row in sink.read_forward():
        if expected_head is not None and row.seq == expected_head.seq:
            matching_heads.append(ChainHead(row.seq, row.hash))
        yield row


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
            "mac": each.has_mac,
        }
        for each in found.pruned
    ]
    calls = {"intents": found.intent_count, "open": found.open_intents}
    return {**fields, **calls, "unstored": found.unstored, "withoutMac": found.without_mac, "pruned": pruned}


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
        f"{found.intent_count:,} calls were to change something; {found.open_intents} of them have no outcome yet"
    )
    for line in filter(None, (_describe_pruned(found), _describe_missing_macs(found))):
        output.print_line(line)
    if found.unstored:
        output.print_line(
            f"{found.unstored:,} more records are in the journal; a running gateway stores them, or the next start"
        )
    output.print_line(f"head {head}")
    output.info(f"store the head elsewhere; later: toolway audit verify --head {head}", "dim")


def _describe_pruned(found: VerifiedLog) -> str:
    """Return which records were removed, when and by which rule; empty if none were."""
    parts = []
    for each in found.pruned:
        when = (
            each.first_time[:10]
            if each.first_time[:10] == each.last_time[:10]
            else (f"{each.first_time[:10]} to {each.last_time[:10]}")
        )
        rule = "rule not recorded" if each.keep_days is None else f"keepDays {each.keep_days:g}"
        parts.append(f"through {each.through} on {when} ({rule}{'' if each.has_mac else ', without MAC'})")
    return f"removed because of age: records {', '.join(parts)}" if parts else ""


def _describe_missing_macs(found: VerifiedLog) -> str:
    if not found.without_mac:
        return ""
    who = "an older version wrote them" if found.without_mac < found.record_count else "an older version wrote the log"
    return f"{found.without_mac:,} records have no MAC: {who}, or it was rewritten without its key"


def _report_altered(output: Output, location: str, why: str) -> ExitCode:
    from toolway.secrets.detection import mask_secrets

    error = ConfigError(
        f"the audit log was altered or damaged: {location}",
        detail=mask_secrets(why),
        hint="compare it with a copy; records from there on prove nothing",
        code="E-AUDIT-ALTERED",
    )
    output.print_error(error)
    return ExitCode.LINT


def _timestamp(found: RecordFields) -> str:
    return str(found.get("time", ""))


def _format_time(found: RecordFields) -> str:
    return str(found.get("time", ""))[:19].replace("T", " ")


def _record_subject(found: RecordFields) -> str:
    server, tool = str(found.get("server", "")), str(found.get("tool", ""))
    return f"{server}.{tool}" if server and tool else server or tool or str(found.get("why", ""))


def _record_outcome(found: RecordFields) -> str:
    words = [str(found.get("outcome", "")), str(found.get("code", ""))]
    return " ".join(word for word in words if word)
