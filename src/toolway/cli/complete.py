"""What a shell may complete: names of servers, tools and clients. Whatever goes wrong, nothing is offered."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

Offer = tuple[str, str]  # the word, and what it is


def servers(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Names of servers, with what they are."""
    return _quietly(_servers(ctx))


def tools(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """`server.tool` of what earlier runs kept; a server that was never asked is offered with its dot."""
    return _quietly(_tools(ctx))


def codes(ctx: typer.Context, incomplete: str) -> list[Offer]:
    return _quietly(_codes())


def clients(ctx: typer.Context, incomplete: str) -> list[Offer]:
    return _quietly(_clients())


def connectable(ctx: typer.Context, incomplete: str) -> list[Offer]:
    return _quietly(_connectable())


def _servers(ctx: typer.Context) -> Iterator[Offer]:
    from toolway.config.mask import masked

    for name, server in _configured(ctx).items():
        yield name, masked(server.command or server.place)


def _tools(ctx: typer.Context) -> Iterator[Offer]:
    from toolway.cli.known import kept_lists

    kept = kept_lists(_configured(ctx))
    for tool in kept.catalog.tools():
        yield tool.name, (tool.description or tool.title).strip().partition("\n")[0][:60]
    for name in kept.missing:
        yield f"{name}.", "no answer yet"


def _codes() -> Iterator[Offer]:
    from toolway.cli.explain import PLACES, first_words

    for page in sorted(page for folder in PLACES for page in folder.glob("E-*.md")):
        yield page.stem, first_words(page)[:60]


def _clients() -> Iterator[Offer]:
    from toolway.config.clients import CLIENTS

    for name, client in CLIENTS.items():
        yield name, client.title


def _connectable() -> Iterator[Offer]:
    from toolway.cli.connect import CLIENTS

    for name in CLIENTS:
        yield name, ""


def _configured(ctx: typer.Context) -> dict[str, Any]:
    from toolway.config.scopes import loaded

    named = ctx.params.get("config") or ctx.find_root().params.get("config")
    return dict(loaded(os.environ, Path.cwd(), Path(named) if named else None).servers)


def _quietly(offers: Iterator[Offer]) -> list[Offer]:
    """A shell shows nothing but words: an error would stand in the middle of the line that is being written."""
    try:
        return list(offers)
    except Exception:
        return []
