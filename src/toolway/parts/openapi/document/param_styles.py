"""OpenAPI parameter styles (RFC 6570): turns values into text, and escapes it.

Each style function takes `escape`, which escapes a string for its position. Only this module writes separators; they
never come from a value. A string that could break out of its position is rejected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote

from toolway.parts.openapi.document.models import UnencodableArguments

Escape: TypeAlias = Callable[[str], str]
EncodedPairs: TypeAlias = list[tuple[str, str]]  # names and values, both encoded

SEPARATORS: Final = {"form": ",", "spaceDelimited": " ", "pipeDelimited": "|", "tabDelimited": "\t"}
_ENCODED_DELIMITERS: Final = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C", "tabDelimited": "%09"}
_MAX_DEEP_OBJECT_DEPTH: Final = 8


def to_text(value: Any) -> str:
    """Return a single parameter value as text: `true`, `1.5`, or "" for null.

    Lists and objects become JSON, because no style covers them here.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    if isinstance(value, int | float):
        return json.dumps(value)
    return to_json_text(value)


def to_json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def encode_simple(value: Any, explode: bool, escape: Escape) -> str:
    """Encode a path or header value in style `simple`.

    Results: `a,b` for a list, `x,1,y,2` for an object, `x=1,y=2` if exploded.
    """
    return ",".join(_flatten(value, explode, escape))


def encode_label(value: Any, explode: bool, escape: Escape) -> str:
    """Encode a path value in style `label`: `.a,b`, or `.a.b` if exploded."""
    return "." + ("." if explode else ",").join(_flatten(value, explode, escape))


def encode_matrix(name: str, value: Any, explode: bool, escape: Escape) -> str:
    """Encode a path value in style `matrix`: `;name=a,b`, or `;name=a;name=b` if exploded."""
    escaped_name = escape(name)
    if explode and isinstance(value, list):
        return "".join(f";{escaped_name}={escape(to_text(each))}" for each in value)
    if explode and isinstance(value, dict):
        return "".join(f";{escape(key)}={escape(to_text(each))}" for key, each in value.items())
    text = ",".join(_flatten(value, False, escape))
    return f";{escaped_name}={text}" if text else f";{escaped_name}"


def _flatten(value: Any, explode: bool, escape: Escape) -> list[str]:
    if isinstance(value, list):
        return [escape(to_text(each)) for each in value]
    if isinstance(value, dict):
        if explode:
            return [f"{escape(key)}={escape(to_text(each))}" for key, each in value.items()]
        return [escape(text) for key, each in value.items() for text in (key, to_text(each))]
    return [escape(to_text(value))]


def encode_pairs(name: str, value: Any, style: str, explode: bool, escape_name: Escape, escape: Escape) -> EncodedPairs:
    """Encode a value as name-value pairs for queries, cookies and forms.

    `escape_name` escapes names; `escape` escapes values and may leave more characters as they are.
    """
    escaped_name = escape_name(name)
    if style == "deepObject" and isinstance(value, dict):
        return _encode_deep_object(escaped_name, value, escape_name, escape, 0)
    if isinstance(value, list):
        if explode or style == "deepObject":
            return [(escaped_name, escape(to_text(each))) for each in value]
        return (
            [(escaped_name, _ENCODED_DELIMITERS[style].join(escape(to_text(each)) for each in value))] if value else []
        )
    if isinstance(value, dict):
        if explode:
            return [pair for key, each in value.items() for pair in _explode_value(escape_name(key), each, escape)]
        texts = [escape(text) for key, each in value.items() for text in (key, to_text(each))]
        return [(escaped_name, _ENCODED_DELIMITERS[style].join(texts))] if texts else []
    return [(escaped_name, escape(to_text(value)))]


def _explode_value(escaped_name: str, value: Any, escape: Escape) -> EncodedPairs:
    values = value if isinstance(value, list) else [value]
    return [(escaped_name, escape(to_text(each))) for each in values]


def _encode_deep_object(escaped_name: str, value: Any, escape_name: Escape, escape: Escape, level: int) -> EncodedPairs:
    """Encode an object in style `deepObject`: `filter[a][b]=1`.

    A list repeats its name, which most servers understand. Raises `UnencodableArguments` if the object is nested too
    deeply.
    """
    if level > _MAX_DEEP_OBJECT_DEPTH:
        raise UnencodableArguments("an object in the query is nested too deeply")
    found: EncodedPairs = []
    for key, each in value.items():
        inner = f"{escaped_name}%5B{escape_name(key)}%5D"
        if isinstance(each, dict):
            found.extend(_encode_deep_object(inner, each, escape_name, escape, level + 1))
        else:
            found.extend((inner, escape(to_text(item))) for item in (each if isinstance(each, list) else [each]))
    return found


# -- escaping of one text for its position in a request ----------------------------------------------------------------

# Characters that `allowReserved` leaves unescaped. The rest end the query (#) or the value (&, ;), or are special.
_ALLOWED_RESERVED: Final = ":/?@!$'()*,="
_SAFE_COOKIE_CHARS: Final = "!#$&'()*+/:<>?@[]^`{|}"
_CONTROL_CHARS: Final = re.compile(r"[\x00-\x1f\x7f]")
_PATH_SEPARATORS: Final = re.compile(r"[/\\]")


def escape_path(text: str) -> str:
    """Percent-encode a string for use inside one segment of a URL path."""
    return _percent_encode(text, "")


def escape_query(text: str | bytes, *, allow_reserved: bool = False) -> str:
    """Percent-encode a query value; `allow_reserved` leaves most reserved characters unescaped."""
    return _percent_encode(text, _ALLOWED_RESERVED if allow_reserved else "")


def escape_cookie(text: str) -> str:
    """Percent-encode a cookie value, keeping characters that are safe in a cookie."""
    return _percent_encode(text, _SAFE_COOKIE_CHARS)


def escape_header(text: str, argument: str) -> str:
    """Escape a header value: visible ASCII stays, and other characters become percent-encoded UTF-8.

    Raises `UnencodableArguments`, which names `argument`, if the value contains control characters.
    """
    if _CONTROL_CHARS.search(text):
        raise UnencodableArguments(
            f"{argument!r} is sent in a header and must not contain line breaks or control characters"
        )
    return _percent_encode(text, "!\"#$%&'()*+,/:;<=>?@[\\]^`{|} ").strip(" ")


def has_dot_segments(path: str) -> bool:
    """Return True if `.` or `..` segments could make a server read a path as a different one.

    Many servers decode `%2F` before they resolve `..`, and some drop the text after `;`. So this checks the decoded
    path.
    """
    segments = _PATH_SEPARATORS.split(unquote(path, errors="replace"))
    return any(segment.partition(";")[0].strip(" \t\r\n\0") in (".", "..") for segment in segments)


def _percent_encode(text: str | bytes, safe: str) -> str:
    try:
        return quote(text, safe=safe)
    except UnicodeEncodeError:
        raise UnencodableArguments("a string contains half a character (a lone surrogate)") from None
