"""Redaction of everything that is stored for later: all rules, in this one file.

1. A value becomes a placeholder if its name usually names a secret (`password`, `api_key`, …) or is configured as
one. 2. A string with the form of a token (`ghp_…`, a JWT, a private key) becomes a placeholder, independent of its
name. 3. Secrets that this process has fetched are hidden inside every text (`secrets/detection.py`). 4. Password and
query of a URL are hidden, because queries often carry tokens. 5. Values that are too deep, too wide or too long are
cut, with a mark.

A placeholder is a keyed hash of the value, with a key that belongs to the log. Equal values have equal placeholders,
but without the key, the value cannot be found by trial and error.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from toolway.secrets.detection import is_secret_name, looks_like_secret, mask_secrets
from toolway.secrets.replacer import MASK

MAX_DEPTH: Final = 16
MAX_MEMBERS: Final = 256  # members of one object or list
MAX_TEXT_CHARS: Final = 2048  # of one text
CUT_MARK: Final = "…"
_encode = msgspec.json.Encoder(order="deterministic").encode
_URL: Final = re.compile(r"(\b[A-Za-z][\w+.-]*://)(?:[^\s/?#@]*@)?([^\s?#]*)([?#]\S*)?")


class Redactor:
    """Removes secrets from JSON values and strings before they are stored, and limits their size."""

    def __init__(self, key: bytes, names: Collection[str] = (), max_text_chars: int = MAX_TEXT_CHARS) -> None:
        """Create a redactor. `key` is the secret key for the hashes in placeholders.

        `names` are additional field names, set by the administrator, whose values are secret. A string is cut after
        `max_text_chars` characters.
        """
        self._max_text_chars = max_text_chars
        self._hash = hashlib.blake2b(key=key[:64], digest_size=16)  # a copy of it costs half of a new one
        self._names = frozenset(name.lower() for name in names)

    def digest(self, value: Any) -> str:
        """Return a keyed hash of a JSON value. Equal values have equal hashes; it cannot be reversed."""
        found = self._hash.copy()
        found.update(_encode(value))
        return found.hexdigest()

    def placeholder(self, value: Any) -> str:
        """Return the text that replaces a secret value: a mask and a short keyed hash of the value."""
        return f"{MASK}{self.digest(value)[:12]}"

    def redact(self, value: Any, name: str = "", depth: int = 0) -> Any:
        """Return a copy of a JSON value without secrets and of bounded size.

        `name` is the field that holds the value. If it names a secret, the whole value is replaced.
        """
        if self._is_secret_name(name) and value not in (None, "", True, False):
            return self.placeholder(value)
        if isinstance(value, str):
            return self.redact_text(value, name)
        if depth >= MAX_DEPTH:
            return CUT_MARK
        if isinstance(value, Mapping):
            return self._redact_object(value, depth)
        if isinstance(value, list | tuple):
            redacted = [self.redact(item, name, depth + 1) for item in value[:MAX_MEMBERS]]
            return [*redacted, CUT_MARK] if len(value) > MAX_MEMBERS else redacted
        return value if value is None or isinstance(value, bool | int | float) else CUT_MARK

    def redact_text(self, text: str, name: str = "") -> str:
        if looks_like_secret(name, text) and "://" not in text:
            return self.placeholder(text)
        redacted = mask_secrets(redact_urls(text) if "://" in text else text)
        return redacted if len(redacted) <= self._max_text_chars else redacted[: self._max_text_chars] + CUT_MARK

    def _redact_object(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        redacted: dict[str, Any] = {}
        for key, item in value.items():
            if len(redacted) >= MAX_MEMBERS:
                redacted[CUT_MARK] = CUT_MARK
                break
            redacted[self.redact_text(str(key))] = self.redact(item, str(key), depth + 1)
        return redacted

    def _is_secret_name(self, name: str) -> bool:
        return bool(name) and (name.lower() in self._names or is_secret_name(name))


def redact_urls(text: str) -> str:
    """Remove the user, the password and the query from all URLs in a string.

    >>> redact_urls("see https://user:pw@example.com/a?token=1#x")
    'see https://example.com/a?***'
    """
    return _URL.sub(lambda found: f"{found[1]}{found[2]}{'?' + MASK if found[3] else ''}", text)
