"""`toolway audit export`, `check`, `prove` and `key`: exports of the audit log, signed on request."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from heapq import merge
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from toolway._os import O_UNSHARED
from toolway.audit.signing import load_signer
from toolway.audit.sink import SinkBroken, format_time
from toolway.audit.verify import TamperedLog
from toolway.cli.exit_codes import ExitCode, UsageError
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.output import Output
from toolway.errors import ConfigError
from toolway.parts.audit.cli import Kind, Since, build_filter, parse_time, timestamp, unchecked_error
from toolway.parts.audit.known_checkpoints import LogCheckpoints, load_public_key
from toolway.parts.audit.log_access import (
    LogFile,
    audit_settings,
    load_macs,
    open_logs,
    read_unstored,
    report_altered,
    with_cluster_key,
)
from toolway.parts.audit.queries import find_all, find_unstored
from toolway.parts.audit.signed_export import AlteredExport, SelectedRecords, check_file, write_export, write_proofs
from toolway.parts.audit.whole_logs import AlteredLog, WholeLogs, report_unusable

if TYPE_CHECKING:
    from toolway.audit.signing import Signer
    from toolway.audit.sink import AuditSink
    from toolway.part_api import AuditSettings
    from toolway.parts.audit.queries import AuditQuery
    from toolway.parts.audit.verify import VerifiedLog

ExportFile = Annotated[Path, typer.Argument(metavar="FILE", show_default=False)]


def audit_export(
    context: CommandContext,
    log: LogFile = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Output file. Default: stdout.", show_default=False),
    ] = None,
    kind: Kind = "",
    since: Since = "",
    from_: Annotated[
        str,
        typer.Option(
            "--from", metavar="TIME", help="Start of the range: a date (2026-11-01) or an age (7d).", show_default=False
        ),
    ] = "",
    to: Annotated[
        str, typer.Option("--to", metavar="TIME", help="End of the range (exclusive).", show_default=False)
    ] = "",
    sign: Annotated[bool, typer.Option("--sign", help="Sign the export; exit with 9 if the key is missing.")] = False,
    public_key: Annotated[
        list[Path] | None,
        typer.Option(
            "--public-key",
            metavar="FILE",
            help="Earlier public key of checkpoints; may be repeated.",
            show_default=False,
        ),
    ] = None,
) -> CommandResult:
    """Write the records of the audit log as JSON lines, oldest first, each with its hash."""
    if since and from_:
        raise UsageError("--since and --from cannot be used together")
    settings = audit_settings(context, log)
    query = build_filter(settings, {}, kind, "", parse_time("--to", to))
    query = query.starting(parse_time("--from", from_) or parse_time("--since", since))
    if sign:
        return _export_signed(context.output, settings, query, output, public_key or ())
    return _export(context.output, settings, query, output)


def audit_check(
    context: CommandContext,
    file: ExportFile,
    key: Annotated[Path, typer.Option("--key", metavar="FILE", help="Public key in PEM form.", show_default=False)],
) -> CommandResult:
    """Check a signed export, or a proof from one, with the public key alone. Exit with 9 if it was altered."""
    public = load_public_key(key)
    try:
        with _open_export(file) as stream:
            found = check_file(stream, public)
    except AlteredExport as exc:
        return _report_altered_export(context.output, file, str(exc))
    what = "proof" if found.is_proof else "export"
    signed = found.checkpoint
    facts: dict[str, Any] = {"time": signed.time, "key": signed.key, "selection": signed.selection, "logs": signed.logs}
    if context.output.as_json:
        facts |= {"intact": True, "what": what, "records": found.records, "size": signed.size, "root": signed.root}
        context.output.print_json(facts)
        return ExitCode.OK
    records = f"{found.records:,} of {signed.size:,} records" if found.is_proof else f"{signed.size:,} records"
    context.output.print_line(f"intact: {records}, signed at {signed.time[:19].replace('T', ' ')}", "green")
    for name, value in signed.selection.items():
        context.output.print_line(f"{name} {value}")
    context.output.print_line(f"key {signed.key}")
    return ExitCode.OK


def audit_prove(
    context: CommandContext,
    file: ExportFile,
    id: Annotated[str, typer.Argument(metavar="ID", help="Number, hash or call id of a record.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Output file. Default: stdout.", show_default=False),
    ] = None,
) -> CommandResult:
    """Write the records with this id, each with a proof that it is in the signed export."""
    try:
        with _open_export(file) as stream:
            proofs = write_proofs(stream, id)
    except AlteredExport as exc:
        return _report_altered_export(context.output, file, str(exc))
    if not proofs:
        raise ConfigError(
            f"no record of {file} has this id: {id}",
            hint="use the number, hash, or call id of a record: toolway audit ls",
            code="E-AUDIT-NONE",
        )
    if output is not None:
        with _private_file(output) as out:
            out.write(b"".join(proof + b"\n" for proof in proofs))
    if context.output.as_json:
        context.output.print_json({"proofs": [json.loads(proof) for proof in proofs]})
    elif output is None:
        for proof in proofs:
            sys.stdout.write(proof.decode() + "\n")
    context.output.info(f"{len(proofs)} records with {len(json.loads(proofs[0])['path'])} hashes each")
    return ExitCode.OK


def audit_key(context: CommandContext, log: LogFile = None) -> CommandResult:
    """Print the public key that checks signed exports. A missing private key is created."""
    try:
        public = load_signer(with_cluster_key(audit_settings(context, log)), create=True).public
    except ConfigError as exc:
        context.output.print_error(exc)
        return ExitCode.LINT
    if context.output.as_json:
        context.output.print_json({"key": public.id, "pem": public.pem()})
        return ExitCode.OK
    sys.stdout.write(public.pem())
    context.output.info(f"key {public.id}; store it elsewhere: toolway audit key > audit-public.pem", "dim")
    return ExitCode.OK


# -- exports -----------------------------------------------------------------------------------------------------------


def _export(output: Output, settings: AuditSettings, query: AuditQuery, to: Path | None) -> ExitCode:
    count = 0
    with open_logs(settings) as logs, _open_output(to) as out:
        journal = read_unstored(settings)
        found = [find_all(sink, query, find_unstored(journal, sink)) for sink in logs]
        for each in merge(*found, key=timestamp):
            out.write(json.dumps(each, ensure_ascii=False).encode() + b"\n")
            count += 1
    output.info(f"{count} records")
    return ExitCode.OK


def _export_signed(
    output: Output, settings: AuditSettings, query: AuditQuery, to: Path | None, public_keys: Sequence[Path]
) -> ExitCode:
    """Write a signed export of the audit log. If it cannot be signed, write no file and return exit code 9.

    As with `verify`, the whole log is verified first, including its MACs and checkpoints.
    """
    try:
        signer = load_signer(with_cluster_key(settings))
        whole = WholeLogs(settings, None, LogCheckpoints(with_cluster_key(settings), None, public_keys))
        verified = whole.verify()
        if not whole.has_key:
            output.print_error(unchecked_error(" and ".join(verified), ["the log's key was not found"]))
            return ExitCode.LINT
        with open_logs(settings) as logs:
            try:
                with _private_file(to) as out:
                    count = _write_signed(settings, query, logs, signer, out, verified)
            except (TamperedLog, SinkBroken, AlteredExport) as exc:
                return report_altered(output, " and ".join(sink.location for sink in logs), str(exc))
    except AlteredLog as exc:
        return report_unusable(output, exc)
    except ConfigError as exc:
        if exc.code != "E-AUDIT-KEY":
            raise
        output.print_error(exc)
        return ExitCode.LINT
    output.info(f"{count} records, signed with the key {signer.public.id}")
    return ExitCode.OK


def _write_signed(
    settings: AuditSettings,
    query: AuditQuery,
    logs: Sequence[AuditSink],
    signer: Signer,
    out: IO[bytes],
    verified: Mapping[str, VerifiedLog],
) -> int:
    journal, macs = read_unstored(settings), load_macs(settings, None)
    heads = {location: each.head for location, each in verified.items()}
    if missing := heads.keys() - {sink.location for sink in logs}:
        raise SinkBroken(f"removed while it was read: {', '.join(missing)}")
    selected = [
        SelectedRecords(sink, query, macs, find_unstored(journal, sink), heads.get(sink.location)) for sink in logs
    ]
    lines = (line for _, line in merge(*(each.lines() for each in selected), key=lambda found: found[0]))
    given = {"from": query.since, "to": query.until, "kind": query.kind}

    def describe(size: int, root: str) -> dict[str, Any]:
        return {
            "time": format_time(time.time()),
            "size": size,
            "root": root,
            "key": signer.public.id,
            "selection": {name: value for name, value in given.items() if value},
            "logs": [each.describe() for each in selected],
        }

    return write_export(lines, out, describe, signer.sign)


@contextmanager
def _private_file(to: Path | None) -> Iterator[IO[bytes]]:
    """Open a new file that only this user can read, and rename it to `to` if the block ends without an error.

    If `to` is None, write its content to stdout instead.
    """
    if to is None:
        with tempfile.TemporaryFile() as draft:
            yield draft
            draft.seek(0)
            shutil.copyfileobj(draft, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        return
    try:
        handle, name = tempfile.mkstemp(dir=to.absolute().parent, prefix=f".{to.name}.")  # mode 0600
    except OSError as exc:
        raise UsageError(f"the file cannot be written: {to}", detail=str(exc)) from None
    try:
        with os.fdopen(handle, "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.replace(name, to)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)


@contextmanager
def _open_output(to: Path | None) -> Iterator[IO[bytes]]:
    if to is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with os.fdopen(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | O_UNSHARED, 0o600), "wb") as out:
        yield out


@contextmanager
def _open_export(file: Path) -> Iterator[IO[bytes]]:
    try:
        stream = file.open("rb")
    except OSError as exc:
        raise UsageError(f"the file cannot be read: {file}", detail=exc.strerror or "") from None
    with stream:
        yield stream


def _report_altered_export(output: Output, file: Path, why: str) -> ExitCode:
    output.print_error(
        ConfigError(
            f"the export was altered, or was not signed by this key: {file}",
            detail=why,
            hint="ask for a new export, and compare the key with the one that toolway audit key prints",
            code="E-AUDIT-ALTERED",
        )
    )
    return ExitCode.LINT
