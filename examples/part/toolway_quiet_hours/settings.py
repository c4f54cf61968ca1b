"""The setting `toolway.quietHours`."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from toolway.part_api import ConfigError


class Hours(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hours of the day in UTC, from `begin` up to `end`, and the tools that may be called all the same."""

    begin: int = msgspec.field(name="from")
    end: int = msgspec.field(name="to")
    exceptions: tuple[str, ...] = msgspec.field(name="except", default=())  # patterns of server.tool

    def are_now(self, seconds: float) -> bool:
        """Return True if the time, in seconds since 1970, is within these hours."""
        hour = int(seconds // 3600) % 24
        return self.begin <= hour < self.end if self.begin < self.end else hour >= self.begin or hour < self.end

    def allow(self, target: str) -> bool:
        """Return True if a tool (`server.tool`) may be called at any hour."""
        return any(fnmatchcase(target, each) for each in self.exceptions)


def parse(block: Mapping[str, Any], variables: Mapping[str, str]) -> Hours:
    """Return the setting. Raises `ConfigError` if it is invalid, because calls would then be allowed at night."""
    try:
        found = msgspec.convert(block["quietHours"], Hours)
    except msgspec.ValidationError as exc:
        raise _error(str(exc)) from None
    if not (0 <= found.begin < 24 and 0 <= found.end < 24) or found.begin == found.end:
        raise _error("from and to must be two different hours, 0 to 23")
    return found


def _error(detail: str) -> ConfigError:
    return ConfigError(
        "toolway.quietHours is invalid",
        detail=detail,
        hint='use for example {"from": 22, "to": 6}',
        code="E-CONFIG-KEY",
    )
