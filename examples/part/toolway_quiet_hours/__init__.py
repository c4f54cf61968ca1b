"""Quiet hours: calls are refused from one hour of the day (UTC) to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from toolway.part_api import Command, Metric, Part, PartContext, PartRuntime

if TYPE_CHECKING:
    from toolway.part_api import Check, GatewaySettings, Json, Route, SubjectReport, Table


class QuietHours(Part):
    """Declaration of the part. It is imported by every `toolway` command, so the rest is imported where it is used."""

    name = "quiet-hours"
    setting_keys = ("quietHours",)
    setting_prefixes = ("quiet",)  # a misspelt key would allow every call, so it is an error
    table_file = "quiet-hours.sqlite"
    commands: ClassVar[Mapping[str, Command]] = {
        "quiet": Command("Show whether calls are refused now.", "toolway_quiet_hours.cli:quiet")
    }
    metrics: ClassVar[Mapping[str, Metric]] = {
        "toolway_quiet_hours_now": Metric("1 while calls are refused"),
        "toolway_quiet_hours_refused": Metric("Calls that this process refused", ("tool",)),
    }

    def parse_settings(self, block: Mapping[str, Any], variables: Mapping[str, str]) -> Any:
        from toolway_quiet_hours.settings import parse

        return parse(block["quietHours"])

    def open(self, context: PartContext) -> PartRuntime:
        from toolway_quiet_hours.runtime import QuietRuntime

        return QuietRuntime(self, context)

    def tables(self) -> Sequence[Table]:
        from toolway_quiet_hours.runtime import REFUSED

        return [REFUSED]

    def routes(self) -> Sequence[Route]:
        from toolway_quiet_hours.runtime import ROUTES

        return ROUTES

    def schemas(self) -> Mapping[str, Json]:
        from toolway_quiet_hours.runtime import SCHEMAS

        return SCHEMAS

    def check(self, gateway: GatewaySettings, config_file: str) -> Sequence[SubjectReport]:
        from toolway.part_api import Check, SubjectReport

        found = gateway.parts.get(self.name)
        if found is None:
            return []
        check: Check = Check("quiet-hours", "ok", f"calls are refused from {found.begin} to {found.end} o'clock (UTC)")
        return [SubjectReport("machine", "quiet-hours", (check,), location=config_file)]
