"""`toolway agent-help`: all that a program, or a model, needs to use this command line, on one page."""

from __future__ import annotations

import sys
from typing import Any

from toolway._version import __version__
from toolway.cli.exits import Exit
from toolway.cli.options import Session
from toolway.cli.table import TABLE

_PAGE = """\
# toolway {version} for programs

One way to many MCP servers. Add --json to any command: stdout is then one JSON
document, also for an error, and its keys never change their meaning.

## Find a tool and call it

    toolway tools WORD... --json          tools with all these words: name, description, input_schema
    toolway call SERVER.TOOL --json '{{"argument": "value"}}'
    toolway call SERVER.TOOL name=text count:=5 flag:=true body@=file.txt

The answer has "text", "data" (structured, where the tool gives it), "content" and "is_error".
Lists come from disk where a server was asked before; --refresh asks again.

## When it fails

    {{"error": {{"code", "what", "evidence", "fix", "exit", ...}}}}

"executed" of a call says whether the work happened: "no" may be repeated, "unknown" only after
checking, "yes" not. `toolway explain CODE` has a page for every code; `toolway doctor NAME --json`
names the cause of a server that does not work.

## Exit codes

{exits}

## Commands

{commands}

Shared options: --config FILE, --gateway URL, --token TOKEN, --no-gateway, --json, -q, -v, --no-color.
`toolway COMMAND --help` shows the rest. Secrets are never printed: they are shown as ***.
"""


def agent_help(session: Session) -> Exit:
    """The page, or the same facts as JSON."""
    if session.output.as_json:
        session.output.facts({"version": __version__, "commands": dict(_commands()), "exits": dict(_exits())})
        return Exit.OK
    commands = "\n".join(f"    toolway {name:<18} {about}" for name, about in _commands())
    exits = "\n".join(f"    {code:<4} {name}" for code, name in _exits())
    sys.stdout.write(_PAGE.format(version=__version__, commands=commands, exits=exits))
    return Exit.OK


def _commands(prefix: str = "", table: Any = TABLE) -> list[tuple[str, str]]:
    found = []
    for name, entry in table.items():
        if not entry.hidden and (entry.of is None or entry.at):
            found.append((f"{prefix}{name}", entry.help))
        if entry.of is not None:
            found += _commands(f"{prefix}{name} ", entry.of)
    return found


def _exits() -> list[tuple[int, str]]:
    return [(int(code), code.name.lower().replace("_", " ")) for code in Exit]
