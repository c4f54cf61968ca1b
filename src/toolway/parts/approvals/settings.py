"""The setting `toolway.approve`: rules for which calls need approval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from toolway.parts.approvals.rules import ApproveRule, parse_approve


class ApprovalSettings(msgspec.Struct, frozen=True):
    """Which calls through a gateway need approval."""

    approve: Mapping[str, ApproveRule] = {}  # `destructive` or server.tool → who approves


def parse_settings(block: Mapping[str, Any], variables: Mapping[str, str]) -> ApprovalSettings:
    """Return the setting `approve` of a `toolway` block. Raises `ConfigError`.

    Variables in conditions are not expanded.
    """
    return ApprovalSettings(parse_approve(block.get("approve")))
