"""Secret values that this process holds for each server: its tokens, and the secrets of its configuration entry.

They must not be passed on in a result of that server, so they are redacted there. They are in memory only.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from toolway.secrets.detection import MIN_SECRET_CHARS

MAX_VALUES: Final = 256  # of the entry of one server; the oldest is dropped: a reference may have a new value each time
MAX_TOKENS: Final = 1024  # of one server and all its callers; the one that was unused for longest is dropped


class _Written(NamedTuple):
    """Forms in which one secret value may occur: in texts, and in the JSON bytes of a result."""

    texts: tuple[str, ...]  # as a text may contain it, also a text that is JSON itself
    forms: tuple[bytes, ...]  # as the bytes of a result contain it

    @staticmethod
    def of(value: str) -> _Written:
        texts = {value, *_json_forms(value)}
        forms = {form for text in texts for form in _json_forms(text)}
        return _Written(tuple(texts), tuple(form.encode("utf-8", "surrogatepass") for form in sorted(forms)))


class ServerSecrets:
    """Secret values of one server, in all forms in which they may occur in the server's results.

    `texts` are the forms in a decoded text, which may be JSON itself. `forms` are those in the JSON bytes of a result.
    Both are empty if the server has no secrets.
    """

    __slots__ = ("_tokens", "_values", "forms", "texts")

    def __init__(self) -> None:
        self._values: dict[str, _Written] = {}  # of the entry
        self._tokens: dict[str, _Written] = {}  # of logins; the least recently used first
        self.texts: tuple[str, ...] = ()  # longest first
        self.forms: tuple[bytes, ...] = ()

    def add(self, value: str) -> None:
        """Add a secret value from the server's configuration entry.

        A value of less than 6 characters is ignored, because it occurs in ordinary words.
        """
        self._keep(self._values, value, MAX_VALUES)

    def add_token(self, value: str) -> None:
        """Add a token with which a caller is logged in at this server, or mark a known one as recently used.

        If there are too many tokens, the one unused for longest is dropped. Values of the configuration entry are not.
        """
        self._keep(self._tokens, value, MAX_TOKENS)

    def _keep(self, kept: dict[str, _Written], value: str, most: int) -> None:
        if len(value) < MIN_SECRET_CHARS:
            return
        known = kept.pop(value, None)
        if known is not None:
            kept[value] = known  # the newest again
            return
        kept[value] = _Written.of(value)
        while len(kept) > most:
            del kept[next(iter(kept))]
        written = (*self._values.values(), *self._tokens.values())
        self.texts = tuple(
            sorted({text for each in written for text in each.texts}, key=lambda text: (-len(text), text))
        )
        self.forms = tuple({form: None for each in written for form in each.forms})

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
