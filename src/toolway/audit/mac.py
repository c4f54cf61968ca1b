"""MACs (message authentication codes) of audit records, and the key of an audit log.

A hash chain shows that a record was changed, but not who wrote it: anyone who can write to the log can compute every
hash again. So each record ends with a MAC under the key of the log. Without this key no record can be added, and no
removal recorded.

    {"seq":7,"prev":"…","kind":"log.pruned",…,"mac":"…"}

Where the key is known, a record without a MAC counts as altered.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from pathlib import Path
from typing import Final

from toolway.config.settings import AuditSettings
from toolway.secrets.encrypted_file import read_or_create

_MAC_FIELD: Final = re.compile(rb',"mac":"([0-9a-f]{32})"\}')
_MAC_FIELD_BYTES: Final = len(b',"mac":""}') + 32


def load_audit_key(settings: AuditSettings, *, create: bool = True) -> bytes:
    """Return the audit log's key, from its settings or its key file.

    A missing key file is created with a random key. Raises `OSError` if it is missing and `create` is False.
    """
    if settings.digest_key:
        return settings.digest_key
    file = _key_file(settings)
    return read_or_create(file, lambda: secrets.token_hex(32).encode()) if create else file.read_bytes()


def _key_file(settings: AuditSettings) -> Path:
    return Path(settings.digest_key_file or f"{settings.file or 'audit'}.key")


class RecordMacs:
    """Adds a MAC (message authentication code) to each record of one audit log, and checks the MACs."""

    def __init__(self, key: bytes) -> None:
        # A copy of the keyed hash costs half of a new one.
        self._hash = hashlib.blake2b(key=hmac.digest(key, b"toolway audit mac", "sha256"), digest_size=16)

    @classmethod
    def load(cls, settings: AuditSettings, *, create: bool = True) -> RecordMacs:
        """Load the key of an audit log. Raises `OSError` if it is missing and `create` is False."""
        return cls(load_audit_key(settings, create=create))

    def add(self, body: bytes) -> bytes:
        """Return the JSON body of an audit record with its MAC added as the last field."""
        return b'%b,"mac":"%b"}' % (body[:-1], self._compute(body).encode())

    def check(self, body: bytes) -> bool:
        """Return True if an audit record ends with a valid MAC."""
        if _MAC_FIELD.fullmatch(body[-_MAC_FIELD_BYTES:]) is None:
            return False
        found = body[-_MAC_FIELD_BYTES:][len(b',"mac":"') : -len(b'"}')].decode()
        return hmac.compare_digest(found, self._compute(body[:-_MAC_FIELD_BYTES] + b"}"))

    def _compute(self, body: bytes) -> str:
        found = self._hash.copy()
        found.update(body)
        return found.hexdigest()
