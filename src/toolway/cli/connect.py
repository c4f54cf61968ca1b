"""`toolway connect`: what a client must be told to use the gateway. Printed only; no file is changed."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from toolway.cli.exits import Exit, UsageError
from toolway.cli.gateways import Door, at_address, of_this_machine
from toolway.cli.meant import did_you_mean
from toolway.cli.output import Output
from toolway.cli.places import Where, load
from toolway.errors import ConfigError
from toolway.gateway.state import State


@dataclass(frozen=True)
class Told:
    """What a person does with it, and what is to be pasted."""

    do: str
    text: str


async def connect(output: Output, where: Where, client: str, group: str | None) -> Exit:
    """Show what connects a client."""
    told = CLIENTS.get(client)
    if told is None:
        fix = did_you_mean(client, CLIENTS) or f"choose one of {', '.join(CLIENTS)}"
        raise UsageError(f"{client!r} is no client that is known here", fix=fix)
    if group is not None and not _GROUP.fullmatch(group):
        raise UsageError(f"{group!r} is no name of a group", fix="write a group's name, or server/NAME")
    door = _door(output, where)
    name = f"toolway-{group.replace('/', '-')}" if group else "toolway"
    url = f"{door.url}/mcp/{group}" if group else f"{door.url}/mcp"
    shown = told(name, url, door.headers)
    if output.as_json:
        output.json({"client": client, "url": url, "headers": door.headers, "do": shown.do, "text": shown.text})
        return Exit.OK
    output.say(shown.do, "dim")
    sys.stdout.write(shown.text + "\n")
    return Exit.OK


def _door(output: Output, where: Where) -> Door:
    """The gateway that was named or that runs, or the one that would run here."""
    if where.gateway is not None:
        return at_address(where.gateway, where.token)
    found = of_this_machine(where.config, where.token)
    if found is not None:
        return found
    output.say("no gateway runs here; this is for the one that starts with: toolway serve", "yellow")
    try:
        settings = load(output, where.config).gateway
    except ConfigError:
        if where.config is not None:
            raise
        return Door(_DEFAULT, where.token or State.default(os.environ).token())
    return Door(f"http://{settings.host}:{settings.port}", where.token or State.default(os.environ).token())


_GROUP: Final = re.compile(r"(?:server/)?[a-z0-9-]{1,64}")
_DEFAULT: Final = "http://127.0.0.1:8765"


def _claude_code(name: str, url: str, headers: dict[str, str]) -> Told:
    fields = [word for key, value in headers.items() for word in ("--header", f"{key}: {value}")]
    return Told("run this:", shlex.join(["claude", "mcp", "add", "--transport", "http", name, url, *fields]))


def _cursor(name: str, url: str, headers: dict[str, str]) -> Told:
    return Told("put this into ~/.cursor/mcp.json:", _json("mcpServers", name, {"url": url, **_fields(headers)}))


def _vscode(name: str, url: str, headers: dict[str, str]) -> Told:
    entry = {"type": "http", "url": url, **_fields(headers)}
    return Told("put this into .vscode/mcp.json:", _json("servers", name, entry))


def _codex(name: str, url: str, headers: dict[str, str]) -> Told:
    lines = [f"[mcp_servers.{name}]", f"url = {json.dumps(url)}"]
    if headers:
        fields = ", ".join(f"{key} = {json.dumps(value)}" for key, value in headers.items())
        lines.append(f"http_headers = {{ {fields} }}")
    return Told("put this into ~/.codex/config.toml:", "\n".join(lines))


def _generic(name: str, url: str, headers: dict[str, str]) -> Told:
    entry = {"type": "http", "url": url, **_fields(headers)}
    return Told("put this into the client's file of servers:", _json("mcpServers", name, entry))


def _fields(headers: dict[str, str]) -> dict[str, object]:
    return {"headers": headers} if headers else {}


def _json(root: str, name: str, entry: dict[str, object]) -> str:
    return json.dumps({root: {name: entry}}, indent=2)


CLIENTS: Final[dict[str, Callable[[str, str, dict[str, str]], Told]]] = {
    "claude-code": _claude_code,
    "cursor": _cursor,
    "vscode": _vscode,
    "codex": _codex,
    "generic": _generic,
}
