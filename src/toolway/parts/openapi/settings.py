"""Settings of an HTTP API in a server entry: its document, the operations to use, and credentials.

The comments of the fields are the reference documentation (`docs/reference/config.md`), as in `config/schema.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, ClassVar, Final, Literal

import msgspec

from toolway.config.schema import Server, describe_scheme
from toolway.config.secret_refs import begins_with_variable
from toolway.errors import ConfigError
from toolway.part_api.server_transport import EntryString, RestrictionLost, TransportSettings

CredentialKind = Literal["scheme", "apiKey", "bearer", "basic"]
CredentialLocation = Literal["header", "query", "cookie"]

IDEMPOTENCY_META_KEY: Final = "toolway/idempotencyKey"  # `_meta` key that carries an idempotency key to the transport


class OpenApiFilter(msgspec.Struct, frozen=True):
    """Patterns that select operations of an OpenAPI document. `*` matches anything."""

    tags: tuple[str, ...] = ()  # operations with one of these tags
    paths: tuple[str, ...] = ()  # operations with one of these paths in the document, such as /pets/*
    methods: tuple[str, ...] = ()  # operations with one of these methods, such as get
    operations: tuple[str, ...] = ()  # operations with one of these operationIds


@dataclass(frozen=True, slots=True)
class ApiCredential:
    """A credential for an HTTP API, and its location in a request.

    It is only sent to the API's origin.
    """

    value: str = field(repr=False)  # a key, a token, or user:password
    kind: CredentialKind = "scheme"  # scheme: the document defines where it goes; other kinds: sent with every request
    name: str = ""  # name of the document's security scheme, or of the header, query parameter or cookie of an apiKey
    location: CredentialLocation = "header"  # where an apiKey is sent


@dataclass(frozen=True, slots=True)
class OpenApi(TransportSettings):
    """An HTTP API described by an OpenAPI or Swagger document.

    Exactly one of `url`, `file`, and `document` gives the document.
    """

    kind: ClassVar[str] = "openapi"
    takes_url: ClassVar[bool] = True  # it overrides the `servers` of the document
    is_stateless: ClassVar[bool] = True
    ignores_null: ClassVar[bool] = True

    url: str | None = None  # URL of the document
    file: str | None = None  # path of the document
    document: Mapping[str, Any] | None = field(default=None, repr=False)  # the document itself
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # sent when fetching the document
    include: OpenApiFilter = field(default_factory=OpenApiFilter)  # only operations that match every kind of pattern
    exclude: OpenApiFilter = field(default_factory=OpenApiFilter)  # leave out operations that match a pattern
    credentials: tuple[ApiCredential, ...] = ()  # `security` in files
    idempotency_header: str | None = None  # header in which the API accepts idempotency keys
    outputs: bool = True  # publish response schemas as output schemas; false if responses do not match them
    refresh: float = 3600.0  # seconds until the document is fetched again; 0 = never

    def __post_init__(self) -> None:
        given = [k for k in ("url", "file", "document") if getattr(self, k) is not None]
        if len(given) != 1:
            raise ConfigError(
                "openapi needs exactly one of url, file or document",
                detail=f"found {' and '.join(given) or 'none'}",
                hint='use "openapi": {"url": "https://…/openapi.json"}',
                code="E-CONFIG-OPENAPI",
            )
        is_unset = begins_with_variable(self.url)
        if self.url is not None and not is_unset and not re.match(r"https?://[^/\s]", self.url):
            message = "the URL of an OpenAPI document must begin with http:// or https://"
            raise ConfigError(
                message, detail=describe_scheme(self.url), hint='use "file" for a file', code="E-CONFIG-OPENAPI"
            )

    @property
    def location(self) -> str:
        return self.url or self.file or "the document in its entry"

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.url,) if self.url is not None else ()

    @property
    def file_key(self) -> str:
        return "openapi.file" if self.file is not None else ""

    @property
    def token_key(self) -> str:
        return "openapi.security" if self.credentials else ""

    @property
    def idempotency_meta_key(self) -> str | None:
        return IDEMPOTENCY_META_KEY if self.idempotency_header else None  # the transport reads it and sets the header

    def check(self, server: Server) -> None:
        if server.url is not None and server.url.startswith("ws"):
            raise ConfigError("the url of an HTTP API must begin with http:// or https://", code="E-CONFIG-URL")

    def fingerprint(self) -> tuple[Any, ...]:
        inline = sha256(json.dumps(self.document, default=str).encode()).hexdigest() if self.document else ""
        return (self.url, self.file, inline, repr((self.include, self.exclude, self.outputs)))

    def strings(self) -> Iterator[EntryString]:
        if self.url is not None:
            yield EntryString("url", "url", self.url)
        yield from (EntryString("header", name, value) for name, value in self.headers.items())
        yield from (EntryString("credential", each.name or "security", each.value) for each in self.credentials)

    def with_strings(self, change: Callable[[EntryString], str]) -> OpenApi:
        return replace(
            self,
            url=self.url and change(EntryString("url", "url", self.url)),
            headers={name: change(EntryString("header", name, value)) for name, value in self.headers.items()},
            credentials=tuple(
                replace(each, value=change(EntryString("credential", each.name or "security", each.value)))
                for each in self.credentials
            ),
        )

    def keep_restrictions(self, configured: TransportSettings) -> TransportSettings:
        if not isinstance(configured, OpenApi):
            return self
        kept, own = ((each.include, each.exclude) for each in (configured, self))
        if kept != (OpenApiFilter(), OpenApiFilter()) != own != kept:
            raise RestrictionLost("openapi.include and openapi.exclude")
        return replace(self, include=kept[0], exclude=kept[1])


def settings_of(server: Server) -> OpenApi:
    """Return the HTTP API settings in a server entry."""
    assert isinstance(server.transport_settings, OpenApi)
    return server.transport_settings
