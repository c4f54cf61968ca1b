"""Pages of `toolway --help` and `toolway help --all`: which commands they show, and in which sections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from toolway.cli.framework import CommandSpec
from toolway.cli.help.text import TAGLINE, Rows, format_section, sections_help, usage_line
from toolway.cli.table import COMMANDS
from toolway.part_api import registry

USAGE: Final = "toolway [OPTIONS] COMMAND …"
#: Commands of `toolway --help`, by section.
FIRST_COMMANDS: Final = {
    "Set up": {
        "init": "Import the servers your editors and agents already use.",
        "add": "Add a server: a URL, a command, or a package.",
        "login": "Log in to a server.",
        "trust": "Review what may run: files, tools, and packages.",
    },
    "Use": {
        "ls": "List your servers, and why any of them are down.",
        "tools": "List tools, or show the arguments of one.",
        "search": "Find the right tool for a task.",
        "call": "Call a tool.",
    },
    "Share": {
        "serve": "Start the gateway: all your servers at one URL.",
        "connect": "Connect Claude Code, Cursor, VS Code, … to the gateway.",
        "ui": "Open the dashboard.",
    },
    "Fix": {
        "doctor": "Find out what is wrong and how to fix it.",
        "logs": "Show what your servers print to stderr.",
        "config": "Show your settings and where each one is set.",
    },
}
_FIRST_PAGE_END: Final = """\
Options: -c FILE  -g URL  --json  -q  -v  -V  -h
More:    toolway help --all    toolway help COMMAND    toolway explain CODE
"""
#: Commands of `toolway help --all`, by section. A subcommand without its own row is named in the row of its group.
_SECTIONS: Final = {
    "Set up": (*("init", "add", "new", "clients import", "clients export", "clients sync", "connect", "completion"),),
    "Servers": ("ls", "show", "edit", "rm", "enable", "disable", "restart", "login", "logout", "secrets"),
    "Tools": ("tools", "tools codegen", "call", "prompts", "resources"),
    "Trust": ("trust", "trust sandbox"),
    "Gateway": (
        *("serve", "ui", "top", "calls", "calls show", "calls replay", "keys"),
        *("whoami", "cluster"),
    ),
    "Automate": (),
    "Fix": ("doctor", "doctor --tools", "doctor --security", "logs", "ps", "config", "explain", "help"),
}


def _with_parts(title: str, names: Iterable[str]) -> list[str]:
    """Return the commands of a section, with each part's commands after the group that it follows."""
    found = list(names)
    for part in registry.built_in():
        for name, each in part.commands.items():
            if each.section == title:
                group = [at for at, row in enumerate(found) if row == each.after or row.startswith(f"{each.after} ")]
                found.insert(group[-1] + 1 if each.after in found else len(found), name)
    return found


SECTIONS: Final[Mapping[str, Sequence[str]]] = {title: _with_parts(title, names) for title, names in _SECTIONS.items()}
_OPTION_ROWS: Final = {
    "doctor --tools": "Check whether model providers accept your tools.",
    "doctor --security": "Check the five security guarantees of a gateway.",
}
_NAME_WIDTH: Final = 17


def first_page() -> str:
    """Return the text of `toolway --help`: the commands that most users need, in one screen."""
    sections = [format_section(title, rows.items(), 10) for title, rows in FIRST_COMMANDS.items()]
    return "\n".join([f"{TAGLINE}\n", usage_line(USAGE), *sections, _FIRST_PAGE_END])


def all_commands_page(options: Rows) -> str:
    """Return the text of `toolway help --all`: every command, by section, and the global options."""
    sections: dict[str, Rows] = {
        title: [(name, _row_text(name)) for name in names] for title, names in SECTIONS.items()
    }
    return sections_help(USAGE, {**sections, "Options": options}, _NAME_WIDTH)


def find_command(path: str) -> CommandSpec | None:
    """Return the table row of a command such as `trust tools ls`; None if there is none."""
    table, found = COMMANDS, None
    for name in path.split():
        found = table.get(name)
        if found is None:
            return None
        table = dict(found.subcommands or {})
    return found


def all_commands(prefix: str = "", table: dict[str, CommandSpec] = COMMANDS) -> Iterator[tuple[str, CommandSpec]]:
    """Yield every command that can be run, with all its words, and its table row."""
    for name, entry in table.items():
        if entry.subcommands is None or entry.function_path:
            yield f"{prefix}{name}", entry
        if entry.subcommands is not None:
            yield from all_commands(f"{prefix}{name} ", dict(entry.subcommands))


def _row_text(name: str) -> str:
    entry = find_command(name)
    if entry is None:
        return _OPTION_ROWS[name]
    shown = {row for rows in SECTIONS.values() for row in rows}
    rest = [each for each in entry.subcommands or {} if f"{name} {each}" not in shown]
    return f"{entry.help.rstrip('.')}: {', '.join(rest)}." if rest else entry.help
