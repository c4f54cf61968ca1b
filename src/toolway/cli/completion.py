"""Shell completion callbacks for typer: names of commands, servers, tools, clients and error codes.

A callback that fails suggests nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from toolway.cli.cached_lists import load_cached_lists
from toolway.cli.config_choice import choose_file
from toolway.cli.error_pages import ERROR_PAGE_DIRS, first_paragraph
from toolway.cli.help.pages import find_command
from toolway.cli.options import TargetOptions
from toolway.cli.output import Output
from toolway.cli.table import COMMANDS
from toolway.config.clients import CLIENTS
from toolway.config.masking import mask_value
from toolway.config.scopes import load_config

Suggestion = tuple[str, str]  # (word, description)


def complete_servers(ctx: typer.Context, incomplete: str) -> list[Suggestion]:
    """Suggest names of configured servers, described by their command or URL."""
    return [*_suggest_subcommands(ctx), *_list_or_empty(_suggest_servers(ctx))]


def complete_tools(ctx: typer.Context, incomplete: str) -> list[Suggestion]:
    """Suggest `server.tool` names from the tool lists cached on disk.

    A server without a cached list is suggested as `server.`.
    """
    return [*_suggest_subcommands(ctx), *_list_or_empty(_suggest_tools(ctx))]


def complete_commands(ctx: typer.Context, incomplete: str) -> list[Suggestion]:
    """Suggest the commands that may follow the words after `toolway help`."""
    return _list_or_empty(_suggest_commands(ctx))


def complete_codes(ctx: typer.Context, incomplete: str) -> list[Suggestion]:
    """Suggest Toolway's error codes, such as `E-STDIO-ENOENT`, each with its meaning."""
    return _list_or_empty(_suggest_codes())


def complete_clients(ctx: typer.Context, incomplete: str) -> list[Suggestion]:
    """Suggest names of MCP clients that servers can be imported from or exported to."""
    return _list_or_empty(_suggest_clients())


def _suggest_subcommands(ctx: typer.Context) -> list[Suggestion]:
    """Suggest the subcommands of a command that takes words too, if no word is given yet."""
    given = any(ctx.params.get(param.name) for param in ctx.command.params if param.param_type_name == "argument")
    commands = {} if given else getattr(ctx.command, "subcommands", {})
    return [(name, entry.help) for name, entry in commands.items()]


def _suggest_commands(ctx: typer.Context) -> Iterator[Suggestion]:
    words = ctx.params.get("command") or []
    entry = find_command(" ".join(words))
    table = COMMANDS if not words else (entry.subcommands or {}) if entry is not None else {}
    for name, each in table.items():
        yield name, each.help
    if not words:
        yield "agents", "A page for programs."


def _suggest_servers(ctx: typer.Context) -> Iterator[Suggestion]:
    for name, server in _configured_servers(ctx).items():
        yield name, mask_value(server.command or server.location)


def _suggest_tools(ctx: typer.Context) -> Iterator[Suggestion]:
    cached = load_cached_lists(_configured_servers(ctx))
    for tool in cached.catalog.tools():
        yield tool.qualified_name, (tool.description or tool.title).strip().partition("\n")[0][:60]
    for name in cached.uncached:
        yield f"{name}.", "no response yet"


def _suggest_codes() -> Iterator[Suggestion]:
    for page in sorted(page for folder in ERROR_PAGE_DIRS for page in folder.glob("E-*.md")):
        yield page.stem, first_paragraph(page)[:60]


def _suggest_clients() -> Iterator[Suggestion]:
    for name, client in CLIENTS.items():
        yield name, client.title


def _configured_servers(ctx: typer.Context) -> dict[str, Any]:
    config_path = ctx.params.get("config") or ctx.find_root().params.get("config")
    options = TargetOptions(Path(config_path) if config_path else None)
    return dict(load_config(os.environ, Path.cwd(), choose_file(Output(quiet=True), options)).servers)


def _list_or_empty(suggestions: Iterator[Suggestion]) -> list[Suggestion]:
    """Return all suggestions, or none on any error.

    A shell would print the error into the line being typed.
    """
    try:
        return list(suggestions)
    except Exception:
        return []
