"""Secret values that this process holds for each server: tokens, and secrets of its entry.

They must not leave in a result of that server. They are in memory only.
"""

from __future__ import annotations

import json
from typing import Final

from toolway.secrets.detection import MIN_SECRET_CHARS

MAX_VALUES: Final = 256  # of one server; the oldest is dropped: each refresh of a token brings a new one


class ServerSecrets:
    """Secret values of one server, and their forms in results. Both are empty if there are none.

    `texts` are the forms in a text, which may itself be JSON. `forms` are those in the bytes of a result.
    """

    __slots__ = ("_values", "forms", "texts")

    def __init__(self) -> None:
        self._values: dict[str, None] = {}
        self.texts: tuple[str, ...] = ()  # longest first
        self.forms: tuple[bytes, ...] = ()

    def add(self, value: str) -> None:
        """Add a value. One of less than 6 characters is not kept: it occurs in ordinary words."""
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
        """Return True if JSON text may contain one of the values.

        A program may write any character of a string as an escape. So text with such escapes may contain each value.
        """
        return any(form in encoded for form in self.forms) or b"\\u" in encoded or b"\\/" in encoded


def _json_forms(value: str) -> set[str]:
    """Return how encoders write a text inside a JSON string: plain, or with escapes for what is not ASCII."""
    return {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}


_by_server: dict[str, ServerSecrets] = {}


def secrets_of(server: str) -> ServerSecrets:
    """Return the secret values of a server. The object is the same for the life of the process."""
    return _by_server.setdefault(server, ServerSecrets())


NO_SECRETS: Final = ServerSecrets()  # of servers whose results are not searched; nothing is added to it
