"""Detection of risky data flows: a caller that reads private data and untrusted content, and can send data out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from toolway.part_api.part import Command, Part, PartContext, PartRuntime

if TYPE_CHECKING:
    from toolway.gateway.admin.routes import Route
    from toolway.part_api.database import Table
    from toolway.types import Json

_CLI = "toolway.parts.flows.cli"


class Flows(Part):
    """Labels of tools, and what happens if the calls of one caller have all three."""

    name = "flows"
    needs = ("approvals",)  # its gate asks an operator
    setting_keys = ("flows",)
    table_file = "flows.sqlite"
    commands: ClassVar[Mapping[str, Command]] = {
        "policy flows": Command(
            "Track private data and untrusted content.",
            subcommands={
                "suggest": Command("Suggest labels for your tools.", f"{_CLI}:flows_suggest"),
                "show": Command("Show which calls set which label.", f"{_CLI}:flows_show"),
                "reset": Command("Clear a caller's labels.", f"{_CLI}:flows_reset"),
            },
            after="policy",
        )
    }
    former_commands: ClassVar[Mapping[str, str]] = {
        "flows": "policy flows",
        "flows suggest": "policy flows suggest",
        "flows show": "policy flows show",
        "flows reset": "policy flows reset",
    }

    def parse_settings(self, block: Mapping[str, Any], variables: Mapping[str, str]) -> Any:
        from toolway.parts.flows.settings import parse_settings

        return parse_settings(block, variables)

    def open(self, context: PartContext) -> PartRuntime:
        from toolway.parts.flows.runtime import FlowsRuntime

        return FlowsRuntime.open(self, context)

    def routes(self) -> Sequence[Route]:
        from toolway.parts.flows.admin import ROUTES

        return ROUTES

    def schemas(self) -> Mapping[str, Json]:
        from toolway.parts.flows.admin import SCHEMAS

        return SCHEMAS

    def tables(self) -> Sequence[Table]:
        from toolway.parts.flows.store import WINDOWS

        return (WINDOWS,)
