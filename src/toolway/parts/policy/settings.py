"""The setting `toolway.policy`: the file with Cedar policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from toolway.config.field_reader import FieldReader, field_error

if TYPE_CHECKING:
    from toolway.part_api import GatewaySettings


class PolicySettings(msgspec.Struct, frozen=True):
    """The file with a gateway's access policies."""

    policy: str = ""  # file of Cedar policies, relative to the configuration file; "": access alone decides


def parse_settings(block: Mapping[str, Any], variables: Mapping[str, str]) -> PolicySettings:
    """Return the setting `policy` of a `toolway` block. Raises `ConfigError` if the file name is empty."""
    file = FieldReader({"policy": block.get("policy")}, variables).get_text("policy") or ""
    if not file.strip():
        raise field_error("toolway.policy", "the name of a file, such as policy.cedar", block.get("policy"))
    return PolicySettings(file)


def policy_file_of(gateway: GatewaySettings) -> str:
    """Return the policy file in a gateway's settings, or "" if there is none."""
    found: PolicySettings | None = gateway.parts.get("policy")
    return found.policy if found is not None else ""
