"""The `toolway doctor` check of the policy file."""

from __future__ import annotations

from collections.abc import Sequence

from toolway.errors import ConfigError
from toolway.part_api import Check, GatewaySettings, SubjectReport, split_hint
from toolway.parts.policy.policy_file import load_policy, policy_path
from toolway.parts.policy.settings import policy_file_of


def check_policy(gateway: GatewaySettings, config_file: str) -> Sequence[SubjectReport]:
    """Return the report about the configured policy file: whether a gateway can load it."""
    path = policy_path(policy_file_of(gateway), config_file)
    try:
        count = len(load_policy(path).engine.policies)
    except ConfigError as exc:
        check = Check("policy", "fail", exc.message, exc.detail, *split_hint(exc.hint), exc.code)
    else:
        if count:
            check = Check("policy", "ok", f"{count} policies can be used")
        else:
            check = Check("policy", "warn", "the policy file has no policies, so everything is denied")
    return [SubjectReport("machine", "policy", (check,), location=str(path))]
