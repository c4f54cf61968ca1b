"""Tables of docs/reference/platforms.md, from the results that `make windows`, `make macos` and `make linux` wrote.

No cell says more than a check showed: a command that no check ran on a system is "not run" there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.platforms.results import PLATFORMS, read_results
from toolway.cli.framework import CommandSpec
from toolway.cli.table import COMMANDS

NAMES: Final = {"linux": "Linux", "macos": "macOS", "windows": "Windows"}
MARKS: Final = {"works": "✓", "message": "rejected:", "gap": "no:", "not run": "not run:"}


def systems() -> str:
    """Return a row for each system: what ran, when, and how it ended."""
    lines = ["| | ran on | date | works | rejected with a reason | no | not run |", "|---|---|---|---|---|---|---|"]
    for platform, result in _results().items():
        counts = [sum(each["result"] == kind for each in result["checks"]) for kind in MARKS]
        lines.append(f"| {NAMES[platform]} | {result['system']} | {result['date']} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


def checks() -> str:
    """Return a table for each group of checks: what a user does, and what happened on each system."""
    results = _results()
    found: dict[str, dict[str, dict[str, str]]] = {}
    for platform, result in results.items():
        for each in result["checks"]:
            found.setdefault(each["group"], {}).setdefault(each["check"], {})[platform] = _outcome(each)
    lines: list[str] = []
    for group, rows in found.items():
        lines += [
            "",
            f"### {group}",
            "",
            f"| | {' | '.join(NAMES[each] for each in results)} |",
            "|---|" + "---|" * len(results),
        ]
        for name, cells in rows.items():
            lines.append(f"| {_cell(name)} | {' | '.join(cells.get(each, 'not run') for each in results)} |")
    return "\n".join(lines).strip()


def commands() -> str:
    """Return a row for each command: whether it succeeded, ended with the error that it should have, or was not run."""
    results = _results()
    ran = {platform: _ended(result) for platform, result in results.items()}
    lines = [f"| | {' | '.join(NAMES[each] for each in results)} |", "|---|" + "---|" * len(results)]
    for name in _names(COMMANDS):
        cells = [
            "✓" if name in works else "its error" if name in errors else "not run" for works, errors in ran.values()
        ]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _results() -> dict[str, dict[str, Any]]:
    return {platform: result for platform in PLATFORMS if (result := read_results(platform)) is not None}


def _ended(result: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """Return the commands that succeeded on a system, and those that ended with the error that they should have."""
    works = {name for each in result["checks"] for name in each["commands"]}
    return works, {name for each in result["checks"] for name in each["errors"]} - works


def _names(table: Mapping[str, CommandSpec], prefix: str = "") -> Iterator[str]:
    for name, entry in table.items():
        if entry.subcommands is None:
            yield prefix + name
        else:
            yield from _names(entry.subcommands, f"{prefix}{name} ")


def _outcome(check: Mapping[str, Any]) -> str:
    mark, text = MARKS[check["result"]], _cell(check["text"])
    return mark if check["result"] == "works" else f"{mark} {text}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
