"""Server entries with the key `openapi`: how they are read, added, reviewed, and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from toolway.config.schema import Server
from toolway.part_api.server_transport import ServerTransport
from toolway.parts.openapi.entry import parse_openapi
from toolway.parts.openapi.settings import OpenApi

if TYPE_CHECKING:
    from toolway.config.field_reader import FieldReader
    from toolway.upstream.transport import Transport, TransportServices

_HTTP_URL: Final = re.compile(r"https?://", re.IGNORECASE)
_DOCUMENT: Final = re.compile(rb'\s*\{\s*"(?:openapi|swagger)"\s*:')  # its beginning, in JSON
_HARMLESS_SECURITY_KEYS: Final = frozenset({"type", "in", "name", "scheme", "username"})  # of a typed `security`


class ApiServers(ServerTransport):
    """HTTP APIs that an OpenAPI or Swagger document describes."""

    kind = "openapi"
    title = "HTTP APIs"
    error_code = "E-CONFIG-OPENAPI"
    file_keys = ("file",)
    url_keys = ("server", "url")
    start_check = "toolway.parts.openapi.doctor_check:check_start"
    passed_keys = ("headers.", "security.")

    def create(self, server: Server, services: TransportServices) -> Transport:
        from toolway.parts.openapi.transport import OpenApiTransport

        return OpenApiTransport(server, services.spawner, services.environ, services.authorizer)

    def parse(self, given: Any, fields: FieldReader) -> tuple[OpenApi | None, str | None]:
        return parse_openapi(given, fields)

    def entry_from_source(self, source: str) -> tuple[str, Mapping[str, Any]]:
        if _HTTP_URL.match(source):
            return source, {"type": "openapi", "openapi": {"url": source}}
        file = Path(source).expanduser().absolute()
        return file.stem.removesuffix(".openapi"), {"type": "openapi", "openapi": {"file": str(file)}}

    def receiver_key(self, key: str) -> str:
        return "url" if key.startswith("headers.") else ""

    def is_credential(self, path: tuple[str, ...]) -> bool:
        return path[:1] == ("security",) and 2 <= len(path) <= 3 and path[-1] not in _HARMLESS_SECURITY_KEYS

    def entry_for_document(self, body: bytes, url: str) -> tuple[str, Mapping[str, Any]] | None:
        return ("an OpenAPI document", {"openapi": {"url": url}}) if _DOCUMENT.match(body) else None
