"""Text of `--help`: plain, in sections, and at most 80 columns wide."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from typing import Final

Rows = Iterable[tuple[str, str]]
TAGLINE: Final = "One reliable way to call every MCP server."
MAX_HELP_WIDTH: Final = 80
_INDENT: Final = 2
_MAX_NAME_WIDTH: Final = 28  # maximum width of the name column; a longer name gets its own line


def group_help(path: str, description: str, commands: Rows, options: Rows) -> str:
    """Return the `--help` text of a command group."""
    parts = [f"{description}\n", usage_line(f"{path} [OPTIONS] COMMAND …")]
    return "\n".join([*parts, format_section("Commands", commands, 12), format_section("Options", options)])


def command_help(
    usage: str, description: str, arguments: Rows, commands: Rows, own_options: Rows, global_options: Rows
) -> str:
    """Return the `--help` text of one command. Global options are listed last.

    `commands` are the subcommands of a command that takes words too.
    """
    paragraphs = [textwrap.fill(" ".join(text.split()), _help_width()) + "\n" for text in description.split("\n\n")]
    parts = [usage_line(usage), *paragraphs]
    sections = (("Arguments", arguments), ("Commands", commands), ("Options", own_options))
    for title, rows in (*sections, ("Global options", global_options)):
        parts.append(format_section(title, rows))
    return "\n".join(part for part in parts if part)


def sections_help(usage: str, sections: Mapping[str, Rows], min_width: int) -> str:
    """Return the tagline, the usage, and commands by section, all with the same width of names."""
    parts = [f"{TAGLINE}\n", usage_line(usage)]
    return "\n".join([*parts, *(format_section(title, rows, min_width) for title, rows in sections.items())])


def usage_line(usage: str) -> str:
    """Return the line of a help text with the usage of a command, and an empty line."""
    return bold_heading("Usage:") + f" {usage}\n"


def format_section(title: str, rows: Rows, min_width: int = 0) -> str:
    """Return a heading and rows of a name and a text, aligned and wrapped; "" without rows."""
    rows = list(rows)
    if not rows:
        return ""
    name_width = max([min_width, *(len(name) for name, _ in rows if len(name) <= _MAX_NAME_WIDTH)]) + 2
    return "\n".join([bold_heading(title), *(_format_row(name, text, name_width) for name, text in rows)]) + "\n"


def _format_row(name: str, text: str, name_width: int) -> str:
    hanging = " " * (_INDENT + name_width)
    lines = textwrap.wrap(text, _help_width(), initial_indent=hanging, subsequent_indent=hanging) or [hanging]
    if len(name) + 2 > name_width:
        return "\n".join([" " * _INDENT + name, *lines]) if text else " " * _INDENT + name
    return "\n".join([" " * _INDENT + name.ljust(name_width) + lines[0].lstrip(), *lines[1:]]).rstrip()


def _help_width() -> int:
    return min(MAX_HELP_WIDTH, max(40, shutil.get_terminal_size().columns))


def bold_heading(text: str) -> str:
    """Return a heading of a help text, bold at a terminal with colors."""
    plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or "--no-color" in sys.argv
    return text if plain else f"\x1b[1m{text}\x1b[0m"
