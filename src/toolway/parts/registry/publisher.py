"""What the name of a server in a registry proves about its publisher. Pure."""

from __future__ import annotations

import re
from typing import Final

from toolway.parts.registry.settings import OFFICIAL_URL

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*(?:\.[A-Za-z0-9-]+)+/[A-Za-z0-9][A-Za-z0-9._-]*")
_VERSION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+~_-]{0,254}")
MAX_NAME_CHARS: Final = 200
_ANONYMOUS: Final = "io.modelcontextprotocol.anonymous"


def is_name(text: str) -> bool:
    """Return True for a name such as `io.github.owner/server`. Names are case-sensitive.

    >>> is_name("io.github.acme/weather"), is_name("acme/weather"), is_name("io.github.acme/..")
    (True, False, False)
    """
    return len(text) <= MAX_NAME_CHARS and _NAME.fullmatch(text) is not None


def names_server(word: str) -> bool:
    """Return True for a name, which may have a version after @."""
    return is_name(word.partition("@")[0])


def is_version(text: str) -> bool:
    """Return True for a version that can be part of a URL. It begins with a letter or a digit."""
    return _VERSION.fullmatch(text) is not None


def describe_publisher(name: str, registry: str) -> str:
    """Return who may use the namespace of a name, and how that is known. It says nothing about the code.

    >>> describe_publisher("io.github.acme/weather", OFFICIAL_URL)
    'GitHub account acme (checked by the registry)'
    """
    namespace = name.partition("/")[0]
    if registry != OFFICIAL_URL:
        return f"{namespace} (as {registry} says)"
    if namespace == _ANONYMOUS:
        return "nobody (anonymous)"
    first, second, *rest = namespace.split(".")
    if (first, second) == ("io", "github") and len(rest) == 1:
        return f"GitHub account {rest[0]} (checked by the registry)"
    return f"domain {'.'.join([*reversed(rest), second, first])}, or one above it (checked by the registry)"
