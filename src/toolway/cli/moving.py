"""Tokens that stand in plain text in entries, moved into the store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from toolway.cli.output import Output
from toolway.config.moving import Move, moved, plan
from toolway.secrets import open_store


def plain_secrets(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Move]]:
    """What could be moved, by server."""
    found = {name: plan(name, entry) for name, entry in entries.items()}
    return {name: moves for name, moves in found.items() if moves}


def moved_secrets(output: Output, entries: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The entries with references in place of tokens, which are in the store now."""
    result = {name: dict(entry) for name, entry in entries.items()}
    moves = plain_secrets(entries)
    if not moves:
        return result
    store = open_store(os.environ)
    for name, chosen in moves.items():
        result[name] = moved(result[name], chosen, store)
        for move in chosen:
            output.say(f"{name}: {move.place} is kept in {store.where} as {move.name}")
    return result
