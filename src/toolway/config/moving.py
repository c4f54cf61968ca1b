"""Tokens that stand in plain text in an entry, and the entry with references in their place.

    moves = plan("github", entry)           # what could be moved, without showing it
    entry = moved(entry, moves, store)      # they are in the store, and the entry names them

An entry is what a file has: whatever key a token stands under, known to us or not, its name or its shape tells.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from toolway.config.mask import secrets_in_args
from toolway.config.references import Reference
from toolway.errors import ConfigError
from toolway.secrets import Store, is_secret_like, remember
from toolway.secrets.likely import secret_in_address

_ARGUMENTS: Final = frozenset({"command", "args", "cwd", "cmd"})  # a reference there would become an argument
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Move:
    """One secret that can be moved into the store."""

    path: tuple[str, ...]  # the keys that lead to it
    name: str  # which it gets in the store
    secret: str = dataclasses.field(repr=False)

    @property
    def place(self) -> str:
        return ".".join(self.path)

    @property
    def reference(self) -> str:
        return str(Reference("keyring", self.name))


def plan(server: str, entry: Mapping[str, Any]) -> list[Move]:
    """The secrets that stand in an entry in plain text, each with the name it would get."""
    moves: dict[str, Move] = {}
    for path, secret in _found(entry):
        label = _UNFIT.sub("-", path[-1] if path[0] in ("env", "headers") else ".".join(path))
        names = (f"{server}.{label}{number or ''}" for number in range(1000))
        name = next(each for each in names if each not in moves)
        moves[name] = Move(path, name, secret)
    return list(moves.values())


def stuck(entry: Mapping[str, Any]) -> list[str]:
    """The secrets that cannot be moved, because they are arguments: every process can see those of every other."""
    args = entry.get("args")
    texts = [each for each in args if isinstance(each, str)] if isinstance(args, list | tuple) else []
    return list(secrets_in_args(texts))


def moved(entry: Mapping[str, Any], moves: Iterable[Move], store: Store) -> dict[str, Any]:
    """The entry with references; the secrets are in `store`, each read back before it is given up here. Raises
    `SecretsError`, or `ConfigError` where the store did not keep one; then the entry should stay as it is."""
    for move in moves:
        remember(move.secret)
        store.set(move.name, move.secret)
        if store.get(move.name) != move.secret:
            what = f"the secret {move.name} cannot be read back from {store.where}"
            raise ConfigError(what, fix="the entry was left as it is", code="E-SECRETS")
    return with_references(entry, moves)


def with_references(entry: Mapping[str, Any], moves: Iterable[Move]) -> dict[str, Any]:
    """The entry with references in place of secrets."""
    result = dict(entry)
    for move in moves:
        result = _put(result, move.path, move)
    return result


def _found(entry: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    for key, value in entry.items():
        path = (*above, str(key))
        if isinstance(value, Mapping):
            yield from _found(value, path)
        elif isinstance(value, str) and path[0] not in _ARGUMENTS and is_secret_like(path[-1], value):
            for secret in secret_in_address(value) or [value if "\n" in value else value.split()[-1]]:  # a scheme stays
                yield path, secret


def _put(entry: Mapping[str, Any], path: tuple[str, ...], move: Move) -> dict[str, Any]:
    key, *rest = path
    inner = _put(entry[key], tuple(rest), move) if rest else _text(entry[key], move)
    return {**entry, key: inner}


def _text(text: str, move: Move) -> str:
    """The text with the reference in it. In an address the secret may be written in its own way."""
    written = next((form for form in (move.secret, quote(move.secret, safe="")) if form in text), None)
    if written is None:
        text, written = unquote(text), move.secret
    return text.replace(written, move.reference, 1)
