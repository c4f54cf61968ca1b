"""What looks like a secret, by its name or by its shape: for offers and warnings, never for a decision on trust."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final
from urllib.parse import parse_qsl, urlsplit

_SHORTEST: Final = 8  # characters: a token has no fewer
_SHORTEST_PASSWORD: Final = 4
_PASSWORD: Final = re.compile(r"(passwo?r?d|passphrase|pwd)$", re.IGNORECASE)
_ENDS: Final = ("password", "passwd", "secret", "token", "apikey")  # of words that are written together: PGPASSWORD
_WORDS: Final = frozenset(
    {
        *("apikey", "auth", "authorization", "bearer", "cookie", "credential", "credentials", "jwt", "key"),
        *("pass", "passphrase", "passwd", "password", "pat", "pwd", "secret", "secrets", "token"),
    }
)
# `MAX_TOKENS`, `KEY_FILE` and the like: about a secret or about something else, but none.
_NO_SECRET: Final = frozenset(
    {
        *("alias", "author", "count", "dir", "endpoint", "expiry", "file", "folder", "id", "limit", "max", "min"),
        *("mode", "name", "path", "public", "scope", "scopes", "size", "sock", "timeout", "ttl", "type", "uri", "url"),
    }
)
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SHAPES: Final = re.compile(
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
_SCHEME: Final = re.compile(r"(?:bearer|basic|token|apikey)\s+(\S+)", re.IGNORECASE)
_PEM: Final = "PRIVATE KEY-----"
_REFERENCE: Final = re.compile(r"\$\{[^}]*\}|\$\w+|%\w+%|\{env:\w+\}|<[^<>]*>|\*+|\.\.\.|…")


def is_secret_like(name: str, value: str) -> bool:
    """Whether `value`, which something called `name` has, looks like a secret that stands in plain text.

    >>> is_secret_like("GITHUB_TOKEN", "ghp_" + 36 * "x"), is_secret_like("GITHUB_TOKEN", "${GITHUB_TOKEN}")
    (True, False)
    """
    scheme = _SCHEME.fullmatch(value.strip())
    bare = scheme[1] if scheme else value.strip()
    if "://" in bare:
        return bool(secret_in_address(bare))
    if not bare or _REFERENCE.search(bare):
        return False
    if _PEM in bare or _SHAPES.fullmatch(bare):
        return True
    return (bool(scheme) or names_secret(name)) and _could_be(name, bare)


def names_secret(name: str) -> bool:
    """Whether a thing of this name usually is a secret.

    >>> names_secret("OPENAI_API_KEY"), names_secret("maxTokens"), names_secret("--api-key"), names_secret("KEYBOARD")
    (True, False, True, False)
    """
    words = [word.lower() for word in _WORD.findall(name)]
    joined = {a + b for a, b in pairwise(words)}
    if not words or words[-1] in _NO_SECRET:
        return False
    return bool(_WORDS & {*words, *joined}) or any(word.endswith(_ENDS) for word in words)


def secret_in_address(address: str) -> list[str]:
    """The parts of a URL that look like secrets: a password, or a query's token."""
    try:
        parts = urlsplit(address)
        found = [parts.password] if parts.password else []
        query = parse_qsl(parts.query)
    except ValueError:
        return []
    found += [value for name, value in query if is_secret_like(name, value)]
    return [each for each in found if not _REFERENCE.search(each)]


def _could_be(name: str, value: str) -> bool:
    """Neither a switch, a number nor a place."""
    shortest = _SHORTEST_PASSWORD if _PASSWORD.search(name) else _SHORTEST
    if len(value) < shortest or value.isdigit() or any(c.isspace() for c in value):
        return False
    return not re.match(r"[~./\\]|[A-Za-z]:[\\/]", value)
