"""Masks secrets in output: those in server entries, in the environment, and behind secret references.

`build_masker` masks the values in any text, such as a server's stderr. `mask_value` returns an entry without them.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from toolway.config.schema import Server
from toolway.config.secret_refs import SecretTemplate
from toolway.config.variables import split_references
from toolway.part_api import registry
from toolway.part_api.server_transport import EntryString
from toolway.secrets.detection import (
    is_harmless_value,
    is_secret_name,
    looks_like_secret,
    mask_secrets,
    secrets_in_url,
)
from toolway.secrets.replacer import MASK, MIN_SECRET_CHARS, build_replacer
from toolway.secrets.server_secrets import secrets_of

_VARIABLE: Final = re.compile(r"\$\{[^}]*\}|\$\w+|%\w+%|\{env:\w+\}")
_AUTH_SCHEME: Final = re.compile(r"\s*(?:bearer|basic|token|apikey)?\s*", re.IGNORECASE)
_HARMLESS_HEADERS: Final = frozenset({"accept", "accept-language", "content-type", "user-agent"})
_NAME_VALUE_PAIR: Final = re.compile(r"(?P<name>-{0,2}[\w.-]+)(?P<between>=|:\s*)(?P<value>.+)", re.DOTALL)


def build_masker(servers: Iterable[Server], names: Collection[str] = ()) -> Callable[[str], str]:
    """Return a function that replaces all known secrets in a string with `***`.

    Known secrets are the ones in these server entries and in the environment, and each secret that this process has
    resolved. Server names are not masked, even if a variable has the same value, so pass them as `names`.
    """
    found = {each for server in servers for each in _server_secrets(server)} | set(find_environment_secrets())
    secrets = {each for each in found if len(each) >= MIN_SECRET_CHARS and each not in names}
    if not secrets:
        return mask_secrets
    replace = build_replacer(secrets)
    return lambda text: mask_secrets(replace(text))


def build_review_masker(servers: Iterable[Server]) -> Callable[[str], str]:
    """Return a function that masks secrets in an entry that a user reviews before it is used.

    You must see what the entry runs. So a value in `env` is only masked if it is clearly a secret and does not
    also occur in the command. Otherwise an entry could hide an argument by repeating it in `env`.
    """
    found = set(find_environment_secrets())
    for server in servers:
        shown = [server.command or "", *server.args, server.cwd or "", server.url or ""]
        hides = set(_server_secrets(dataclasses.replace(server, env={}))) - {""}
        for name, value in server.env.items():
            secret = not isinstance(value, SecretTemplate) and (is_secret_name(name) or looks_like_secret(name, value))
            if (
                secret
                and len(value) >= MIN_SECRET_CHARS
                and all(build_replacer({value})(text) == text for text in shown)
            ):
                hides.add(value)
        found |= hides
    return build_replacer({each for each in found if len(each) >= MIN_SECRET_CHARS})


def name_secrets(servers: Mapping[str, Server], text: str) -> list[str]:
    """Return what masking hides in a text, such as `the secret API_TOKEN of server bank`.

    This is for a user who must know what is sent, but must not read it.
    """
    found: dict[str, None] = {}
    for server, entry in servers.items():
        named = [(f"the secret {name}", value) for value, name in find_named_values(entry).items()]
        for name, value in (*named, *secrets_of(server).named_values()):
            if _contains(text, value):
                found[f"{name} of server {server}"] = None
    for name, value in os.environ.items():
        if looks_like_secret(name, value) and _contains(text, value):
            found[f"the variable {name} of the gateway"] = None
    return list(found)


def _contains(text: str, secret: str) -> bool:
    return len(secret) >= MIN_SECRET_CHARS and (secret in text or _replacer_of(secret)(text) != text)


@lru_cache(maxsize=4096)
def _replacer_of(secret: str) -> Callable[[str], str]:
    return build_replacer({secret})


def find_named_values(server: Server) -> dict[str, str]:
    """Return the masked values in a server entry's `env` and `headers`, with the name of each.

    References that are not resolved are left out.
    """
    headers = _all_headers(server)
    tokens = [(name, value.rpartition(" ")[2]) for name, value in headers if not isinstance(value, SecretTemplate)]
    return {
        value: name
        for name, value in (*tokens, *server.env.items(), *headers)  # "Bearer …": also the token alone
        if not isinstance(value, SecretTemplate) and not is_harmless_value(name, value)
    }


def create_mask(servers: Callable[[], Mapping[str, Server]]) -> Callable[[str], str]:
    """Return a function that hides the current server entries' secrets in a string.

    Its list of secrets is rebuilt when the servers change, not for every text.
    """
    cached: list[Any] = [(), build_masker(())]

    def mask(text: str) -> str:
        named = servers()
        current = tuple(named.values())
        if len(current) != len(cached[0]) or any(
            one is not other for one, other in zip(current, cached[0], strict=True)
        ):
            cached[:] = [current, build_masker(current, named.keys())]
        return str(cached[1](text))

    return mask


def _all_headers(server: Server) -> list[tuple[str, str]]:
    """Return an entry's headers, including those in its transport's settings."""
    return [*server.headers.items(), *((name, value) for kind, name, value in _own_strings(server) if kind == "header")]


def _own_strings(server: Server) -> Iterable[EntryString]:
    return server.transport_settings.strings() if server.transport_settings is not None else ()


def _server_secrets(server: Server, *, with_headers: bool = True) -> Iterator[str]:
    for name, value in server.env.items():
        if not isinstance(value, SecretTemplate) and not is_harmless_value(name, value):
            yield value
            yield from secrets_in_url(value)
    for name, value in _all_headers(server) if with_headers else ():
        if not isinstance(value, SecretTemplate) and name.lower() not in _HARMLESS_HEADERS:
            yield value
            yield value.rpartition(" ")[2]  # "Bearer …": the token alone
    yield from find_secrets_in_args(server.args)
    if server.url is not None:
        yield from secrets_in_url(server.url)
    for text in _own_strings(server):
        if text.kind == "credential" and not isinstance(text.value, SecretTemplate):
            yield text.value
            yield text.value.partition(":")[2]  # user:password
    password = server.tls.key_password if server.tls is not None else None
    if password is not None and not isinstance(password, SecretTemplate):
        yield password
    if server.auth is not None:
        for secret in (server.auth.client_secret, server.auth.idp_client_secret, server.auth.private_key):
            if secret is not None and not isinstance(secret, SecretTemplate):
                yield secret


def find_result_secrets(server: Server) -> Iterator[str]:
    """Yield the secrets in a resolved server entry that must be removed from the server's results.

    These are fewer than the ones masked in logs, because a result is data, and an ordinary value in `env` may be a word
    in it.
    """
    for name, value in server.env.items():
        if is_secret_name(name) or looks_like_secret(name, value):
            yield value
        yield from secrets_in_url(value)
    for name, value in _all_headers(server):
        if name.lower() not in _HARMLESS_HEADERS and (is_secret_name(name) or looks_like_secret(name, value)):
            yield value.rpartition(" ")[2]  # "Bearer …": the token alone
    yield from _server_secrets(dataclasses.replace(server, env={}), with_headers=False)


def find_environment_secrets() -> Iterator[str]:
    """Yield likely secrets in this process's environment, such as tokens and proxy passwords."""
    for name, value in os.environ.items():
        if looks_like_secret(name, value):
            yield value if "://" not in value else ""
            yield from secrets_in_url(value)


