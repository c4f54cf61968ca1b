"""The audit log of a hub: made from its settings, opened with the hub and closed after it."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from toolway.config.audit import AuditSettings
from toolway.config.mask import masker
from toolway.config.spec import Server
from toolway.errors import ConfigError
from toolway.events import AuditFailed, AuditResumed, CallRecovered, Event
from toolway.model import Call, Stage
from toolway.secrets.known import hide
from toolway.telemetry.audit.book import Book
from toolway.telemetry.audit.ledger import Ledger
from toolway.telemetry.audit.sink import Sink, SinkBroken, SinkInUse
from toolway.telemetry.audit.stage import audit
from toolway.telemetry.audit.verify import Altered
from toolway.telemetry.redact import Redactor


def sink_of(settings: AuditSettings, *, read_only: bool = False) -> Sink:
    """Where the log is kept. Loads what that needs, and nothing else. Raises `ConfigError`."""
    if settings.to == "sqlite":
        from toolway.telemetry.audit.sqlite import SqliteSink

        return SqliteSink(settings.file, read_only=read_only)
    if settings.to == "jsonl":
        from toolway.telemetry.audit.jsonl import JsonlSink

        return JsonlSink(settings.file, read_only=read_only)
    from toolway.telemetry.audit.postgres import PostgresSink, is_installed

    if not is_installed():
        raise ConfigError(
            "the audit log is to be kept in PostgreSQL, and what speaks to it is not installed",
            evidence="there is no package psycopg",
            fix="pip install 'toolway[postgresql]'",
            code="E-AUDIT-OPEN",
        )
    if settings.shared and not read_only:
        from toolway.telemetry.audit.postgres_shared import SharedPostgresSink

        return SharedPostgresSink(settings.address, settings.name)
    return PostgresSink(settings.address, settings.name, read_only=read_only)


def logs_of(sink: Sink, settings: AuditSettings) -> Sequence[Sink]:
    """What is to be read: an open sink, or all logs of its name where gateways share one."""
    if settings.to != "postgresql":
        return (sink,)
    from toolway.telemetry.audit.postgres import PostgresSink
    from toolway.telemetry.audit.postgres_shared import family

    assert isinstance(sink, PostgresSink)
    return family(sink, settings.name) or (sink,)


def redactor_of(settings: AuditSettings, *, make: bool = True) -> Redactor:
    """Raises `OSError` where there is no key and none is to be made."""
    if settings.key:
        return Redactor(settings.key, settings.redact)
    file = Path(settings.key_file or f"{settings.file or 'audit'}.key")
    if make and not file.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                out.write(secrets.token_hex(32).encode())
        except FileExistsError:
            pass  # another process was quicker
    return Redactor(file.read_bytes(), settings.redact)


class Auditing:
    def __init__(
        self, settings: AuditSettings, emit: Callable[[Event], None], servers: Mapping[str, Server] | None = None
    ) -> None:
        """`servers` are those whose entries may hold secrets, as they are at any time."""
        self._settings = settings
        self._emit = emit
        self._servers = servers if servers is not None else {}
        self.ledger: Ledger | None = None
        self.book: Book | None = None

    async def open(self, definition_of: Callable[[Call], str]) -> Stage:
        """The stage. Raises `ConfigError` where the log cannot be trusted or written."""
        settings = self._settings
        try:
            ledger = Ledger(sink_of(settings), keep=settings.keep, on_trouble=self._trouble)
            redactor = await asyncio.to_thread(redactor_of, settings)
            opened = await ledger.open()
        except Exception as exc:
            raise _not_opened(settings, exc) from exc
        now = asyncio.get_running_loop().time
        self.ledger = ledger
        self.book = Book(ledger, redactor, definition_of, now, arguments=settings.arguments, mask=self._mask)
        for fields in opened.recovered:
            words = {name: str(fields.get(name, "")) for name in ("call", "tool", "caller")}
            self._emit(CallRecovered(str(fields.get("server", "")), words["call"], words["tool"], words["caller"]))
        return audit(self.book)

    async def close(self) -> None:
        if self.ledger is not None:
            await self.ledger.close()

    def _mask(self, server: str, text: str) -> str:
        """What a server writes may repeat what its entry holds."""
        own = self._servers.get(server)
        return masker([own] if own is not None else self._servers.values())(text)

    def _trouble(self, why: str, lost: int) -> None:
        self._emit(AuditFailed("", hide(why)) if why else AuditResumed("", lost))


def _not_opened(settings: AuditSettings, exc: Exception) -> ConfigError:
    place = settings.file or f"the log {settings.name!r} in PostgreSQL"
    if isinstance(exc, ConfigError):
        return exc
    if isinstance(exc, Altered | SinkBroken):
        return ConfigError(
            f"the audit log was changed or damaged: {place}",
            evidence=hide(str(exc)),
            fix="see where: toolway audit verify. To go on, keep it aside under another name: a new one is begun",
            code="E-AUDIT-ALTERED",
        )
    if isinstance(exc, SinkInUse):
        return ConfigError(
            f"the audit log is in use: {place}",
            evidence="another process writes to it, and only one can",
            fix="end the other gateway, or give this one a log of its own: toolway.audit.file, or name in PostgreSQL",
            code="E-AUDIT-IN-USE",
        )
    return ConfigError(
        f"the audit log cannot be opened: {place}",
        evidence=hide(str(exc)) or type(exc).__name__,
        fix="make its folder writable and its disk not full, or its database reachable",
        code="E-AUDIT-OPEN",
    )
