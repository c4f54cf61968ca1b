"""Secret values that this process holds for each server: its tokens, and the secrets of its configuration entry.

They must not be passed on in a result of that server, so they are redacted there. They are in memory only.
"""

from __future__ import annotations

import json
from typing import Final

from toolway.secrets.detection import MIN_SECRET_CHARS

MAX_VALUES: Final = 256  # of one server; the oldest is dropped: each refresh of a token brings a new one


class ServerSecrets:
    """Secret values of one server, and how they appear in the server's results if they are encoded as JSON.

    `texts` are the values as a text may contain them, also a text that is JSON itself. `forms` are those as the bytes
    of a result contain them. Both are empty if the server has no secrets.
    """

    __slots__ = ("_values", "forms", "texts")

    def __init__(self) -> None:
        self._values: dict[str, None] = {}
        self.texts: tuple[str, ...] = ()  # longest first
        self.forms: tuple[bytes, ...] = ()

    def add(self, value: str) -> None:
        """Add a secret value. A value of less than 6 characters is ignored, because it occurs in ordinary words."""
        if value in self._values or len(value) < MIN_SECRET_CHARS:
            return
        self._values[value] = None
        while len(self._values) > MAX_VALUES:
            del self._values[next(iter(self._values))]
        texts = {form for each in self._values for form in (each, *_json_forms(each))}
        self.texts = tuple(sorted(texts, key=lambda text: (-len(text), text)))
        encoded = {form for text in texts for form in _json_forms(text)}
        self.forms = tuple(form.encode("utf-8", "surrogatepass") for form in sorted(encoded))

    def may_be_in(self, encoded: bytes) -> bool:
        """Return True if `encoded`, JSON text, may contain one of the secret values.

        A program may write any character of a string as an escape. So text with such escapes may contain every value.
        """
        return any(form in encoded for form in self.forms) or b"\\u" in encoded or b"\\/" in encoded


def _json_forms(value: str) -> set[str]:
    """Return the ways to write a text inside a JSON string: as it is, or with escapes for all but ASCII."""
    return {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}


_by_server: dict[str, ServerSecrets] = {}


def secrets_of(server: str) -> ServerSecrets:
    """Return the secret values of a server, always as the same object, so callers may keep a reference to it."""
    return _by_server.setdefault(server, ServerSecrets())


NO_SECRETS: Final = ServerSecrets()  # of servers whose results are not searched; nothing is added to it
