"""The setting `toolway.approve`: rules that say which calls a person must approve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from toolway.parts.approvals.rules import ApproveRule, parse_approve


class ApprovalSettings(msgspec.Struct, frozen=True):
    """Calls through a gateway that need the approval of a person."""

    approve: Mapping[str, ApproveRule] = {}  # `destructive` or server.tool → who approves


def parse_settings(block: Mapping[str, Any]) -> ApprovalSettings:
    """Return the setting `approve` of a `toolway` block. Raises `ConfigError`. Conditions are no templates."""
    return ApprovalSettings(parse_approve(block.get("approve")))
