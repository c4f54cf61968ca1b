"""Approval of single calls by a user: the decision whether a call needs one, the question, and the stored answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from toolway.part_api.part import Command, Metric, Part, PartContext, PartRuntime

if TYPE_CHECKING:
    from toolway.gateway.admin.routes import Route
    from toolway.part_api.database import Table
    from toolway.types import Json


_CLI = "toolway.parts.approvals.cli"


class Approvals(Part):
    """Rules that say which calls someone must approve, and the gate that asks."""

    name = "approvals"
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

    def parse_settings(self, block: Mapping[str, Any], variables: Mapping[str, str]) -> Any:
        from toolway.parts.approvals.settings import parse_settings

        return parse_settings(block)

    def open(self, context: PartContext) -> PartRuntime:
        from toolway.parts.approvals.runtime import ApprovalsRuntime

        return ApprovalsRuntime.open(self, context)

    def routes(self) -> Sequence[Route]:
        from toolway.parts.approvals.admin import ROUTES

        return ROUTES

    def schemas(self) -> Mapping[str, Json]:
        from toolway.parts.approvals.admin import SCHEMAS

        return SCHEMAS

    def tables(self) -> Sequence[Table]:
        from toolway.parts.approvals.store import REQUESTS, SPENT

        return (REQUESTS, SPENT)
