"""Tools as a plain HTTP API: `POST /api/tools/NAME`, and its OpenAPI document at `/api/openapi.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from toolway.part_api.part import Command, Part


class ToolsOverHttp(Part):
    """The same tools as at `/mcp`, for programs that speak HTTP but not MCP. Every call is the call through `/mcp`."""

    name = "rest"
    code: ClassVar[Mapping[str, str]] = {"open": "endpoint:open_endpoint"}
    commands: ClassVar[Mapping[str, Command]] = {
        "tools openapi": Command(
            "Write the OpenAPI document of your tools.",
            "toolway.parts.rest.cli:openapi",
            section="Tools",
            after="tools",
        )
    }
