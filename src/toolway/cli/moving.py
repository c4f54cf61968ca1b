"""Tokens that stand in plain text in entries, moved into the store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from toolway.cli.output import Output
from toolway.config.moving import Move, moved, plan
from toolway.config.spec import Server
from toolway.secrets import open_store


def plain_secrets(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Move]]:
    """What could be moved, by server."""
    found = {name: plan(name, server) for name, entry in entries.items() if (server := _texts(entry)) is not None}
    return {name: moves for name, moves in found.items() if moves}


def moved_secrets(output: Output, entries: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The entries with references in place of tokens, which are in the store now."""
    result = {name: dict(entry) for name, entry in entries.items()}
    moves = plain_secrets(entries)
    if not moves:
        return result
    store = open_store(os.environ)
    for name, chosen in moves.items():
        server = _texts(result[name])
        assert server is not None
        server = moved(server, chosen, store)
        for move in chosen:
            if move.field in ("env", "headers"):
                texts = {key: str(value) for key, value in getattr(server, move.field).items()}
                result[name][move.field] = {**result[name][move.field], move.key: texts[move.key]}
            elif move.field == "url":
                result[name]["url"] = str(server.url)
            output.say(f"{name}: {move.place} is kept in {store.where} as {move.name}")
    return result


def _texts(entry: Mapping[str, Any]) -> Server | None:
    """The texts of an entry as they are written; what names a variable is no secret itself."""
    env, headers = (_plain(entry.get(key)) for key in ("env", "headers"))
    url, command = entry.get("url"), entry.get("command")
    if isinstance(url, str) and url.startswith(("http://", "https://")):
        return Server(url=url, headers=headers)
    return Server(command=command, env=env) if isinstance(command, str) and command else None


def _plain(texts: Any) -> dict[str, str]:
    if not isinstance(texts, Mapping):
        return {}
    return {key: text for key, text in texts.items() if isinstance(text, str) and "${" not in text}
