"""Secret values that this process holds per server: tokens, and secrets in its config entry.

They must not leak through the server's results and definitions, so they are redacted in both. They are only kept in
memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from toolway.secrets.replacer import MIN_SECRET_CHARS, build_replacer

MAX_VALUES: Final = 256  # of the entry of one server; the oldest is dropped: a reference may have a new value each time
MAX_TOKENS: Final = 1024  # of one server and all its callers; the one that was unused for longest is dropped


class _Written(NamedTuple):
    """Forms of one secret value: in strings, and in a result's JSON bytes."""

    texts: tuple[str, ...]  # as a string may contain it, also a string that is JSON itself
    forms: tuple[bytes, ...]  # as the bytes of a result contain it

    @staticmethod
    def of(value: str) -> _Written:
        texts = {value, *_json_forms(value)}
        forms = {form for text in texts for form in _json_forms(text)}
        return _Written(tuple(texts), tuple(form.encode("utf-8", "surrogatepass") for form in sorted(forms)))


class ServerSecrets:
    """One server's secret values, in all forms that its results may contain.

    `texts` are the forms in decoded strings, which may themselves be JSON. `forms` are those in a result's JSON bytes.
    Both are empty if the server has no secrets.
    """

    __slots__ = ("_environment", "_names", "_replace", "_tokens", "_values", "forms", "texts")

    def __init__(self) -> None:
        self._values: dict[str, _Written] = {}  # of the entry
        self._tokens: dict[str, _Written] = {}  # of logins; the least recently used first
        self._environment: frozenset[str] = frozenset()  # of this process: masked in definitions
        self._names: dict[str, str] = {}  # by value: the name of the setting that has it
        self._replace: Callable[[str], str] | None = None  # built for the first definition
        self.texts: tuple[str, ...] = ()  # longest first
        self.forms: tuple[bytes, ...] = ()

    def add(self, value: str) -> None:
        """Add a secret value from the server's configuration entry.

        Values under 6 characters are ignored, because they occur in ordinary words.
        """
        self._keep(self._values, value, MAX_VALUES)

    def add_token(self, value: str) -> None:
        """Add a caller's token for this server, or mark a known one as recently used.

        If there are too many tokens, the one that has been unused for longest is dropped. Values from the
        configuration entry are never dropped.
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
        self._replace = None
        while len(kept) > most:
            del kept[next(iter(kept))]
        written = (*self._values.values(), *self._tokens.values())
        self.texts = tuple(
            sorted({text for each in written for text in each.texts}, key=lambda text: (-len(text), text))
        )
        self.forms = tuple({form: None for each in written for form in each.forms})

    def set_environment(self, values: Iterable[str]) -> None:
        """Set the secrets in this process's environment, which the server may have inherited."""
        found = frozenset(value for value in values if len(value) >= MIN_SECRET_CHARS)
        if found != self._environment:
            self._environment, self._replace = found, None

    def set_names(self, names: Mapping[str, str]) -> None:
        """Set the name of the setting that each value in the server's entry belongs to."""
        self._names = dict(names)

    def named_values(self) -> list[tuple[str, str]]:
        """Return all secret values, each with a description such as `the secret API_TOKEN`."""
        named = [(f"the secret {name}", value) for value, name in self._names.items()]
        named += [("a secret", value) for value in self._values if value not in self._names]
        return named + [("a login token", value) for value in self._tokens]

    def mask(self, text: str) -> str:
        """Return text from a definition with secret values replaced with `***`, in any form."""
        if self._replace is None:
            self._replace = build_replacer({*self._values, *self._tokens, *self._environment})
        return self._replace(text)

    def are_in(self, definitions: Any) -> bool:
        """Return True if a string or key in these definitions (a JSON value) may contain a secret.

        All strings are searched as one, which is much faster than searching each.
        """
        if not (self._values or self._tokens or self._environment):
            return False
        texts: list[str] = []
        level: list[Any] = [definitions]
        while level:
            below: list[Any] = []
            for value in level:
                if isinstance(value, str):
                    texts.append(value)
                elif isinstance(value, dict):
                    below += value
                    below += value.values()
                elif isinstance(value, list):
                    below += value
            level = below
        joined = "|".join(texts)
        return self.mask(joined) != joined

    def may_be_in(self, encoded: bytes) -> bool:
        """Return True if `encoded` JSON may contain one of the secret values.

        Programs may escape any character of a string, so JSON with such escapes may contain anything.
        """
        return any(form in encoded for form in self.forms) or b"\\u" in encoded or b"\\/" in encoded


def _json_forms(value: str) -> set[str]:
    """Return the ways to write text in a JSON string: as is, or with all non-ASCII escaped."""
    return {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}


_by_server: dict[str, ServerSecrets] = {}


def secrets_of(server: str) -> ServerSecrets:
    """Return a server's secret values. Always the same object, so callers may keep a reference."""
    return _by_server.setdefault(server, ServerSecrets())


def mask_target(server: str, method: str, target: str, mask: Callable[[str], str]) -> str:
    """Return a call's name or URI with secrets masked, for records of the call.

    `mask` also hides ordinary values from server entries, which may be words in a tool's name. Tools are recorded by
    name, so only certain secrets are masked there.
    """
    return secrets_of(server).mask(target) if method == "tools/call" else mask(target)


NO_SECRETS: Final = ServerSecrets()  # of servers whose results are not searched; nothing is added to it
