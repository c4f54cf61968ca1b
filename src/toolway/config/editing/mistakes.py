"""Hints about common mistakes in config files: JSON syntax, value types, and entry keys. No I/O.

A hint never repeats a value, because it may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from toolway._closest import closest
from toolway.part_api import registry

MAX_ENTRY_KEYS: Final = 50  # keys of an entry that are compared with the known ones
_CURLY_QUOTES: Final = "\u201c\u201d\u201e\u00ab\u00bb\u2018\u2019"
_PYTHON_WORDS: Final = {"True": "true", "False": "false", "None": "null"}
_OTHER_NAMES: Final = {
    **dict.fromkeys(("cmd", "exec", "executable", "program", "bin"), "command"),
    **dict.fromkeys(("address", "href", "link", "baseurl"), "url"),
    **dict.fromkeys(("arguments", "params"), "args"),
    **dict.fromkeys(("environment", "envs", "envvars"), "env"),
}
_TRANSPORT_KEYS: Final = ("command", "url", "httpUrl", "serverUrl")


def syntax_hint(text: str, position: int, message: str) -> str:
    """Return the hint for JSON that cannot be parsed. `message` is the parser's message about `position`."""
    rest = text[position:]
    if not text.strip():
        return 'the file is empty: add {"mcpServers": {}}'
    if "escape" in message:
        return 'double each backslash in a string, or use "/" in a path: "C:/Users/me"'
    if rest[:1] in _CURLY_QUOTES and rest:
        return 'replace the curly quotes with plain ones: "'
    if rest[:1] == "'":
        return "JSON has double quotes only: use \"…\" instead of '…'"
    word = re.match(r"[A-Za-z_$][\w$-]*", rest)
    if word and word[0] in _PYTHON_WORDS:
        return f"use {_PYTHON_WORDS[word[0]]} instead of {word[0]}"
    if word and "property name" in message:
        return "put the key in double quotes"
    if "control character" in message:
        return "a string must be on one line: close its quote, or use \\n for a line break"
    if message == "Extra data":
        if text.lstrip()[:1] == '"':
            return "put { before the first key, and } at the end"
        return "the file must end here: remove an extra closing bracket, or merge the two objects into one"
    if not rest.strip():
        return "the file ends too early: add the missing } or ] at its end"
    return "check for a missing comma, quote or bracket there or on the line before"


def value_hint(key: str, value: Any) -> str:
    """Return the hint for a value of the wrong JSON type under an entry's `key`, or "" if we have no hint."""
    group, _, name = key.partition(".")
    if group in ("env", "headers"):
        pair = '"NAME": "value"' if group == "env" else '"Authorization": "Bearer …"'
        if name:
            return 'the value must be a string: put the JSON in quotes, with \\" for each quote in it' if value else ""
        outer = "without quotes around the braces" if isinstance(value, str) else "one pair for each"
        return f'use an object, {outer}: "{group}": {{{pair}}}'
    if key == "args" and isinstance(value, str):
        return 'use a list with one word per element: "args": ["-y", "package"]'
    if key == "command" and isinstance(value, list):
        return 'use the first element as command, and the rest as args: "command": "npx", "args": […]'
    return "remove the quotes" if isinstance(value, str) and value.lower() in ("true", "false") else ""


def entry_hint(entry: Mapping[str, Any]) -> str:
    """Return the hint for an entry without a command and url, or "" if its keys do not show the cause."""
    inner = [value for value in entry.values() if isinstance(value, Mapping)]
    if "mcpServers" in entry or "servers" in entry or any(has_transport(value) for value in inner):
        return "the servers are one level too deep: remove the name and the braces around them"
    for key in list(entry)[:MAX_ENTRY_KEYS]:
        close = _OTHER_NAMES.get(key.lower()) or next(iter(closest(key, ("command", "url"), cutoff=0.7)), "")
        if close in ("command", "url"):
            return f'use "{close}" instead of "{key[:40]}"'
    return ""


def has_transport(value: Mapping[str, Any]) -> bool:
    """Return True if an object has a key that says how to start or reach its server."""
    return any(key in _TRANSPORT_KEYS or registry.own_transport(key) for key in value)


def url_hint(url: str) -> str:
    """Return the hint for a url that does not begin with a known scheme."""
    if url != url.strip():
        return "remove the space around it"
    if re.match(r"(?:https?|wss?):", url, re.IGNORECASE):
        return "use two slashes after the colon, and the scheme in small letters: https://…"
    return 'use the whole address: "url": "https://…/mcp"' if "://" not in url else ""
