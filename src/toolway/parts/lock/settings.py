"""The settings `toolway.gateway.lock` and `toolway.gateway.minAge`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolway.config.field_reader import FieldReader

if TYPE_CHECKING:
    from toolway.part_api import GatewaySettings

LOCK_RULES: Final = ("required", "optional")
SECONDS_PER_DAY: Final = 86_400.0


class LockSettings(msgspec.Struct, frozen=True):
    """Rules for npx and uvx packages, in the block `gateway`."""

    lock: str = ""  # npx and uvx packages without a lock: required rejects them; "": required if public
    min_age: float = 3 * SECONDS_PER_DAY  # seconds a package must be published before it is locked. In a file: minAge


def parse_settings(block: Mapping[str, Any], variables: Mapping[str, str]) -> LockSettings:
    """Return the settings `gateway.lock` and `gateway.minAge` of a `toolway` block. Raises `ConfigError`."""
    fields = FieldReader(block["gateway"], variables)
    return LockSettings(
        fields.get_choice("lock", LOCK_RULES, ""),
        fields.get_duration("minAge", 3 * SECONDS_PER_DAY, allow_zero=True),
    )


def settings_of(gateway: GatewaySettings) -> LockSettings:
    """Return a gateway's package rules, or the default ones."""
    found: LockSettings | None = gateway.parts.get("lock")
    return found if found is not None else LockSettings()
