"""MACs (message authentication codes) of audit records, and the key of an audit log.

A hash chain shows that a record was changed, but not who wrote it: a person who can write to the log can compute every
hash again. So each record ends with a MAC under the key of the log. Without this key no record can be added, and no
removal recorded.

    {"seq":7,"prev":"…","kind":"log.pruned",…,"mac":"…"}

Logs of older versions have no MACs. The first writer that adds them notes the number of the last record before
(`MacStart`), beside the key. Every later record must have one, so that removing all MACs is detected too.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from pathlib import Path
from typing import Final

from toolway._lazy import compile_pattern
from toolway.config.settings import AuditSettings
from toolway.secrets.encrypted_file import read_or_create

_MAC_FIELD: Final = compile_pattern(rb',"mac":"([0-9a-f]{32})"\}')
_MAC_FIELD_BYTES: Final = len(b',"mac":""}') + 32


def load_audit_key(settings: AuditSettings, *, create: bool = True) -> bytes:
    """Return the key of the audit log, from its settings or its key file.

    A missing key file is created with a random key. Raises `OSError` if it is missing and `create` is False.
    """
    if settings.digest_key:
        return settings.digest_key
    file = _key_file(settings)
    return read_or_create(file, lambda: secrets.token_hex(32).encode()) if create else file.read_bytes()


def _path_hash(path: str) -> str:
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:8]


def _key_file(settings: AuditSettings) -> Path:
    return Path(settings.digest_key_file or f"{settings.file or 'audit'}.key")


class MacStart:
    """File beside the key of a log with the number of the last record without a MAC; all later records have one."""

    def __init__(self, file: Path, log: str) -> None:
        self._file = file
        self._log = log

    def read(self) -> int | None:
        """Return the number of the last audit record that may have no MAC; None if the file does not exist."""
        try:
            found = re.match(rb"[0-9]{1,18}\b", self._file.read_bytes())
        except FileNotFoundError:
            return None
        return int(found[0]) if found else 0

    def lower_to(self, seq: int) -> None:
        """Store that all records after number `seq` must have a MAC, unless a lower number is stored already."""
        known = self.read()
        if known is not None and known <= seq:
            return
        draft = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as out:
            out.write(f"{seq} is the last record without a MAC in {self._log}\n")
            out.flush()
            os.fsync(out.fileno())
        os.replace(draft, self._file)


class RecordMacs:
    """Adds a MAC (message authentication code) to each record of one audit log, and checks the MACs."""

    def __init__(self, key: bytes, start: MacStart | None = None) -> None:
        # A copy of the keyed hash costs half of a new one.
        self._hash = hashlib.blake2b(key=hmac.digest(key, b"toolway audit mac", "sha256"), digest_size=16)
        self.start = start

    @classmethod
    def load(cls, settings: AuditSettings, *, create: bool = True) -> RecordMacs:
        """Load the key of an audit log. Raises `OSError` if it is missing and `create` is False."""
        key = load_audit_key(settings, create=create)
        if settings.digest_key:
            return cls(key)  # nodes of a cluster share no folder
        log = os.path.realpath(settings.file) if settings.file else f"postgresql {settings.name}"
        file = _key_file(settings)
        names = [log, os.path.abspath(settings.file)] if settings.file else [log]  # earlier versions followed no link
        notes = [file.with_name(f"{file.name}.{_path_hash(name)}") for name in names]
        return cls(key, MacStart(next((note for note in notes if note.exists()), notes[0]), log))

    def add(self, body: bytes) -> bytes:
        """Return the JSON body of an audit record with its MAC added as the last field."""
        return b'%b,"mac":"%b"}' % (body[:-1], self._compute(body).encode())

    def check(self, body: bytes) -> bool:
        """Return True if the MAC of a record is valid. Call it only for a record that has a MAC (`has_mac`)."""
        found = body[-_MAC_FIELD_BYTES:][len(b',"mac":"') : -len(b'"}')].decode()
        return hmac.compare_digest(found, self._compute(body[:-_MAC_FIELD_BYTES] + b"}"))

    def _compute(self, body: bytes) -> str:
        found = self._hash.copy()
        found.update(body)
        return found.hexdigest()


def has_mac(body: bytes) -> bool:
    """Return True if an audit record ends with a MAC, which may be wrong."""
    return _MAC_FIELD.fullmatch(body[-_MAC_FIELD_BYTES:]) is not None
