"""The setting `toolway.registries`: which MCP registries are asked, in this order.

    "registries": [{"url": "https://mcp.corp.example", "only": true}, "official"]

"official" is the public registry, which is asked if nothing is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from toolway.config.field_reader import CONFIG_KEY_CODE, FieldReader, field_error
from toolway.errors import ConfigError
from toolway.network.policy import is_this_machine

if TYPE_CHECKING:
    from toolway.part_api import GatewaySettings

OFFICIAL: Final = "official"
OFFICIAL_URL: Final = "https://registry.modelcontextprotocol.io"
MAX_REGISTRIES: Final = 16


class RegistrySettings(msgspec.Struct, frozen=True):
    """MCP registries that `toolway add`, `toolway search-servers`, and `toolway outdated` ask."""

    registries: tuple[
        str, ...
    ] = ()  # URLs, or "official", in order; {"url": …, "only": true}: no other registry is asked; default: official


def parse_settings(block: Mapping[str, Any], variables: Mapping[str, str]) -> RegistrySettings:
    """Return the setting `registries` of a `toolway` block. Raises `ConfigError`."""
    given = block.get("registries")
    if not isinstance(given, list) or not given or len(given) > MAX_REGISTRIES:
        raise field_error("toolway.registries", f'a list of 1 to {MAX_REGISTRIES} URLs, or ["official"]', given)
    found: list[tuple[str, bool]] = []
    for each in given:
        fields = FieldReader(each if isinstance(each, Mapping) else {"url": each}, variables)
        found.append((_check_url(fields.get_plain_text("url")), fields.get_bool("only", False)))
        fields.reject_unknown("toolway.registries", "url and only")
    chosen = [url for url, is_only in found if is_only] or [url for url, _ in found]
    return RegistrySettings(tuple(dict.fromkeys(chosen)))


def registries_of(gateway: GatewaySettings | None) -> tuple[str, ...]:
    """Return the URLs of the registries to ask, in order."""
    found: RegistrySettings | None = gateway.parts.get("registry") if gateway is not None else None
    return found.registries if found is not None else (OFFICIAL_URL,)


def _check_url(text: str) -> str:
    """Return the URL of a registry without a slash at its end. Raises `ConfigError` if it cannot be one."""
    if text == OFFICIAL:
        return OFFICIAL_URL
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        parts, host = urlsplit(""), ""
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_this_machine(host))
    if not is_safe or not host or not text.isascii() or not text.isprintable() or set(text) & set(' "<>\\?#@'):
        raise ConfigError(
            "invalid address in toolway.registries",
            detail="a registry has an https:// URL without user, query, and fragment",
            hint='use "registries": ["https://mcp.corp.example", "official"]',
            code=CONFIG_KEY_CODE,
        )
    return text.rstrip("/")
