"""Which file is meant when none was named."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolway.errors import ConfigError

VARIABLE = "TOOLWAY_CONFIG"
EXAMPLE = '{"mcpServers": {"name": {"command": "npx", "args": ["-y", "package"]}}}'


def default_file(variables: Mapping[str, str] | None = None, directory: Path | None = None) -> Path:
    """`$TOOLWAY_CONFIG`, else the first that exists of `candidates()`. Raises `ConfigError`."""
    variables = os.environ if variables is None else variables
    if variables.get(VARIABLE):
        return Path(variables[VARIABLE]).expanduser()
    places = candidates(variables, directory or Path.cwd())
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise nothing_found(places)
    return found


def nothing_found(places: Sequence[Path]) -> ConfigError:
    return ConfigError(
        "no configuration was found",
        evidence=f"looked for {', '.join(str(place) for place in places)}",
        fix=f"write {EXAMPLE} to {places[-1]}, or name a file with --config or ${VARIABLE}",
        code="E-CONFIG-NONE",
    )


def candidates(variables: Mapping[str, str], directory: Path) -> tuple[Path, ...]:
    """Where a file is looked for, nearest first."""
    home = Path(variables.get("XDG_CONFIG_HOME") or Path(variables.get("HOME") or Path.home()) / ".config")
    return (directory / "mcp.json", directory / ".mcp.json", home / "toolway" / "mcp.json")
