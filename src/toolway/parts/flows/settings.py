"""The setting `toolway.flows`. The labels of servers and tools are in the server entries (config/schema.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from toolway.config.field_reader import FieldReader
from toolway.parts.flows.labels import FLOW_MODES


class FlowSettings(msgspec.Struct, frozen=True):
    """What a gateway does when a caller combines private data, untrusted content, and an outbound tool."""

    flows: str = ""  # note, ask or deny; "": note, if any tool has labels


def parse_settings(block: Mapping[str, Any], variables: Mapping[str, str]) -> FlowSettings:
    """Return the setting `flows` of a `toolway` block. Raises `ConfigError`."""
    return FlowSettings(FieldReader({"flows": block.get("flows")}, variables).get_choice("flows", FLOW_MODES, ""))
