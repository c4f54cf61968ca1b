"""`toolway audit`: is the log as it was written, and what stands in it."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from heapq import merge
from pathlib import Path
from typing import TextIO

from toolway.auditing import logs_of, redactor_of, sink_of
from toolway.cli.exits import Exit, UsageError
from toolway.cli.options import Session
from toolway.cli.output import Output
from toolway.cli.places import load
from toolway.config.audit import AuditSettings
from toolway.config.fields import duration
from toolway.errors import ConfigError, ToolwayError
from toolway.gateway.replica.options import key_in
from toolway.gateway.state import State
from toolway.secrets.known import hide
from toolway.telemetry.audit.finding import Wanted, all_of, newest
from toolway.telemetry.audit.records import Fields, Head, Row
from toolway.telemetry.audit.sink import Sink, SinkBroken
from toolway.telemetry.audit.verify import Altered, Verified, verify

_HEAD = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})")
_STEP = 10_000  # records between two words about how far it got
_DAY = re.compile(r"([0-9]{1,6})d")


def verified(session: Session, file: str | None, head: str | None) -> Exit:
    """Look through the whole log; 9 where it is not as it was written."""
    output, settings = session.output, _settings(session, file)
    kept = _head(head) if head is not None else None
    seen: list[Head] = []
    found: dict[str, Verified] = {}
    with _logs(settings) as logs, output.spinner("looking through the log") as tell:
        for sink in logs:
            try:
                found[sink.where] = verify(_watched(sink, kept, seen), _progress(tell))
            except (Altered, SinkBroken) as exc:
                return _altered(output, sink.where, str(exc))
    if kept is not None and kept not in seen:
        what = f"record {kept.seq} is not the one that you kept: records were removed from its end, or all made anew"
        return _altered(output, " and ".join(found), what)
    if len(found) > 1 and output.as_json:
        output.facts({"whole": True, "logs": [_facts(where, each) for where, each in found.items()]})
    else:
        for where, each in found.items():
            _print_verified(output, where, each, several=len(found) > 1)
    return Exit.OK


def show(
    session: Session, file: str | None, wanted: Mapping[str, str | None], kind: str, since: str, most: int
) -> Exit:
    """The newest records that fit."""
    output, settings = session.output, _settings(session, file)
    asked = _wanted(settings, wanted, kind, since)
    with _logs(settings) as logs:
        found = sorted((each for sink in logs for each in newest(sink, asked, most)), key=_moment)[-most:]
    if output.as_json:
        output.facts({"records": found})
    elif found:
        rows = [(_time(each), each["kind"], _of(each), _end(each), str(each.get("call", ""))) for each in found]
        output.table(("time", "kind", "what", "outcome", "call"), rows)
    else:
        output.say("no record fits")
    return Exit.OK


def export(session: Session, file: str | None, kind: str, since: str, to: Path | None) -> Exit:
    """Records as lines of JSON, oldest first, with their hashes."""
    output, settings = session.output, _settings(session, file)
    count = 0
    asked = _wanted(settings, {}, kind, since)
    with _logs(settings) as logs, _out(to) as out:
        for each in merge(*(all_of(sink, asked) for sink in logs), key=_moment):
            out.write(json.dumps(each, ensure_ascii=False) + "\n")
            count += 1
    output.say(f"{count} records")
    return Exit.OK


# -- which log ----------------------------------------------------------------------------------------------------


def _settings(session: Session, file: str | None) -> AuditSettings:
    """The log that is named, or that the configuration names, or of the gateway's folder. Raises `ConfigError`."""
    folder = State.default(os.environ).folder
    if file is not None:
        return AuditSettings.of(file)
    try:
        configured = load(session.output, session.where.config).gateway.audit
    except ConfigError as exc:
        if exc.code != "E-CONFIG-NONE":
            raise
        configured = None
    return (configured or AuditSettings()).in_folder(folder)


