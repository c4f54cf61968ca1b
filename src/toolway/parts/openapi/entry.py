"""Parser for the `openapi` key of a server entry → `OpenApi`.

    {"type": "openapi", "openapi": {"url": "https://api.example/v1.json", "security": {"api_key": "${keyring:pets}"}}}

`openapi` may also be just the URL or the file path. Messages never repeat values of `security`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast, get_args

from toolway.config.field_reader import CONFIG_KEY_CODE, FieldReader, field_error, shorten_key
from toolway.config.secret_refs import SecretTemplate
from toolway.config.variables import expand_home
from toolway.errors import ConfigError
from toolway.parts.openapi.settings import ApiCredential, CredentialLocation, OpenApi, OpenApiFilter

_URL_START: Final = re.compile(r"https?://", re.IGNORECASE)
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CREDENTIAL_TYPES: Final = ("apiKey", "http", "oauth2")
_OAUTH_TYPES: Final = ("oauth2", "oauth", "openIdConnect")


def parse_openapi(given: Any, fields: FieldReader) -> tuple[OpenApi, str | None]:
    """Return the API settings and the base URL, or None without one, from the value of `openapi` in an entry.

    `fields` has the rest of the entry. Raises `ConfigError` if a setting is invalid.
    """
    if given is None:
        raise _openapi_error("an openapi server needs a document", 'add "openapi": {"url": "https://…/openapi.json"}')
    if isinstance(given, str):
        given = {"url" if _URL_START.match(given.strip()) else "file": given.strip()}
    if not isinstance(given, Mapping):
        raise field_error("openapi", "an object, a URL or a file path", given)
    inner = FieldReader(given, fields.variables)
    try:
        return _parse_fields(inner, fields)
    finally:
        fields.issues += inner.issues


def _parse_fields(inner: FieldReader, outer: FieldReader) -> tuple[OpenApi, str | None]:
    base_url = _parse_base_url(inner)
    credentials = _parse_credentials(inner, outer)
    file = inner.get_text("file")
    default = OpenApi(url="http://-")
    openapi = OpenApi(
        url=inner.get_text("url"),
        file=file and expand_home(file, inner.variables),
        document=_parse_document(inner),
        headers=inner.get_text_map("headers"),
        include=_parse_filter(inner, "include"),
        exclude=_parse_filter(inner, "exclude"),
        credentials=credentials,
        idempotency_header=_parse_header_name(inner, "idempotencyHeader"),
        outputs=inner.get_bool("outputs", default.outputs),
        refresh=inner.get_duration("refresh", default.refresh, allow_zero=True),
    )
    inner.remaining.pop("version", None)  # the document itself says it
    for key in inner.remaining:
        outer.warn(f"unknown key openapi.{shorten_key(key)}", detail="it has no effect")
    return openapi, base_url


def _parse_document(inner: FieldReader) -> Mapping[str, Any] | None:
    """Return the inline OpenAPI document under `document` or `schema`, or None.

    Variables in the document are not expanded. Raises `ConfigError` if both keys are given.
    """
    found = [inner.remaining.pop(key) for key in ("document", "schema") if key in inner.remaining]
    if len(found) > 1:
        raise _openapi_error("the document is given twice, as document and as schema", "keep one")
    if found and not isinstance(found[0], Mapping):
        raise field_error("openapi.document", "an object", found[0])
    return found[0] if found else None


def _parse_base_url(inner: FieldReader) -> str | None:
    """Return the API's base URL from `server`, or from the first of `servers` (an object or a URL).

    Return None if both are missing. Raises `ConfigError` if both are given.
    """
    given = inner.remaining.pop("servers", None)
    server = inner.get_text("server")
    if given is None:
        return server
    first = given[0] if isinstance(given, list) and given else given
    url = first.get("url") if isinstance(first, Mapping) else first
    if server is not None or not isinstance(url, str):
        raise _openapi_error(
            "`servers` must be a list with the URL of the API", 'use "server": "https://api.example/v1"'
        )
    return inner.expand_text("openapi.servers", url)


def _parse_filter(inner: FieldReader, key: str) -> OpenApiFilter:
    given = inner.remaining.pop(key, None)
    if given is None:
        return OpenApiFilter()
    if not isinstance(given, Mapping):
        hint = f'use "{key}": {{"tags": ["pets"], "methods": ["get"]}}'
        raise ConfigError(f"openapi.{key} must be an object", hint=hint, code=CONFIG_KEY_CODE)
    kinds = FieldReader(
        {key: [each] if isinstance(each, str) else each for key, each in given.items()}, inner.variables
    )
    operation_filter = OpenApiFilter(
        tags=kinds.get_texts("tags"),
        paths=kinds.get_texts("paths"),
        methods=kinds.get_texts("methods"),
        operations=(*kinds.get_texts("operations"), *kinds.get_texts("operationIds")),
    )
    if kinds.remaining:  # ignoring an unknown filter could publish operations that it should exclude
        hint = "use tags, paths, methods and operations"
        raise ConfigError(
            f"unknown key openapi.{key}.{shorten_key(next(iter(kinds.remaining)))}", hint=hint, code=CONFIG_KEY_CODE
        )
    return operation_filter


def _parse_header_name(inner: FieldReader, key: str) -> str | None:
    name = inner.get_text(key)
    if name is not None and not _HEADER_NAME.fullmatch(name):
        raise field_error(f"openapi.{key}", "a header name", name)
    return name


# -- security ---------------------------------------------------------------------------------------------------------


def _parse_credentials(inner: FieldReader, outer: FieldReader) -> tuple[ApiCredential, ...]:
    """Return the API credentials in `security`.

    `security` has either one typed credential, or one value per security scheme in the OpenAPI document. OAuth settings
    are moved to `auth` in the server entry (`outer`) instead.
    """
    given = inner.remaining.pop("security", None)
    if given is None or given == {}:
        return ()
    if not isinstance(given, Mapping):
        raise field_error("openapi.security", "an object", given)
    if given.get("type") not in (*_CREDENTIAL_TYPES, *_OAUTH_TYPES):
        named = FieldReader({"security": given}, inner.variables).get_text_map("security")
        return tuple(ApiCredential(value, "scheme", name) for name, value in named.items())
    if given["type"] in _OAUTH_TYPES:
        if outer.remaining.get("auth") is not None:
            raise _openapi_error("OAuth is configured twice, in auth and in openapi.security", "keep one")
        outer.remaining["auth"] = {**given, "type": "oauth"}
        return ()
    fields = FieldReader(given, inner.variables)
    credential = _parse_typed_credential(fields, fields.get_text("type") or "")
    if fields.remaining:
        message = f"unknown key openapi.security.{shorten_key(next(iter(fields.remaining)))}"
        raise _openapi_error(message, "see the configuration reference")
    return (credential,)


def _parse_typed_credential(fields: FieldReader, type_: str) -> ApiCredential:
    if type_ == "apiKey":
        fields = _flatten_nested(fields, "apiKey")
        location = fields.get_choice("in", get_args(CredentialLocation), "header")
        value, name = fields.get_text("value"), fields.get_text("name")
        if value is None or name is None or (location != "query" and not _HEADER_NAME.fullmatch(name)):
            raise _openapi_error(
                "an apiKey needs a name and a value", '{"type": "apiKey", "in": "header", "name": …, "value": …}'
            )
        return ApiCredential(value, "apiKey", name, cast(CredentialLocation, location))
    if type_ == "http":
        fields = _flatten_nested(fields, "http")
        if fields.get_choice("scheme", ("bearer", "basic"), "bearer") == "basic":
            user, password = fields.get_text("username"), fields.get_text("password")
            if user is None or password is None or ":" in user:
                raise _openapi_error(
                    "basic needs a username and a password", "add both; a username must not contain a colon"
                )
            return ApiCredential(_join_texts(user, ":", password), "basic")
        token = fields.get_text("token") or fields.get_text("credentials")
        if token is None:
            raise _openapi_error(
                "bearer needs a token", 'use {"type": "http", "scheme": "bearer", "token": "${keyring:NAME}"}'
            )
        return ApiCredential(token, "bearer")
    raise ConfigError(f"openapi.security.type must be one of {', '.join(_CREDENTIAL_TYPES)}", code="E-CONFIG-OPENAPI")


def _flatten_nested(fields: FieldReader, key: str) -> FieldReader:
    """Move the keys nested under `key` one level up, because some MCP hosts nest credential settings."""
    deeper = fields.remaining.pop(key, None)
    if isinstance(deeper, Mapping):
        fields.remaining.update(deeper)
    return fields


def _join_texts(*parts: str) -> str:
    """Concatenate config strings. Secret references in them stay unresolved."""
    if not any(isinstance(part, SecretTemplate) for part in parts):
        return "".join(parts)
    return SecretTemplate(
        tuple(p for part in parts for p in (part.parts if isinstance(part, SecretTemplate) else (part,)))
    )


def _openapi_error(message: str, hint: str) -> ConfigError:
    return ConfigError(message, hint=hint, code="E-CONFIG-OPENAPI")
