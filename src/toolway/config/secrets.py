"""The secrets that a server's entry names, and the server with them filled in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any
from urllib.parse import quote

from toolway.config.references import Reference, Unresolved
from toolway.config.spec import OAuth, OpenApi, Server
from toolway.errors import ConfigError

Values = Mapping[Reference, str]


def references(server: Server) -> tuple[Reference, ...]:
    """What must be fetched before the server can be started, each once."""
    return tuple(dict.fromkeys(found for text in _texts(server) for found in text.references))


def filled(server: Server, values: Values) -> Server:
    """The server with its references filled in. Raises `ConfigError`, which repeats no value, or `KeyError`."""
    if not references(server):
        return server
    try:
        return replace(
            server,
            env={name: _fill(text, values, _in_env(name)) for name, text in server.env.items()},
            headers={name: _fill(text, values, _in_header(name)) for name, text in server.headers.items()},
            url=server.url and _fill(server.url, values, _in_url),
            auth=server.auth and _auth(server.auth, values),
            openapi=server.openapi and _openapi(server.openapi, values),
        )
    except ConfigError as exc:
        # What checks the whole server may repeat a value that is a secret now.
        raise exc if exc.code == _UNFIT else ConfigError(exc.what, fix=exc.fix, code=exc.code) from None


def _auth(auth: OAuth, values: Values) -> OAuth:
    texts = {each.name: getattr(auth, each.name) for each in fields(auth)}
    new: dict[str, Any] = {k: _fill(v, values, str) for k, v in texts.items() if isinstance(v, Unresolved)}
    return replace(auth, **new)


def _openapi(openapi: OpenApi, values: Values) -> OpenApi:
    return replace(
        openapi,
        url=openapi.url and _fill(openapi.url, values, _in_url),
        headers={name: _fill(text, values, _in_header(name)) for name, text in openapi.headers.items()},
        credentials=tuple(
            replace(each, value=_fill(each.value, values, _in_header(each.name or "security")))
            for each in openapi.credentials
        ),
    )


def _texts(server: Server) -> Iterator[Unresolved]:
    auth = [getattr(server.auth, each.name) for each in fields(server.auth)] if server.auth is not None else []
    api: list[str | None] = []
    if server.openapi is not None:
        keys = [each.value for each in server.openapi.credentials]
        api = [server.openapi.url, *server.openapi.headers.values(), *keys]
    for text in (*server.env.values(), *server.headers.values(), server.url, *auth, *api):
        if isinstance(text, Unresolved):
            yield text


def _fill(text: str, values: Values, fit: Callable[[str], str]) -> str:
    if not isinstance(text, Unresolved):
        return text
    return "".join(part if isinstance(part, str) else fit(values[part]) for part in text.parts)


# Each place has its grammar; a value that would end it there and begin something else is not put in.

_UNFIT = "E-SECRETS-VALUE"


def _in_env(name: str) -> Callable[[str], str]:
    return lambda value: _without("\0", value, f"env.{name}")


def _in_header(name: str) -> Callable[[str], str]:
    return lambda value: _without("\r\n\0", value, f"headers.{name}")


def _in_url(value: str) -> str:
    return quote(value, safe="")


def _without(refused: str, value: str, where: str) -> str:
    if any(character in value for character in refused):
        raise ConfigError(
            f"the secret for {where} has a line break or a NUL in it",
            evidence="it cannot be passed on so",
            fix="set it again, as one line",
            code=_UNFIT,
        )
    return value