@contextmanager
def _logs(settings: AuditSettings) -> Iterator[Sequence[Sink]]:
    """The log, to be read, or those of all gateways that share its name. Raises `ConfigError`."""
    if settings.to != "postgresql" and not Path(settings.file).exists():
        raise ConfigError(
            f"there is no audit log: {settings.file}",
            evidence="none is kept unless the file of servers asks for it",
            fix='keep one: "toolway": {"audit": true}, then toolway serve',
            code="E-AUDIT-NONE",
        )
    sink = sink_of(settings, read_only=True)
    try:
        sink.open()
        yield logs_of(sink, settings)
    except ToolwayError:
        raise
    except Exception as exc:
        raise ConfigError(
            f"the audit log cannot be read: {sink.where}",
            evidence=hide(str(exc)),
            fix="see whether it may be read, and whether its disk or database answers",
            code="E-AUDIT-OPEN",
        ) from exc
    finally:
        sink.close()


@contextmanager
def _out(to: Path | None) -> Iterator[TextIO]:
    if to is None:
        yield sys.stdout
        return
    with os.fdopen(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
        yield out


# -- what is wanted -----------------------------------------------------------------------------------------------


def _wanted(settings: AuditSettings, given: Mapping[str, str | None], kind: str, since: str) -> Wanted:
    fields = {name: value for name, value in given.items() if value is not None}
    if "key" in fields:
        cluster = key_in(os.environ)  # gateways of a cluster make digests with what they share
        settings = settings.in_cluster(cluster) if cluster is not None else settings
        try:
            fields["key"] = redactor_of(settings, make=False).digest(fields["key"])
        except OSError as exc:
            raise UsageError("a key cannot be looked for without the key file of the log", evidence=str(exc)) from None
    return Wanted(fields, kind, _since(since))


def _since(text: str) -> str:
    if not text:
        return ""
    days = _DAY.fullmatch(text)
    try:
        seconds = int(days[1]) * 86_400.0 if days else duration("--since", text)
    except ConfigError as exc:
        raise UsageError("--since must be a duration", fix="write 30m, 2h or 7d") from exc
    return datetime.fromtimestamp(time.time() - seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _head(text: str) -> Head:
    found = _HEAD.fullmatch(text)
    if found is None:
        raise UsageError("--head is what an earlier verify printed: NUMBER:HASH")
    return Head(int(found[1]), found[2])


def _watched(sink: Sink, kept: Head | None, seen: list[Head]) -> Iterator[Row]:
    for row in sink.forward():
        if kept is not None and row.seq == kept.seq:
            seen.append(Head(row.seq, row.hash))
        yield row


def _progress(tell: Callable[[str], None]) -> Callable[[int], None]:
    def each(count: int) -> None:
        if not count % _STEP:
            tell(f"looking through the log: {count:,} records")

    return each


# -- what is said -------------------------------------------------------------------------------------------------


def _facts(where: str, found: Verified) -> Fields:
    facts = {"where": where, "records": found.records, "first": found.first, "head": _shown(found.head)}
    return {**facts, "intents": found.intents, "open": found.open}


def _shown(head: Head) -> str:
    return f"{head.seq}:{head.hash}"


def _print_verified(output: Output, where: str, found: Verified, *, several: bool) -> None:
    head = _shown(found.head)
    if output.as_json:
        output.facts({"whole": True, **_facts(where, found)})
        return
    if several:
        output.line(f"{where}:")
    output.line(f"whole: {found.records:,} records from {found.first} to {found.head.seq}", "green")
    output.line(f"{found.intents:,} calls were to change something; {found.open} of them have no outcome yet")
    output.line(f"head {head}")
    output.say(f"keep the head elsewhere; later: toolway audit verify --head {head}", "dim")


def _altered(output: Output, where: str, why: str) -> Exit:
    error = ConfigError(
        f"the audit log was changed or damaged: {where}",
        evidence=hide(why),
        fix="compare it with a copy; what stands from there on proves nothing",
        code="E-AUDIT-ALTERED",
    )
    output.error(error)
    return Exit.LINT


def _moment(found: Fields) -> str:
    return str(found.get("time", ""))


def _time(found: Fields) -> str:
    return str(found.get("time", ""))[:19].replace("T", " ")


def _of(found: Fields) -> str:
    server, tool = str(found.get("server", "")), str(found.get("tool", ""))
    return f"{server}.{tool}" if server and tool else server or tool or str(found.get("why", ""))


def _end(found: Fields) -> str:
    words = [str(found.get("outcome", "")), str(found.get("code", ""))]
    return " ".join(word for word in words if word)
