"""Tokens that stand in plain text in an entry, and the entry with references in their place.

moves = plan("github", server)          # what could be moved, without showing it
server = moved(server, moves, store)    # they are in the store, and the entry names them
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import quote, unquote

from toolway.config.mask import secrets_in_args
from toolway.config.references import Reference, Unresolved, split
from toolway.config.spec import OAuth, Server
from toolway.errors import ConfigError
from toolway.secrets import Store, is_secret_like, remember
from toolway.secrets.likely import secret_in_address

Field = Literal["env", "headers", "url", "auth"]


@dataclass(frozen=True, slots=True)
class Move:
    """One secret that can be moved into the store."""

    field: Field
    key: str  # of `env`, `headers` or `auth`; empty for `url`
    name: str  # which it gets in the store
    secret: str = dataclasses.field(repr=False)

    @property
    def place(self) -> str:
        return f"{self.field}.{self.key}" if self.key else self.field

    @property
    def reference(self) -> str:
        return str(Reference("keyring", self.name))


def plan(server_name: str, server: Server) -> list[Move]:
    """The secrets of an entry that stand in it in plain text, each with the name it would get."""
    return [Move(field, key, f"{server_name}.{label}", secret) for field, key, label, secret in _found(server)]


def stuck(server: Server) -> list[str]:
    """Secrets that cannot be moved, because they are arguments: every process can see those of every other."""
    return ["args"] if any(secrets_in_args(server.args)) else []


def moved(server: Server, moves: Iterable[Move], store: Store) -> Server:
    """The server with references; the secrets are in `store`, each read back before it is given up here. Raises
    `SecretsError`, or `ConfigError` where the store did not keep one; then the entry should stay as it is."""
    for move in moves:
        remember(move.secret)
        store.set(move.name, move.secret)
        if store.get(move.name) != move.secret:
            what = f"the secret {move.name} cannot be read back from {store.where}"
            raise ConfigError(what, fix="the entry was left as it is", code="E-SECRETS")
    return with_references(server, moves)


def with_references(server: Server, moves: Iterable[Move]) -> Server:
    """The server with references in place of secrets."""
    for move in moves:
        match move.field:
            case "env":
                server = replace(server, env=_put(server.env, move))
            case "headers":
                server = replace(server, headers=_put(server.headers, move))
            case "url":
                server = replace(server, url=_text(server.url or "", move))
            case "auth" if server.auth is not None:
                text = getattr(server.auth, move.key)
                server = replace(server, auth=_put_auth(server.auth, move.key, _text(text, move)))
    return server


def _found(server: Server) -> Iterator[tuple[Field, str, str, str]]:
    for key, value in server.env.items():
        if not isinstance(value, Unresolved) and is_secret_like(key, value):
            for secret in secret_in_address(value) or [value]:
                yield "env", key, key, secret
    for key, value in server.headers.items():
        if not isinstance(value, Unresolved) and is_secret_like(key, value):
            yield "headers", key, key, value.rpartition(" ")[2]  # the scheme stays
    if server.url is not None and not isinstance(server.url, Unresolved):
        for number, secret in enumerate(secret_in_address(server.url)):
            yield "url", "", f"url{number or ''}", secret
    for key, label in (("client_secret", "clientSecret"), ("private_key", "privateKey")):
        found = getattr(server.auth, key, None)
        if found and not isinstance(found, Unresolved) and "${" not in found:
            yield "auth", key, label, found


def _put(texts: Mapping[str, str], move: Move) -> dict[str, str]:
    return {key: _text(text, move) if key == move.key else text for key, text in texts.items()}


def _put_auth(auth: OAuth, key: str, text: str) -> OAuth:
    return replace(auth, client_secret=text) if key == "client_secret" else replace(auth, private_key=text)


def _text(text: str, move: Move) -> str:
    """The text with the reference in it. In an address the secret may be written in its own way."""
    written = next((form for form in (move.secret, quote(move.secret, safe="")) if form in text), None)
    if written is None and unquote(text) != text:
        text, written = unquote(text), move.secret
    return Unresolved(split(text.replace(written or move.secret, move.reference, 1)))