def find_secrets_in_args(args: Iterable[str]) -> Iterator[str]:
    """Yield likely secrets in arguments: `--api-key X`, `-e TOKEN=X`, `Authorization: Bearer X`."""
    flag = ""
    for arg in args:
        pair = _NAME_VALUE_PAIR.fullmatch(arg)
        if pair and looks_like_secret(pair["name"], pair["value"]):
            yield pair["value"]
            yield pair["value"].rpartition(" ")[2]
        elif looks_like_secret(flag, arg):
            yield arg
        yield from secrets_in_url(arg)
        flag = arg if arg.startswith("-") else ""


def mask_value(value: Any, *path: str) -> Any:
    """Return a server entry, or its part at `path`, with each plain-text secret masked as `***`.

    References to secrets and variables always stay, even inside a masked string, because a user must be able to see
    what a string runs, reads, and sends before approving it.
    """
    if isinstance(value, Mapping):
        return {str(key): mask_value(inner, *path, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        secrets = set(find_secrets_in_args([each for each in value if isinstance(each, str)]))
        return [_mask_texts(secrets, each) if isinstance(each, str) else mask_value(each, *path) for each in value]
    if not isinstance(value, str):
        return value
    name = path[-1] if path else ""
    hidden = _has_plain_text(value) if _is_credential(path, name) else False
    if hidden or (is_secret_name(name) and _has_plain_text(value)) or looks_like_secret(name, value):
        return _mask_texts(set(secrets_in_url(value)), value) if "://" in value else _mask_plain_parts(value)
    return _mask_texts(set(secrets_in_url(value)), value)


def mask_entry(value: Any, *path: str) -> Any:
    """Return a server entry, or its part at `path`, for display: masked as by `mask_value`.

    The values in `env` are masked too. Harmless values in `env`, such as `production` or a folder's path, stay.
    """
    if isinstance(value, Mapping):
        return {str(key): mask_entry(inner, *path, str(key)) for key, inner in value.items()}
    if (
        isinstance(value, str)
        and path[-2:-1] == ("env",)
        and not is_harmless_value(path[-1], value)
        and _has_plain_text(value)
    ):
        return "".join(part if _VARIABLE.fullmatch(part) else MASK for part in _split_variables(value))
    return mask_value(value, *path)


def _split_variables(value: str) -> list[str]:
    """Split a value into references to secrets or variables, and the plain text between them."""
    return [part for part in re.split(f"({_VARIABLE.pattern})", value) if part]


def _is_credential(path: tuple[str, ...], name: str) -> bool:
    """Return True if the config key at `path` holds a credential for a server.

    This is true for all headers except harmless ones such as `Accept`, and for what a part's transport names.
    """
    if "headers" in path[:-1]:
        return name.lower() not in _HARMLESS_HEADERS
    if path[-2:] == ("credentials", "value"):
        return True
    return any(
        transport.is_credential(path[number + 1 :])
        for number, key in enumerate(path[:-1])
        if (transport := registry.own_transport(key)) is not None
    )


def _has_plain_text(value: str) -> bool:
    """Return True if `value` has text other than variables and the name of an authentication scheme.

    So it is False for `Bearer ${TOKEN}`, and True for `Bearer abc`.
    """
    return bool(_AUTH_SCHEME.sub("", _VARIABLE.sub("", value), count=1).strip())


def _mask_plain_parts(text: str) -> str:
    """Mask everything in a string except references: `v1-${keyring:x}` becomes `***${keyring:x}`."""
    return "".join(
        (MASK if part.strip() else part) if isinstance(part, str) else part.text for part in split_references(text)
    )


def _mask_texts(secrets: set[str], text: str) -> str:
    """Return the text with each of the `secrets` masked.

    References such as `${keyring:x}` stay visible.
    """
    plain = {part for secret in secrets for part in split_references(secret) if isinstance(part, str) and part}
    if not plain:
        return text
    mask = build_replacer(plain)
    return "".join(mask(part) if isinstance(part, str) else part.text for part in split_references(text))
