"""MCP registries: servers are found and added by their name, such as `io.github.owner/server`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from toolway.part_api.part import Command, Part

_CLI = "toolway.parts.registry.cli"


class Registries(Part):
    """Registries with the API of the MCP registry. They are asked by commands only, never by a gateway."""

    name = "registry"
    code: ClassVar[Mapping[str, str]] = {
        "parse_settings": "settings:parse_settings",
        "names_server": "publisher:names_server",
        "find_server": "lookup:find_server",
    }
    setting_keys = ("registries",)
    entry_keys = ("registry",)
    commands: ClassVar[Mapping[str, Command]] = {
        "search-servers": Command(
            "Search the MCP registry for servers to add.",
            f"{_CLI}:search_servers",
            section="Set up",
            after="add",
            is_offline=True,
        ),
        "outdated": Command(
            "Show which servers have a newer version.",
            f"{_CLI}:outdated",
            section="Servers",
            after="ls",
            is_offline=True,
        ),
    }
