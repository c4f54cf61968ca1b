"""Typed client for the tools of the server my-issues.

Written by `toolway tools codegen` 0; do not edit.
"""
# fmt: off
# ruff: noqa

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from toolway import Hub, ToolResult

__all__ = ["MyIssuesClient"]


CreateIssueFilterTreeKids = TypedDict(
    "CreateIssueFilterTreeKids",
    {
        "kids": "NotRequired[list[Any]]",
    },
)


CreateIssueFilterTree = TypedDict(
    "CreateIssueFilterTree",
    {
        "kids": "NotRequired[list[CreateIssueFilterTreeKids]]",
    },
)


CreateIssueFilter = TypedDict(
    "CreateIssueFilter",
    {
        "from-date": "str",
        "tree": "NotRequired[CreateIssueFilterTree]",
    },
)


class MyIssuesClient:
    """Tools of the server my-issues, called through a hub.

    Example:
        async with Hub("mcp.json") as hub:
            result = await MyIssuesClient(hub).create_issue(...)
    """

    def __init__(self, hub: Hub) -> None:
        self.hub = hub

    async def create_issue(
        self,
        *,
        title: str,
        labels: list[Literal["bug", "idea"]],
        count: int | None = None,
        timeout: float | None = None,
        idempotency_key: str | None = None,
    ) -> ToolResult:
        """Create '''one'''.

        /x00 More.
        """
        arguments: dict[str, Any] = {"title": title, "labels": labels}
        optional: dict[str, Any] = {"count": count}
        arguments |= {name: value for name, value in optional.items() if value is not None}
        return await self.hub.call_tool(
            "my-issues.create-issue", arguments, timeout=timeout, idempotency_key=idempotency_key
        )

    async def create_issue_2(
        self,
        *,
        class_: bool | None = None,
        self_2: Literal["a\"b\\\n"] | None = None,
        timeout_2: float | None = None,
        filter: CreateIssueFilter | None = None,
        timeout: float | None = None,
        idempotency_key: str | None = None,
    ) -> ToolResult:
        """Call create.issue."""
        arguments: dict[str, Any] = {}
        optional: dict[str, Any] = {"class": class_, "self": self_2, "timeout": timeout_2, "filter": filter}
        arguments |= {name: value for name, value in optional.items() if value is not None}
        return await self.hub.call_tool(
            "my-issues.create.issue", arguments, timeout=timeout, idempotency_key=idempotency_key
        )

    async def import_(
        self,
        *,
        timeout: float | None = None,
        idempotency_key: str | None = None,
    ) -> ToolResult:
        """Call import."""
        arguments: dict[str, Any] = {}
        return await self.hub.call_tool(
            "my-issues.import", arguments, timeout=timeout, idempotency_key=idempotency_key
        )
