"""One text in one place of a request: encoded so that it cannot leave it, or refused."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote

from toolway.openapi.problems import BadArguments

# What `allowReserved` keeps as it is. The others would end the query (#) or the value (&, ;), or mean something else.
_RESERVED: Final = ":/?@!$'()*,="
_COOKIE: Final = "!#$&'()*+/:<>?@[]^`{|}"
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_SEPARATORS: Final = re.compile(r"[/\\]")


def in_path(text: str) -> str:
    return _quoted(text, "")


def in_query(text: str | bytes, *, reserved: bool = False) -> str:
    return _quoted(text, _RESERVED if reserved else "")


def in_cookie(text: str) -> str:
    return _quoted(text, _COOKIE)


def in_header(text: str, argument: str) -> str:
    """Visible ASCII as it is, other letters as percent-encoded UTF-8."""
    if _CONTROL.search(text):
        raise BadArguments(f"{argument!r} goes into a header, which has no line ends and no other control characters")
    return _quoted(text, "!\"#$%&'()*+,/:;<=>?@[\\]^`{|} ").strip(" ")


def leads_away(path: str) -> bool:
    """Whether a server could read an encoded path as another one. Many decode `%2F` before they look for `..`, and some
    drop what stands behind `;`, so it is looked at as they would see it."""
    segments = _SEPARATORS.split(unquote(path, errors="replace"))
    return any(segment.partition(";")[0].strip(" \t\r\n\0") in (".", "..") for segment in segments)


def _quoted(text: str | bytes, safe: str) -> str:
    try:
        return quote(text, safe=safe)
    except UnicodeEncodeError:
        raise BadArguments("a text with half a character (a lone surrogate)") from None
