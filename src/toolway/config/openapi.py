"""The `openapi` of an entry → `OpenApi`.

    {"type": "openapi", "openapi": {"url": "https://api.example/v1.json", "security": {"api_key": "${keyring:pets}"}}}

`openapi` alone may be the address or the file. Values of `security` are never repeated in messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast, get_args

from toolway.config.expand import expand_home
from toolway.config.fields import KEY, Fields, shown, wrong
from toolway.config.references import Unresolved
from toolway.config.spec import Credential, CredentialPlace, OpenApi, Picks
from toolway.errors import ConfigError

TYPE: Final = "openapi"
_URL: Final = re.compile(r"https?://", re.IGNORECASE)
_HEADER: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_KINDS: Final = ("apiKey", "http", "oauth2")
_OAUTH: Final = ("oauth2", "oauth", "openIdConnect")


def read(fields: Fields, type_: str) -> tuple[OpenApi | None, str | None]:
    """What the entry says of the document, and the address of the API where it is said there. Raises `ConfigError`."""
    given = fields.rest.pop("openapi", None)
    if given is None:
        if type_ == TYPE:
            raise _bad("an API needs its document", 'add "openapi": {"url": "https://…/openapi.json"}')
        return None, None
    if type_ not in ("", TYPE):
        raise _bad(f'an entry with `openapi` is of type "{TYPE}"', f'set "type": "{TYPE}"')
    if isinstance(given, str):
        given = {"url" if _URL.match(given.strip()) else "file": given.strip()}
    if not isinstance(given, Mapping):
        raise wrong("openapi", "an object, an address or a file", given)
    inner = Fields(given, fields.variables)
    try:
        return _read(inner, fields)
    finally:
        fields.problems += inner.problems


def _read(inner: Fields, outer: Fields) -> tuple[OpenApi, str | None]:
    address = _server(inner)
    credentials = _security(inner, outer)
    file = inner.text("file")
    default = OpenApi(url="http://-")
    openapi = OpenApi(
        url=inner.text("url"),
        file=file and expand_home(file, inner.variables),
        document=_document(inner),
        headers=inner.text_map("headers"),
        include=_picks(inner, "include"),
        exclude=_picks(inner, "exclude"),
        credentials=credentials,
        key_header=_header_name(inner, "idempotencyHeader"),
        outputs=inner.flag("outputs", default.outputs),
        refresh=inner.seconds("refresh", default.refresh, zero=True),
    )
    for key in inner.rest:
        outer.warn(f"openapi.{shown(key)} is not known", evidence="it has no effect")
    return openapi, address


def _document(inner: Fields) -> Mapping[str, Any] | None:
    """The document itself, also as `schema`, in which variables are not filled in."""
    found = [inner.rest.pop(key) for key in ("document", "schema") if key in inner.rest]
    if len(found) > 1:
        raise _bad("the document is there twice, as document and as schema", "keep one")
    if found and not isinstance(found[0], Mapping):
        raise wrong("openapi.document", "an object", found[0])
    return found[0] if found else None


def _server(inner: Fields) -> str | None:
    """Where the API is: `server`, or the first of `servers`, in the words of the document or as an address."""
    given = inner.rest.pop("servers", None)
    server = inner.text("server")
    if given is None:
        return server
    first = given[0] if isinstance(given, list) and given else given
    url = first.get("url") if isinstance(first, Mapping) else first
    if server is not None or not isinstance(url, str):
        raise _bad("`servers` is a list with the address of the API", 'write "server": "https://api.example/v1"')
    return inner.expanded("openapi.servers", url)


def _picks(inner: Fields, key: str) -> Picks:
    given = inner.rest.pop(key, None)
    if given is None:
        return Picks()
    if not isinstance(given, Mapping):
        fix = f'write "{key}": {{"tags": ["pets"], "methods": ["get"]}}'
        raise ConfigError(f"openapi.{key} must be an object", fix=fix, code=KEY)
    kinds = Fields({key: [each] if isinstance(each, str) else each for key, each in given.items()}, inner.variables)
    picks = Picks(
        tags=kinds.texts("tags"),
        paths=kinds.texts("paths"),
        methods=kinds.texts("methods"),
        operations=(*kinds.texts("operations"), *kinds.texts("operationIds")),
    )
    if kinds.rest:  # a pattern that is not understood must not let through what it should keep out
        fix = "use tags, paths, methods and operations"
        raise ConfigError(f"openapi.{key}.{shown(next(iter(kinds.rest)))} is not known", fix=fix, code=KEY)
    return picks


def _header_name(inner: Fields, key: str) -> str | None:
    name = inner.text(key)
    if name is not None and not _HEADER.fullmatch(name):
        raise wrong(f"openapi.{key}", "the name of a header", name)
    return name


# -- security ---------------------------------------------------------------------------------------------------------


def _security(inner: Fields, outer: Fields) -> tuple[Credential, ...]:
    """One credential with its `type`, or one for each security scheme of the document that is to be used."""
    given = inner.rest.pop("security", None)
    if given is None or given == {}:
        return ()
    if not isinstance(given, Mapping):
        raise wrong("openapi.security", "an object", given)
    if given.get("type") not in (*_KINDS, *_OAUTH):
        named = Fields({"security": given}, inner.variables).text_map("security")
        return tuple(Credential(value, "scheme", name) for name, value in named.items())
    if given["type"] in _OAUTH:
        if outer.rest.get("auth") is not None:
            raise _bad("OAuth is said twice, in auth and in openapi.security", "keep one")
        outer.rest["auth"] = {**given, "type": "oauth"}
        return ()
    fields = Fields(given, inner.variables)
    credential = _typed(fields, fields.text("type") or "")
    if fields.rest:
        what = f"openapi.security.{shown(next(iter(fields.rest)))} is not known"
        raise _bad(what, "see the reference of the configuration")
    return (credential,)


def _typed(fields: Fields, type_: str) -> Credential:
    if type_ == "apiKey":
        fields = _unfolded(fields, "apiKey")
        place = fields.choice("in", get_args(CredentialPlace), "header")
        value, name = fields.text("value"), fields.text("name")
        if value is None or name is None or (place != "query" and not _HEADER.fullmatch(name)):
            raise _bad(
                "an apiKey needs a name and a value", '{"type": "apiKey", "in": "header", "name": …, "value": …}'
            )
        return Credential(value, "apiKey", name, cast(CredentialPlace, place))
    if type_ == "http":
        fields = _unfolded(fields, "http")
        if fields.choice("scheme", ("bearer", "basic"), "bearer") == "basic":
            user, password = fields.text("username"), fields.text("password")
            if user is None or password is None or ":" in user:
                raise _bad("basic needs a username and a password", "add both; a username has no colon")
            return Credential(_joined(user, ":", password), "basic")
        token = fields.text("token") or fields.text("credentials")
        if token is None:
            raise _bad("bearer needs a token", 'write {"type": "http", "scheme": "bearer", "token": "${keyring:NAME}"}')
        return Credential(token, "bearer")
    raise ConfigError(f"openapi.security.type must be one of {', '.join(_KINDS)}", code="E-CONFIG-OPENAPI")


def _unfolded(fields: Fields, key: str) -> Fields:
    """Some write the parts one level deeper, under the name of the type."""
    deeper = fields.rest.pop(key, None)
    if isinstance(deeper, Mapping):
        fields.rest.update(deeper)
    return fields


def _joined(*parts: str) -> str:
    """One text of several, in which references to secrets stay."""
    if not any(isinstance(part, Unresolved) for part in parts):
        return "".join(parts)
    return Unresolved(tuple(p for part in parts for p in (part.parts if isinstance(part, Unresolved) else (part,))))


def _bad(what: str, fix: str) -> ConfigError:
    return ConfigError(what, fix=fix, code="E-CONFIG-OPENAPI")
