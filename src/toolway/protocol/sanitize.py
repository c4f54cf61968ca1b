"""Sanitizes untrusted text (control, direction and invisible characters), and checks its URLs.

Such characters control a terminal, change the order in which text is shown, or hide text that a model reads and a
user does not see. Emoji sequences and the joiners of Arabic and Indic scripts contain some of them, and stay.

This is a separate module, so display code does not have to load the protocol.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

_TERMINAL_CONTROLS: Final = "\x00-\x08\x0b-\x1f\x7f-\x9f"  # without tab and newline
# All of Unicode's Cf and Co except visible marks such as the Arabic number sign; other default-ignorable characters,
# such as variation selectors and Hangul fillers; line separators; lone surrogates.
_INVISIBLE: Final = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\uf8ff"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\U000f0000-\U0010ffff"
)
_ASCII_CONTROLS: Final = bytes([*range(0x09), *range(0x0B, 0x20), 0x7F])
_UNPRINTABLE_CHARACTER: Final = f"[{_TERMINAL_CONTROLS}{_INVISIBLE}]"
_UNPRINTABLE: Final = re.compile(_UNPRINTABLE_CHARACTER)
_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")  # a carriage return is part of file contents

_ESCAPED_CONTROL: Final = re.compile(rb"\\(?:[bfr]|u00)|\x7f")  # in JSON

_EMOJI: Final = "\u00a9\u00ae\u203c\u2049\u2100-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
_JOINED_SCRIPTS: Final = "\u0600-\u0dff\u1000-\u109f\u1780-\u17ff"
_FLAG_TAGS: Final = "|".join(
    "".join(chr(0xE0000 + ord(char)) for char in region) + "\U000e007f" for region in ("gbeng", "gbsct", "gbwls")
)
_HONEST: Final = "|".join(
    (
        f"(?<=[{_EMOJI}])\ufe0f?\u200d(?=[{_EMOJI}])",  # joined emoji
        f"(?<=[{_EMOJI}])[\ufe0e\ufe0f]",  # emoji or text style, once
        "(?<=[#*0-9])\ufe0f(?=\u20e3)",  # keycap
        f"(?<=\U0001f3f4)(?:{_FLAG_TAGS})",
        f"(?<=[{_JOINED_SCRIPTS}])[\u200c\u200d](?![\u200b-\u200f])",
    )
)
_HONEST_OR_UNPRINTABLE: Final = re.compile(f"({_HONEST})|{_UNPRINTABLE_CHARACTER}")


def sanitize(text: str, limit: int) -> str:
    """Remove control, direction, and invisible characters from untrusted text, and cut it to `limit` characters."""
    text = remove_invisible(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def remove_invisible(text: str) -> str:
    """Return `text` without control, direction and invisible characters; tabs and newlines stay.

    >>> remove_invisible("ab\\u202ec \\x1b[31m☎️")
    'abc [31m☎️'
    """
    if text.isascii():
        # Most strings: several times faster than the expression, which takes milliseconds to compile.
        encoded = text.encode()
        plain = encoded.translate(None, _ASCII_CONTROLS)
        return text if len(plain) == len(encoded) else plain.decode()
    if _UNPRINTABLE.search(text) is None:
        return text
    return _HONEST_OR_UNPRINTABLE.sub(lambda found: found[1] or "", text)


def remove_controls(text: str) -> str:
    """Return `text` without characters that control a terminal. Tabs, newlines, and carriage returns stay."""
    return _CONTROL.sub("", text)


def escape_invisible(document: str) -> str:
    """Return a JSON document with its invisible characters as JSON escapes. Its value stays the same."""
    return _UNPRINTABLE.sub(lambda found: _escape(found[0]), document)


def describe_invisible(text: str) -> str:
    """Return the names of the characters that `remove_invisible` removes, and any text hidden in tags.

    >>> describe_invisible("ab\\u202ec")
    'U+202E RIGHT-TO-LEFT OVERRIDE'
    """
    if _UNPRINTABLE.search(text) is None:
        return ""
    found = [match[0] for match in _HONEST_OR_UNPRINTABLE.finditer(text) if not match[1]]
    names = [_name(char) for char in dict.fromkeys(found) if not _is_tag(char)]
    tags = "".join(chr(ord(char) - 0xE0000) for char in found if _is_tag(char))
    if len(names) > MAX_DESCRIBED:
        names[MAX_DESCRIBED:] = [f"{len(names) - MAX_DESCRIBED} more"]
    return ", ".join([*names, *([f"tag characters that spell {tags[:80]!r}"] if tags else [])])


MAX_DESCRIBED: Final = 5  # different characters


def has_invisible(document: bytes) -> bool:
    """Return True if an encoded JSON document may contain characters that `remove_invisible` removes.

    Fast for ASCII documents, as most are.
    """
    if _ESCAPED_CONTROL.search(document) is not None:
        return True
    return not document.isascii() and _UNPRINTABLE.search(document.decode("utf-8", "replace")) is not None


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with `change` applied to every string in it, including keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key) if isinstance(key, str) else key: map_texts(each, change) for key, each in value.items()}
    return [map_texts(each, change) for each in value] if isinstance(value, list | tuple) else value


def _is_tag(char: str) -> bool:
    return "\U000e0020" <= char <= "\U000e007e"


def _name(char: str) -> str:
    return f"U+{ord(char):04X} {unicodedata.name(char, '')}".rstrip()


def _escape(char: str) -> str:
    code = ord(char)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def browser_url_problem(url: str) -> str:
    """Return the reason why a browser must not open a URL that a server sent, or an empty string if it may.

    With a scheme other than http(s), such as `javascript:`, the server could choose which program opens the URL.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "cannot be parsed"
    if parts.scheme not in ("http", "https") or not host or port == 0:
        return "is not an http(s) URL"
    if parts.username is not None or parts.password is not None:
        return "contains a user name"
    if any(not char.isprintable() or char.isspace() for char in url):
        return "contains invalid characters"
    return ""
