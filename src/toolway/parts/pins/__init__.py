"""Tool definitions that changed since they were pinned: how an administrator sees and accepts them.

`toolway.catalog` compares what servers send with the pins, on every list and call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from toolway.part_api.part import Command, Metric, Part

_CLI = "toolway.parts.pins.cli"


class PinnedDefinitions(Part):
    """The review of changed definitions: commands, admin API operations, a metric, and security evidence."""

    name = "pins"
    code: ClassVar[Mapping[str, str]] = {
        "open": "runtime:PinsRuntime",
        "routes": "admin:ROUTES",
        "schemas": "admin:SCHEMAS",
        "check_security": "security_check:check_security",
    }
    commands: ClassVar[Mapping[str, Command]] = {
        "trust tools": Command(
            "Review tools that changed.",
            subcommands={
                "ls": Command("List tools that changed or are new.", f"{_CLI}:pins_ls"),
                "diff": Command("Show what changed.", f"{_CLI}:pins_diff"),
                "accept": Command("Accept a changed tool.", f"{_CLI}:pins_accept"),
            },
            section="Trust",
            after="trust",
        )
    }
    former_commands: ClassVar[Mapping[str, str]] = {
        "pins": "trust tools",
        "pins ls": "trust tools ls",
        "pins diff": "trust tools diff",
        "pins approve": "trust tools accept",
    }
    metrics: ClassVar[Mapping[str, Metric]] = {
        "toolway_definitions_deviating": Metric(
            "Definitions that differ from their pins: `on_hold`, or `in_use`", ("server", "state")
        )
    }
