"""Authorization with Cedar policies, which decide what each caller may see and call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from toolway.part_api.part import Command, Part

if TYPE_CHECKING:
    from toolway.part_api import GatewaySettings, SubjectReport

_CLI = "toolway.parts.policy.cli"


class AccessPolicies(Part):
    """A gateway's policies. They are in a separate file, which is reloaded when it changes."""

    name = "policy"
    code: ClassVar[Mapping[str, str]] = {
        "parse_settings": "settings:parse_settings",
        "open": "policy_service:PolicyService",
        "check": "doctor_check:check_policy",
    }
    setting_keys = ("policy",)
    setting_prefixes = ("polic", "cedar")
    commands: ClassVar[Mapping[str, Command]] = {
        "policy": Command(
            "Check and test access policies.",
            subcommands={
                "check": Command("Check the policy file for mistakes.", f"{_CLI}:policy_check"),
                "why": Command("Show which policy decides a call.", f"{_CLI}:policy_why"),
                "test": Command("Run a table of expected decisions.", f"{_CLI}:policy_test"),
                "new": Command("Write a policy file to start from.", f"{_CLI}:policy_new", is_offline=True),
            },
            after="whoami",
        )
    }

    def check(self, gateway: GatewaySettings, config_file: str) -> Sequence[SubjectReport]:
        return super().check(gateway, config_file) if self.name in gateway.parts else ()
