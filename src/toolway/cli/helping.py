"""What `--help` shows: plain text of at most 80 columns, with its heads in bold at a terminal."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence

Rows = Iterable[tuple[str, str]]
WIDEST = 80
_INDENT = 2
_MOST_LEFT = 28  # columns of a name; a longer one has a line of its own


def of_group(
    path: str, about: str, commands: Mapping[str, str], sections: Mapping[str, Sequence[str]], options: Rows
) -> str:
    """The help of a group of commands, by sections or as they come."""
    parts = [f"{about}\n", _head("Usage:") + f" {path} [OPTIONS] COMMAND …\n"]
    chosen = sections or {"Commands": list(commands)}
    for title, names in chosen.items():
        parts.append(_section(title, [(name, commands[name]) for name in names if name in commands], 12))
    parts.append(_section("Options", options))
    return "\n".join(parts)


def of_command(usage: str, about: str, arguments: Rows, own: Rows, shared: Rows) -> str:
    """The help of one command; what all commands have comes last."""
    paragraphs = [textwrap.fill(" ".join(text.split()), _width()) + "\n" for text in about.split("\n\n")]
    parts = [_head("Usage:") + f" {usage}\n", *paragraphs]
    for title, rows in (("Arguments", arguments), ("Options", own), ("Options of every command", shared)):
        parts.append(_section(title, rows))
    return "\n".join(part for part in parts if part)


def _section(title: str, rows: Rows, least: int = 0) -> str:
    rows = list(rows)
    if not rows:
        return ""
    left = max([least, *(len(name) for name, _ in rows if len(name) <= _MOST_LEFT)]) + 2
    return "\n".join([_head(title), *(_row(name, text, left) for name, text in rows)]) + "\n"


def _row(name: str, text: str, left: int) -> str:
    hanging = " " * (_INDENT + left)
    lines = textwrap.wrap(text, _width(), initial_indent=hanging, subsequent_indent=hanging) or [hanging]
    if len(name) + 2 > left:
        return "\n".join([" " * _INDENT + name, *lines]) if text else " " * _INDENT + name
    return "\n".join([" " * _INDENT + name.ljust(left) + lines[0].lstrip(), *lines[1:]]).rstrip()


def _width() -> int:
    return min(WIDEST, max(40, shutil.get_terminal_size().columns))


def _head(text: str) -> str:
    plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or "--no-color" in sys.argv
    return text if plain else f"\x1b[1m{text}\x1b[0m"
