"""Finds an entry's transport if a part or another distribution provides it.

It is found by a key, the type, or a URL scheme.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from toolway.config.dotenv import DotenvVariables
from toolway.config.field_reader import FieldReader
from toolway.errors import ConfigError
from toolway.part_api import registry
from toolway.part_api.server_transport import ServerTransport, TransportSettings

URL_KEYS: Final = ("url", "httpUrl", "serverUrl", "uri", "endpoint")
TYPE_KEYS: Final = ("type", "transport")
STDIO_TYPES: Final = frozenset({"stdio", "local"})
HTTP_TYPES: Final = frozenset({"http", "streamablehttp", "remote"})
SSE_TYPE: Final = "sse"
WEBSOCKET_TYPES: Final = frozenset({"ws", "websocket"})
CORE_TYPES: Final = STDIO_TYPES | HTTP_TYPES | WEBSOCKET_TYPES | {SSE_TYPE}
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]{1,63})://\S")
_CORE_SCHEMES: Final = frozenset({"http", "https", "ws", "wss"})


def find_own_transport(entry: Mapping[str, Any]) -> ServerTransport | None:
    """Return the transport of a built-in part that has a key in this entry, or None if no part has one."""
    found = (registry.own_transport(key) for key, value in entry.items() if value is not None)
    return next((each for each in found if each is not None), None)


def find_kind(entry: Mapping[str, Any]) -> str:
    """Return the name of the transport that a part or another distribution provides for this entry, or "".

    The metadata of other distributions are read only if nothing else says how to reach the server. Their code is not
    imported.
    """
    if (own := find_own_transport(entry)) is not None:
        return own.kind
    types = [value for key in TYPE_KEYS if isinstance(value := entry.get(key), str)]
    if types and (kind := find_type(types[0])) not in CORE_TYPES:
        return kind
    urls = [value for key in URL_KEYS if isinstance(value := entry.get(key), str)]
    if urls:
        found = _SCHEME.match(urls[0])
        return found[1] if found and found[1] not in _CORE_SCHEMES and registry.has_transport(found[1]) else ""
    if entry.get("command") is not None or types:
        return ""
    return next((key for key, value in entry.items() if value is not None and registry.has_transport(key)), "")


def find_type(text: str) -> str:
    """Return an entry's type as the core or an installed transport calls it, or "" if it is unknown."""
    plain = text.lower().replace("-", "").replace("_", "")
    if plain in CORE_TYPES:
        return plain
    return next((name for name in (plain, text.lower()) if registry.has_transport(name)), "")


def parse_settings(fields: FieldReader, kind: str, type_: str) -> tuple[TransportSettings | None, str | None]:
    """Return the settings of the transport `kind` in an entry, and the server's URL if they contain it.

    Each is None if it is missing. Raises `ConfigError` if a setting is invalid, or if the entry's type (`type_`)
    requires or forbids the settings.
    """
    transport = registry.transport(kind) if kind else None
    given = fields.remaining.pop(kind, None) if kind else None
    if transport is None or (given is None and type_ != kind):
        return None, None
    if type_ not in ("", kind):
        message, hint = f'an entry with `{kind}` must have type "{kind}"', f'set "type": "{kind}"'
        raise ConfigError(message, hint=hint, code=transport.error_code)
    variables = fields.variables
    if registry.own_transport(kind) is None and isinstance(variables, DotenvVariables):
        fields.variables = variables.for_key("url")  # any of its settings may say where data is sent
    try:
        return transport.parse(given, fields)
    finally:
        fields.variables = variables
