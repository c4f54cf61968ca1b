"""Opens the logs that `toolway audit` commands read: settings, keys, and errors for altered logs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from toolway.audit.file_sinks import detect_kind
from toolway.audit.journal import JournalContent
from toolway.audit.log import create_sink
from toolway.audit.mac import RecordMacs
from toolway.audit.sink import AuditSink
from toolway.cli.exit_codes import ExitCode, UsageError
from toolway.cli.options import CommandContext
from toolway.cli.output import Output
from toolway.cli.targets import load_masked_config
from toolway.errors import ConfigError, ToolwayError
from toolway.gateway.state_dir import StateDir
from toolway.part_api import AuditSettings, tenant_key_from_env
from toolway.parts.audit.queries import list_logs, read_journal
from toolway.parts.audit.verify import VerifiedLog
from toolway.secrets.detection import mask_secrets

LogFile = Annotated[
    str | None,
    typer.Option("--log", metavar="FILE", help="Log to read: a file, or postgresql://…", show_default=False),
]


def audit_settings(context: CommandContext, file: str | None) -> AuditSettings:
    """Return the settings for `file` if given, or else for the configured audit log or the default one.

    Whether a file is SQLite or JSON lines depends on its content, not its name. Without `--config`, the running
    gateway's config file is read, wherever it is. Raises `ConfigError` if a config file cannot be read.
    """
    if file is None:
        return _configured_settings(context)
    with suppress(ToolwayError):
        configured = _configured_settings(context)
        if configured.file and os.path.realpath(configured.file) == os.path.realpath(file):
            return configured  # it is the log of the gateway, whose keys and notes are known
    settings = AuditSettings.from_location(file)
    return replace(settings, to=detect_kind(file) or settings.to) if settings.file else settings


def _configured_settings(context: CommandContext) -> AuditSettings:
    state = StateDir.default(os.environ)
    try:
        configured = load_masked_config(context.output, context.target_options).gateway.audit
    except ConfigError as exc:
        if exc.code != "E-CONFIG-NONE":
            raise
        configured = None
    return (configured or AuditSettings()).with_folder(state.folder)


@contextmanager
def open_logs(settings: AuditSettings) -> Iterator[Sequence[AuditSink]]:
    """Open the audit log for reading, or the logs of all gateways that share its name.

    Raises `ConfigError` if the log does not exist or cannot be read.
    """
    if settings.file and not Path(settings.file).exists():
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
            hint="check its permissions, and whether its disk or database responds",
            code="E-AUDIT-OPEN",
        ) from exc
    finally:
        sink.close()


def load_macs(settings: AuditSettings, key: Path | None) -> RecordMacs | None:
    """Return an object that checks the records' MACs (keyed hashes), or None if the key file does not exist.

    Raises `UsageError` if the file `key` cannot be read.
    """
    settings = replace(settings, digest_key_file=os.fspath(key)) if key is not None else with_cluster_key(settings)
    try:
        return RecordMacs.load(settings, create=False)
    except OSError as exc:
        if key is not None:
            raise UsageError(f"the key file cannot be read: {key}", detail=str(exc)) from None
        return None


def read_unstored(settings: AuditSettings, key: Path | None = None) -> JournalContent | None:
    """Read the audit log's journal, and return the records that are not in the log yet.

    Call this before you read the log. Return None if the journal or its key is missing. Raises `SinkBroken` if the
    journal was changed.
    """
    settings = replace(settings, digest_key_file=os.fspath(key)) if key is not None else settings
    try:
        return read_journal(settings)
    except OSError:  # without the key, or because a running gateway removes the journal
        return None


def with_cluster_key(settings: AuditSettings) -> AuditSettings:
    """Return the audit log's settings with the tenant's key, if the environment sets it.

    Cluster nodes use it instead of a key file.
    """
    tenant_key = tenant_key_from_env(os.environ)
    return settings.for_cluster(tenant_key) if tenant_key is not None else settings


def describe_pruned(found: VerifiedLog) -> str:
    """Return which records were removed, when, and by which rule, or an empty list if none were."""
    parts = []
    for each in found.pruned:
        when = (
            each.first_time[:10]
            if each.first_time[:10] == each.last_time[:10]
            else (f"{each.first_time[:10]} to {each.last_time[:10]}")
        )
        parts.append(f"through {each.through} on {when} (keepDays {each.keep_days:g})")
    return f"removed because of age: records {', '.join(parts)}" if parts else ""


def report_altered(output: Output, location: str, why: str) -> ExitCode:
    """Print that a log was altered, and return exit code 9."""
    error = ConfigError(
        f"the audit log was altered or damaged: {location}",
        detail=mask_secrets(why),
        hint="compare it with a backup; do not rely on records after this point",
        code="E-AUDIT-ALTERED",
    )
    output.print_error(error)
    return ExitCode.LINT
