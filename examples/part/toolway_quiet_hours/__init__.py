"""Quiet hours: calls are rejected from one hour of the day (UTC) to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from toolway.part_api import Command, Metric, Part

if TYPE_CHECKING:
    from toolway.part_api import Check, GatewaySettings, SubjectReport


class QuietHours(Part):
    """Declaration of the part. It is imported by every `toolway` command, so `code` names the rest."""

    name = "quiet-hours"
    code: ClassVar[Mapping[str, str]] = {
        "parse_settings": "settings:parse",
        "open": "runtime:QuietRuntime",
        "routes": "runtime:ROUTES",
        "schemas": "runtime:SCHEMAS",
        "tables": "runtime:TABLES",
    }
    setting_keys = ("quietHours",)
    setting_prefixes = ("quiet",)  # a misspelt key would allow every call, so it is an error
    table_file = "quiet-hours.sqlite"
    commands: ClassVar[Mapping[str, Command]] = {
        "quiet": Command("Show whether calls are rejected now.", "toolway_quiet_hours.cli:quiet")
    }
    metrics: ClassVar[Mapping[str, Metric]] = {
        "toolway_quiet_hours_now": Metric("1 while calls are rejected"),
        "toolway_quiet_hours_rejected": Metric("Calls that this process rejected", ("tool",)),
    }

    def check(self, gateway: GatewaySettings, config_file: str) -> Sequence[SubjectReport]:
        from toolway.part_api import Check, SubjectReport

        found = gateway.parts.get(self.name)
        if found is None:
            return []
        check: Check = Check("quiet-hours", "ok", f"calls are rejected from {found.begin} to {found.end} o'clock (UTC)")
        return [SubjectReport("machine", "quiet-hours", (check,), location=config_file)]
