"""What the values of an entry show without a server: tokens that have ended, secrets in plain text."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from toolway.config.spec import Server

_JWT: Final = re.compile(r"[A-Za-z0-9_-]{8,}\.([A-Za-z0-9_-]{8,})\.[A-Za-z0-9_-]*")
_REFERENCE: Final = re.compile(r"\$\{[^}]+\}|\{env:[^}]+\}|\$[A-Za-z_]\w*|%[A-Za-z_]\w*%")


class Ended(NamedTuple):
    """A token that says itself when it ends, and that was before now."""

    place: str  # headers.Authorization
    seconds: float  # since then


def ended_tokens(server: Server, now: float) -> Iterator[Ended]:
    """The tokens of an entry that can be read (JSON Web Tokens) and are over."""
    for group, values in (("headers", server.headers), ("env", server.env)):
        for name, value in values.items():
            end = token_end(value)
            if end is not None and end <= now:
                yield Ended(f"{group}.{name}", now - end)


def token_end(text: str) -> float | None:
    """When the token in a value ends, in seconds since 1970; None where it does not say."""
    found = _JWT.search(text)
    if found is None:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(found[1] + "=" * (-len(found[1]) % 4)))
    except (ValueError, binascii.Error):
        return None
    end = claims.get("exp") if isinstance(claims, dict) else None
    return float(end) if isinstance(end, int | float) and not isinstance(end, bool) else None


def is_reference(text: str) -> bool:
    """Whether a value names where it is kept instead of being it."""
    return bool(_REFERENCE.search(text))


def without_references(text: str) -> str:
    """What a value is itself."""
    return _REFERENCE.sub("", text).strip()


def references(text: str) -> str:
    """The names that a value has in the place of what is kept elsewhere, and nothing else of it."""
    return " ".join(_REFERENCE.findall(text))


def ago(seconds: float) -> str:
    for size, word in ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {word}{'s' if count > 1 else ''}"
    return f"{seconds:.0f} s"
