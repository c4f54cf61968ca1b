"""What the `toolway` block says about the audit log, and about matters that a person must see to.

"toolway": {
  "audit": {"to": "sqlite", "keepDays": 90},
  "escalations": {"folder": "/var/lib/toolway/escalations", "webhook": "https://hooks.example/toolway"}
}

`"audit": true` is enough; nothing, or `false`, keeps no log.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from toolway.config.fields import KEY, Fields, switched
from toolway.config.references import Unresolved
from toolway.errors import ConfigError

KINDS: Final = ("sqlite", "jsonl", "postgresql")
DAY: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Where the audit log is kept, and what stands in it."""

    to: str = "sqlite"  # sqlite, jsonl or postgresql
    file: str = ""  # of sqlite and jsonl; without it, one in the gateway's folder
    address: str = field(default="", repr=False)  # of PostgreSQL: postgresql://user@host/database
    name: str = "gateway"  # of the log in PostgreSQL: each gateway that writes to the same table has its own
    keep: float = 90 * DAY  # seconds for which records are kept; 0 keeps all. In a file: keepDays
    arguments: bool = False  # the arguments of calls too, without secrets; else only what tells them apart
    redact: tuple[str, ...] = ()  # further names of arguments whose values are hidden
    key_file: str = ""  # what digests are made with; without it, beside the file
    shared: bool = False  # in a cluster: gateways that write to the same table share the name, and have a chain each
    key: bytes = field(default=b"", repr=False)  # what digests are made with, instead of a file; in a cluster

    @staticmethod
    def of(given: str | os.PathLike[str] | AuditSettings) -> AuditSettings:
        """A file's path, by its ending `.jsonl` or not, or the address of a PostgreSQL."""
        if isinstance(given, AuditSettings):
            return given
        text = os.fspath(given)
        if text.startswith(("postgresql://", "postgres://")):
            return AuditSettings(to="postgresql", address=text)
        return AuditSettings(to="jsonl" if text.endswith(".jsonl") else "sqlite", file=text)

    def in_folder(self, folder: str | os.PathLike[str]) -> AuditSettings:
        """With files in this folder, where it names none."""
        place = os.fspath(folder)
        file = self.file or os.path.join(place, f"audit.{self.to}") if self.to != "postgresql" else ""
        return replace(self, file=file, key_file=self.key_file or os.path.join(place, "audit.key"))

    def in_cluster(self, key: bytes) -> AuditSettings:
        """For one of several gateways that have the same file, and this key: what is the same is the same in all of
        their logs."""
        own = hmac.digest(key, b"toolway audit", "sha256").hex().encode()
        return replace(self, shared=self.to == "postgresql", key=own)


@dataclass(frozen=True, slots=True)
class Escalating:
    """Where matters go that a person must see to: a login, a server that was given up, a call nobody knows about."""

    folder: str = ""  # one file for each; without it, one in the gateway's folder
    webhook: str = field(default="", repr=False)  # a URL to which each is posted; its path may be a secret
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # of such a request


def read_audit(block: Any, variables: Mapping[str, str]) -> AuditSettings | None:
    """Raises `ConfigError`: a log that is not kept as was said would be found missing when it is needed."""
    return switched("toolway.audit", block, AuditSettings(), lambda given: _audit(Fields(given, variables)))


def _audit(fields: Fields) -> AuditSettings:
    settings = AuditSettings(
        to=fields.choice("to", KINDS, "sqlite"),
        file=os.path.expanduser(_plain(fields, "file")),
        address=_plain(fields, "address"),
        name=_plain(fields, "name") or "gateway",
        keep=fields.whole("keepDays", 90) * DAY,
        arguments=fields.flag("arguments", False),
        redact=fields.texts("redact"),
    )
    fields.nothing_left("toolway.audit", "to, file, address, name, keepDays, arguments and redact")
    if settings.to == "postgresql" and not settings.address:
        raise ConfigError(
            "toolway.audit names no database",
            fix='add "address": "postgresql://user@host/database"; a password belongs into ~/.pgpass or PGPASSWORD',
            code=KEY,
        )
    return settings


def read_escalations(block: Any, variables: Mapping[str, str]) -> Escalating | None:
    """Raises `ConfigError`."""
    return switched("toolway.escalations", block, Escalating(), lambda given: _escalations(Fields(given, variables)))


def _escalations(fields: Fields) -> Escalating:
    settings = Escalating(
        folder=os.path.expanduser(_plain(fields, "folder")),
        webhook=_plain(fields, "webhook"),
        headers=fields.text_map("headers"),
    )
    fields.nothing_left("toolway.escalations", "folder, webhook and headers")
    if settings.webhook and not settings.webhook.startswith(("https://", "http://")):
        raise ConfigError("toolway.escalations.webhook is no URL", fix="write https://…", code=KEY)
    return settings


def _plain(fields: Fields, key: str) -> str:
    value = fields.text(key) or ""
    if isinstance(value, Unresolved):
        raise ConfigError(
            f"{key} cannot name a secret", evidence="secrets are fetched for servers", fix="use ${VARIABLE}", code=KEY
        )
    return value
