"""Approval of single calls: decides whether a call needs one, asks for it, and stores the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from toolway.part_api.part import Command, Metric, Part

_CLI = "toolway.parts.approvals.cli"


class Approvals(Part):
    """The rules for which calls need approval, and the gate that asks for it."""

    name = "approvals"
    code: ClassVar[Mapping[str, str]] = {
        "parse_settings": "settings:parse_settings",
        "open": "runtime:ApprovalsRuntime.open",
        "routes": "admin:ROUTES",
        "schemas": "admin:SCHEMAS",
        "tables": "store:TABLES",
    }
    setting_keys = ("approve",)
    table_file = "approvals.sqlite"
    commands: ClassVar[Mapping[str, Command]] = {
        "approvals": Command(
            "Approve or deny what is waiting.",
            subcommands={
                "ls": Command("List everything waiting for approval.", f"{_CLI}:approvals_ls"),
                "show": Command("Show one request with its arguments.", f"{_CLI}:approvals_show"),
                "approve": Command("Approve it.", f"{_CLI}:approvals_approve"),
                "deny": Command("Deny it, with a reason for the caller.", f"{_CLI}:approvals_deny"),
            },
            after="calls",
        )
    }
    metrics: ClassVar[Mapping[str, Metric]] = {
        "toolway_approvals_pending": Metric("Calls that need an administrator's approval")
    }
