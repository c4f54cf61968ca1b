"""Masks secrets that this process has used, and detects likely secrets.

A secret is resolved late, for the one server that refers to it. But the server may repeat it in text that appears in
many outputs. So the code that resolves a secret adds it here, and the code that shows text masks it with this module.
The secrets are only kept in memory.

Detection by name or format is for suggestions and warnings, never for security decisions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from toolway.secrets.replacer import MIN_SECRET_CHARS, build_replacer

# -- masking of secrets in use -----------------------------------------------------------------------------------------

MAX_SECRETS: Final = 4096  # values; the oldest is dropped: a secret command may return a new value each time


class SecretMasker:
    """A set of secret values, and a function that replaces each of them with `***`.

    It keeps at most `max_secrets` values and drops the oldest first. Values under 6 characters are not kept.
    """

    def __init__(self, max_secrets: int = MAX_SECRETS) -> None:
        self._max_secrets = max_secrets
        self._values: dict[str, None] = {}
        self._replace: Callable[[str], str] | None = None

    def add(self, value: str) -> None:
        if value in self._values or len(value) < MIN_SECRET_CHARS:
            return
        self._values[value] = None
        while len(self._values) > self._max_secrets:
            self._values.pop(next(iter(self._values)))
        self._replace = None

    def mask(self, text: str) -> str:
        if not self._values:
            return text
        if self._replace is None:
            self._replace = build_replacer(self._values)
        return self._replace(text)


#: Common values of settings. Masking them would hide ordinary words in all output.
_HARMLESS_WORDS: Final = frozenset(
    {
        *("true", "false", "yes", "no", "on", "off", "enabled", "disabled", "none", "null", "auto", "default"),
        *("always", "never", "trace", "debug", "verbose", "info", "notice", "warn", "warning", "error", "critical"),
        *("fatal", "silent", "quiet", "production", "prod", "development", "dev", "staging", "testing", "test"),
        *("local", "localhost", "sandbox", "preview", "stdio", "http", "https", "streamable-http", "sse"),
        *("json", "text", "plain", "utf8", "utf-8", "ascii", "readonly", "read-only", "readwrite", "read-write"),
    }
)
_HARMLESS_FORMAT: Final = re.compile(
    r"""
      [0-9.,:-]{1,5}                            # a small number
    | [a-z]{2,3}_[A-Z]{2}(?:\.[A-Za-z0-9-]+)?   # a locale
    | ~?(?:/[\w.@-]{0,64})+                     # an absolute path
    | [a-z]+://[\w.-]+(?::[0-9]{1,5})?/?        # a URL with scheme, host and port only
    """,
    re.VERBOSE,
)


def is_harmless_value(name: str, value: str) -> bool:
    """Return True if an environment variable's value is clearly not a secret, so it may be shown.

    Harmless values are common words such as `production`, small numbers, locales, absolute paths, and URLs without
    user, path and query, unless the variable's name suggests a secret.

    >>> [is_harmless_value("MODE", each) for each in ("production", "https://api.example", "correct-horse", "/srv")]
    [True, True, False, True]
    >>> is_harmless_value("PASSWORD", "production")
    False
    """
    harmless = value.lower() in _HARMLESS_WORDS or _HARMLESS_FORMAT.fullmatch(value) is not None
    return harmless and not is_secret_name(name)


_masker = SecretMasker()
remember_secret = _masker.add
mask_secrets = _masker.mask


# -- likely secrets, by name or format ---------------------------------------------------------------------------------

_MIN_TOKEN_CHARS: Final = 8  # characters; tokens are not shorter
_MIN_PASSWORD_CHARS: Final = 4
_PASSWORD_NAME: Final = re.compile(r"(passwo?r?d|passphrase|pwd)$", re.IGNORECASE)
_SECRET_SUFFIXES: Final = ("password", "passwd", "secret", "token", "apikey")  # for joined words such as PGPASSWORD
_SECRET_WORDS: Final = frozenset(
    {
        *("apikey", "auth", "authorization", "bearer", "cookie", "credential", "credentials", "jwt", "key"),
        *("pass", "passphrase", "passwd", "password", "pat", "pwd", "secret", "secrets", "token"),
    }
)
# `MAX_TOKENS`, `KEY_FILE` and the like describe a secret or something else, but are not secrets.
_NON_SECRET_WORDS: Final = frozenset(
    {
        *("alias", "author", "count", "dir", "endpoint", "expiry", "file", "folder", "id", "limit", "max", "min"),
        *("mode", "name", "path", "public", "scope", "scopes", "size", "sock", "timeout", "ttl", "type", "uri", "url"),
    }
)
_NAME_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
TOKEN_FORMATS: Final = re.compile(
    r"""(?:
      gh[opsur]_\w{20,} | github_pat_\w{20,} | glpat-[\w-]{16,}
    | sk-[\w-]{16,} | (?:sk|rk|pk)_(?:live|test)_\w{16,} | xox[abeoprs]-[\w-]{10,} | xapp-[\w-]{10,}
    | A(?:KIA|SIA)[A-Z0-9]{16} | AIza[\w-]{30,} | ya29\.[\w-]{20,}
    | hf_\w{20,} | npm_\w{30,} | pypi-[\w-]{40,} | SG\.[\w-]{16,}\.[\w-]{16,} | dop_v1_\w{32,} | shpat_\w{20,}
    | lin_api_\w{20,} | ntn_\w{20,} | secret_\w{20,} | tvly-[\w-]{16,} | fig[du]_[\w-]{20,} | r8_\w{20,}
    | eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*
    )""",
    re.VERBOSE,
)
_AUTH_SCHEME: Final = re.compile(r"(?:bearer|basic|token|apikey)\s+(\S+)", re.IGNORECASE)
_PEM_MARKER: Final = "PRIVATE KEY-----"
_PLACEHOLDER: Final = re.compile(r"\$\{[^}]*\}|\$\w+|%\w+%|\{env:\w+\}|<[^<>]*>|\*+|\.\.\.|…")


def looks_like_secret(name: str, value: str) -> bool:
    """Return True if a setting called `name` seems to hold a plain-text secret.

    >>> looks_like_secret("GITHUB_TOKEN", "ghp_" + 36 * "x"), looks_like_secret("GITHUB_TOKEN", "${GITHUB_TOKEN}")
    (True, False)
    """
    scheme = _AUTH_SCHEME.fullmatch(value.strip())
    bare = scheme[1] if scheme else value.strip()
    if "://" in bare:
        return bool(secrets_in_url(bare))
    if not bare or _PLACEHOLDER.search(bare):
        return False
    if _PEM_MARKER in bare or TOKEN_FORMATS.fullmatch(bare):
        return True
    return (bool(scheme) or is_secret_name(name)) and _is_plausible_secret(name, bare)


def is_secret_name(name: str) -> bool:
    """Return True if a setting called `name` usually holds a secret.

    >>> [is_secret_name(name) for name in ("OPENAI_API_KEY", "maxTokens", "--api-key", "KEYBOARD")]
    [True, False, True, False]
    """
    words = [word.lower() for word in _NAME_WORD.findall(name)]
    joined = {a + b for a, b in pairwise(words)}
    if not words or words[-1] in _NON_SECRET_WORDS:
        return False
    return bool(_SECRET_WORDS & {*words, *joined}) or any(word.endswith(_SECRET_SUFFIXES) for word in words)


def secrets_in_url(url: str) -> list[str]:
    """Return the likely secrets in a URL: a password, or a token in the query."""
    try:
        parts = urlsplit(url)
        found = [parts.password] if parts.password else []
        query = parse_qsl(parts.query)
    except ValueError:
        return []
    found += [value for name, value in query if looks_like_secret(name, value)]
    return [each for each in found if not _PLACEHOLDER.search(each)]


def _is_plausible_secret(name: str, value: str) -> bool:
    """Return True if `value` is long enough for a secret, and is not a number, phrase or file path."""
    min_chars = _MIN_PASSWORD_CHARS if _PASSWORD_NAME.search(name) else _MIN_TOKEN_CHARS
    if len(value) < min_chars or value.isdigit() or any(c.isspace() for c in value):
        return False
    return not re.match(r"[~./\\]|[A-Za-z]:[\\/]", value)
