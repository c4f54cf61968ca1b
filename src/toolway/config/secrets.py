"""Secrets of a server entry: insert resolved values, move plain-text secrets to the store.

    moves = plan_secret_moves("github", entry)      # the secrets that can be moved, without showing them
    entry = migrate_secrets(entry, moves, store)    # the secrets are in the store, the entry refers to them

An entry is an object of a configuration file. Secrets are detected under any key, by the name of the key or by their
own shape.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final
from urllib.parse import quote, unquote

from toolway.config.masking import find_secrets_in_args
from toolway.config.schema import OAuth, Server, Tls
from toolway.config.secret_refs import SecretRef, SecretTemplate, find_unset_variables
from toolway.errors import ConfigError
from toolway.part_api.server_transport import EntryString
from toolway.secrets import SecretStore, looks_like_secret, remember_secret
from toolway.secrets.detection import secrets_in_url

SecretValues = Mapping[SecretRef, str]

_INVALID_VALUE_CODE: Final = "E-SECRETS-VALUE"
_ARGUMENT_KEYS: Final = frozenset({"command", "args", "cwd", "cmd"})  # a resolved reference would be a process argument
_INVALID_NAME_CHARS: Final = re.compile(r"[^A-Za-z0-9_.-]+")


# -- references → values ----------------------------------------------------------------------------------------------


def list_secret_refs(server: Server) -> tuple[SecretRef, ...]:
    """Return the distinct secret references of a server, to resolve before it is started."""
    return tuple(dict.fromkeys(found for text in _secret_templates(server) for found in text.references))


def needs_resolution(server: Server) -> bool:
    """Return True if secrets, variables or a file with variables must be read before the server starts."""
    return server.env_file is not None or bool(list_secret_refs(server)) or bool(find_unset_variables(server))


def substitute_secrets(server: Server, values: SecretValues) -> Server:
    """Return `server` with each secret reference replaced by its value in `values`.

    Raises `KeyError` if a value is missing, and `ConfigError` if a value is not allowed in its field. The error repeats
    no value.
    """
    if not list_secret_refs(server):
        return server
    settings = server.transport_settings
    try:
        return replace(
            server,
            env={name: _substitute(text, values, _env_checker(name)) for name, text in server.env.items()},
            headers={name: _substitute(text, values, _header_checker(name)) for name, text in server.headers.items()},
            url=server.url and _substitute(server.url, values, _quote_for_url),
            auth=server.auth and _substitute_in_auth(server.auth, values),
            tls=server.tls and _substitute_in_tls(server.tls, values),
            transport_settings=settings and settings.with_strings(lambda text: _substitute_in_string(text, values)),
        )
    except ConfigError as exc:
        # The error of `Server` validation may repeat a value that is now a secret, so its detail is dropped.
        raise (
            exc if exc.code == _INVALID_VALUE_CODE else ConfigError(exc.message, hint=exc.hint, code=exc.code)
        ) from None


def _substitute_in_auth(auth: OAuth, values: SecretValues) -> OAuth:
    texts = {each.name: getattr(auth, each.name) for each in fields(auth)}
    new: dict[str, Any] = {k: _substitute(v, values, str) for k, v in texts.items() if isinstance(v, SecretTemplate)}
    return replace(auth, **new)


def _substitute_in_tls(tls: Tls, values: SecretValues) -> Tls:
    return tls if tls.key_password is None else replace(tls, key_password=_substitute(tls.key_password, values, str))


def _substitute_in_string(text: EntryString, values: SecretValues) -> str:
    return _substitute(text.value, values, _quote_for_url if text.kind == "url" else _header_checker(text.name))


def _secret_templates(server: Server) -> Iterator[SecretTemplate]:
    auth = [getattr(server.auth, each.name) for each in fields(server.auth)] if server.auth is not None else []
    settings = [each.value for each in server.transport_settings.strings()] if server.transport_settings else []
    password = server.tls.key_password if server.tls is not None else None
    for text in (*server.env.values(), *server.headers.values(), server.url, password, *auth, *settings):
        if isinstance(text, SecretTemplate):
            yield text


def _substitute(text: str, values: SecretValues, check: Callable[[str], str]) -> str:
    if not isinstance(text, SecretTemplate):
        return text
    return "".join(part if isinstance(part, str) else check(values[part]) for part in text.parts)


# Each field has its grammar. A value that would break out of it is rejected.


def _env_checker(name: str) -> Callable[[str], str]:
    return lambda value: _reject_characters("\0", value, f"env.{name}")


def _header_checker(name: str) -> Callable[[str], str]:
    return lambda value: _reject_characters("\r\n\0", value, f"headers.{name}")


def _quote_for_url(value: str) -> str:
    return quote(value, safe="")


def _reject_characters(forbidden: str, value: str, field_name: str) -> str:
    if any(character in value for character in forbidden):
        raise ConfigError(
            f"the secret for {field_name} contains a line break or NUL",
            detail="it cannot be sent in this form",
            hint="set it again, as one line",
            code=_INVALID_VALUE_CODE,
        )
    return value


# -- plain-text secrets → references ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SecretMove:
    """Plain-text secret in a server entry, and the name to move it to in the secret store."""

    path: tuple[str, ...]  # keys from the entry to the secret
    name: str  # its name in the secret store
    secret: str = dataclasses.field(repr=False)

    @property
    def location(self) -> str:
        return ".".join(self.path)

    @property
    def reference(self) -> str:
        return str(SecretRef("keyring", self.name))


def plan_secret_moves(server: str, entry: Mapping[str, Any]) -> list[SecretMove]:
    """Return the plain-text secrets of a server entry that can be moved into the secret store.

    Each gets a name in the secret store, such as `SERVER.KEY`. Nothing is changed.
    """
    moves: dict[str, SecretMove] = {}
    for path, secret in _find_plain_secrets(entry):
        label = _INVALID_NAME_CHARS.sub("-", path[-1] if path[0] in ("env", "headers") else ".".join(path))
        names = (f"{server}.{label}{number or ''}" for number in range(1000))
        name = next(each for each in names if each not in moves)
        moves[name] = SecretMove(path, name, secret)
    return list(moves.values())


def find_unmovable_secrets(entry: Mapping[str, Any]) -> list[str]:
    """Return likely secrets in `args` of a server entry, which cannot be moved.

    A reference there would be resolved to a process argument, and these are visible to every process.
    """
    args = entry.get("args")
    texts = [each for each in args if isinstance(each, str)] if isinstance(args, list | tuple) else []
    return list(find_secrets_in_args(texts))


def migrate_secrets(entry: Mapping[str, Any], moves: Iterable[SecretMove], store: SecretStore) -> dict[str, Any]:
    """Save the secrets in the secret store; return the entry with references to them.

    Each saved secret is read back. Raises `ConfigError` if it differs, and `SecretsError` if the store fails. The
    caller must then keep the old entry.
    """
    for move in moves:
        remember_secret(move.secret)
        store.set(move.name, move.secret)
        if store.get(move.name) != move.secret:
            message = f"secret {move.name} cannot be read back from {store.location}"
            raise ConfigError(message, hint="the entry is unchanged", code="E-SECRETS")
    return replace_with_references(entry, moves)


def replace_with_references(entry: Mapping[str, Any], moves: Iterable[SecretMove]) -> dict[str, Any]:
    """Return a copy of the server entry with references in place of the moved secrets."""
    result = dict(entry)
    for move in moves:
        result = _replace_at(result, move.path, move)
    return result


def _find_plain_secrets(
    entry: Mapping[str, Any], parents: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    for key, value in entry.items():
        path = (*parents, str(key))
        if isinstance(value, Mapping):
            yield from _find_plain_secrets(value, path)
        elif isinstance(value, str) and path[0] not in _ARGUMENT_KEYS and looks_like_secret(path[-1], value):
            # Of "Bearer TOKEN" only the token is moved.
            for secret in secrets_in_url(value) or [value if "\n" in value else value.split()[-1]]:
                yield path, secret


def _replace_at(entry: Mapping[str, Any], path: tuple[str, ...], move: SecretMove) -> dict[str, Any]:
    key, *rest = path
    inner = _replace_at(entry[key], tuple(rest), move) if rest else _replace_in_text(entry[key], move)
    return {**entry, key: inner}


def _replace_in_text(text: str, move: SecretMove) -> str:
    """Replace the secret in `text` by its reference. In a URL the secret may be percent-encoded."""
    encoded = next((form for form in (move.secret, quote(move.secret, safe="")) if form in text), None)
    if encoded is None:
        text, encoded = unquote(text), move.secret
    return text.replace(encoded, move.reference, 1)
