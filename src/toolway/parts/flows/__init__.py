"""Detects risky data flows: a caller that reads private data and untrusted content, and can send data out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from toolway.part_api.part import Command, Part

_CLI = "toolway.parts.flows.cli"


class Flows(Part):
    """Tool labels, and what happens when one caller's calls together have all three."""

    name = "flows"
    needs = ("approvals",)  # its gate asks an administrator
    code: ClassVar[Mapping[str, str]] = {
        "parse_settings": "settings:parse_settings",
        "open": "runtime:FlowsRuntime.open",
        "routes": "admin:ROUTES",
        "schemas": "admin:SCHEMAS",
        "tables": "store:TABLES",
    }
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
