"""A gateway's tool search: meta-tools that find and call the tools of all servers, search by meaning, and learning.

The package `toolway.search` ranks tools by words, and programs can use it without a gateway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from toolway.part_api.part import Command, Metric, Part

_CLI = "toolway.parts.search.cli"


class GatewaySearch(Part):
    """Tool search at `/mcp/search`, at toolsets with search, and for API keys with search."""

    name = "search"
    code: ClassVar[Mapping[str, str]] = {
        "parse_settings": "settings:parse_settings",
        "warnings": "settings:find_missing_model",
        "open": "runtime:SearchRuntime",
        "routes": "admin:ROUTES",
        "schemas": "admin:SCHEMAS",
        "tables": "vector_store:TABLES",
    }
    setting_keys = ("search",)
    table_file = "search.sqlite"
    status_schema = "SearchStatus"
    commands: ClassVar[Mapping[str, Command]] = {
        "tools cost": Command("Show how many tokens your tools cost.", f"{_CLI}:cost", section="Tools", after="tools"),
        "search": Command("Find the right tool for a task.", f"{_CLI}:search", section="Tools", after="tools"),
    }
    metrics: ClassVar[Mapping[str, Metric]] = {
        "toolway_server_tokens": Metric("Estimated tokens that the tool definitions of a server cost", ("server",)),
        "toolway_endpoint_tokens": Metric("Estimated tokens that the listed tools of an endpoint cost", ("endpoint",)),
        "toolway_searches": Metric(
            "Searches of clients for tools: `fits`, or `nothing` if nothing fits well", ("outcome",), "counter"
        ),
        "toolway_searches_unmet": Metric("Different recent queries after which no found tool was called"),
        "toolway_search_calls": Metric("Calls through `call_tool` and `read_tool`", ("meta_tool",), "counter"),
        "toolway_search_calls_rejected": Metric(
            "Calls through a meta-tool that were answered with an explanation and not sent", (), "counter"
        ),
    }
