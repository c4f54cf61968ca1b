"""Secrets are masked before anything is shown: those in entries, in our own environment, and all that was fetched.

`masker` hides values wherever they are repeated, as in a server's stderr; `masked` shows an entry without them.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from toolway.config.references import Unresolved
from toolway.config.spec import Server
from toolway.secrets.known import HIDDEN, SHORTEST, hide, pattern
from toolway.secrets.likely import is_secret_like, names_secret, secret_in_address

_SECRET_NAME: Final = re.compile(r"key|token|secret|passw|pwd|auth|credential|cookie|session", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"\$\{[^}]*\}|\$\w+|%\w+%|\{env:\w+\}")
_SCHEME: Final = re.compile(r"\s*(?:bearer|basic|token|apikey)?\s*", re.IGNORECASE)
_HARMLESS: Final = frozenset({"accept", "accept-language", "content-type", "user-agent"})
_NO_CREDENTIAL: Final = frozenset({"type", "in", "name", "scheme", "username"})  # of a `security` with a type
_PAIR: Final = re.compile(r"(?P<name>-{0,2}[\w.-]+)(?P<between>=|:\s*)(?P<value>.+)", re.DOTALL)


def masker(servers: Iterable[Server]) -> Callable[[str], str]:
    """A function that replaces every secret of these servers by `***`, and every one that this process fetched."""
    found = {each for server in servers for each in _secrets(server)} | set(_own())
    secrets = {each for each in found if len(each) >= SHORTEST}
    if not secrets:
        return hide
    known = pattern(secrets)
    return lambda text: hide(known.sub(HIDDEN, text))


def _secrets(server: Server) -> Iterator[str]:
    for name, value in server.env.items():
        if not isinstance(value, Unresolved) and (_SECRET_NAME.search(name) or is_secret_like(name, value)):
            yield value
            yield from secret_in_address(value)
    openapi = server.openapi
    for value in (*server.headers.values(), *(openapi.headers.values() if openapi is not None else ())):
        if not isinstance(value, Unresolved):
            yield value
            yield value.rpartition(" ")[2]  # "Bearer …": the token alone
    yield from secrets_in_args(server.args)
    if server.url is not None:
        yield from secret_in_address(server.url)
    for key in openapi.credentials if openapi is not None else ():
        if not isinstance(key.value, Unresolved):
            yield from (key.value, quote(key.value, safe=""), b64encode(key.value.encode()).decode())
            yield key.value.partition(":")[2]  # user:password
    if server.auth is not None:
        for secret in (server.auth.client_secret, server.auth.private_key):
            if secret is not None and not isinstance(secret, Unresolved):
                yield secret


def _own() -> Iterator[str]:
    """What our own environment holds: a proxy's password, the token of a gateway."""
    for name, value in os.environ.items():
        if is_secret_like(name, value):
            yield value if "://" not in value else ""
            yield from secret_in_address(value)


def secrets_in_args(args: Iterable[str]) -> Iterator[str]:
    """The arguments that look like secrets: `--api-key X`, `--api-key=X`, `-e TOKEN=X`, `Authorization: Bearer X`."""
    flag = ""
    for arg in args:
        pair = _PAIR.fullmatch(arg)
        if pair and is_secret_like(pair["name"], pair["value"]):
            yield pair["value"]
            yield pair["value"].rpartition(" ")[2]
        elif is_secret_like(flag, arg):
            yield arg
        yield from secret_in_address(arg)
        flag = arg if arg.startswith("-") else ""


def masked(value: Any, *path: str) -> Any:
    """An entry of a file, or a part of it at `path`, as it may be shown: references and variables stay, secrets go."""
    if isinstance(value, Mapping):
        return {str(key): masked(inner, *path, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        secrets = set(secrets_in_args([each for each in value if isinstance(each, str)]))
        return [_without(secrets, each) if isinstance(each, str) else masked(each, *path) for each in value]
    if not isinstance(value, str):
        return value
    name = path[-1] if path else ""
    hidden = _plain_part(value) if _is_credential(path, name) else False
    if hidden or (names_secret(name) and _plain_part(value)) or is_secret_like(name, value):
        return _without(set(secret_in_address(value)), value) if "://" in value else HIDDEN
    return _without(set(secret_in_address(value)), value)


def _is_credential(path: tuple[str, ...], name: str) -> bool:
    """Whether what stands here is for a server to know us by: a header, or the `security` of an API."""
    if "headers" in path[:-1]:
        return name.lower() not in _HARMLESS
    if path[-2:] == ("credentials", "value"):
        return True
    return "security" in path[-3:-1] and "openapi" in path[-4:-2] and name not in _NO_CREDENTIAL


def _plain_part(value: str) -> bool:
    """Whether a text holds more than references and the name of a scheme."""
    return bool(_SCHEME.sub("", _VARIABLE.sub("", value), count=1).strip())


def _without(secrets: set[str], text: str) -> str:
    chosen = {each for each in secrets if each}
    return pattern(chosen).sub(HIDDEN, text) if chosen else text
