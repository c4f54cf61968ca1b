"""Converts an API operation's parameters and request body to tool arguments."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from toolway.parts.openapi.document import schema_keywords, swagger2
from toolway.parts.openapi.document.models import BodyContent, FormPart, Parameter, ParameterLocation, RequestBody
from toolway.parts.openapi.document.parser import RefResolver, UnresolvedRef
from toolway.parts.openapi.document.schema_converter import ConvertedSchema, SchemaConverter, fit_size
from toolway.parts.openapi.document.tool_builder import ArgumentNames
from toolway.types import Json

# -- parameters --------------------------------------------------------------------------------------------------------

MAX_PARAMETER_SCHEMA_BYTES: Final = 2_000  # bytes of JSON; there may be many parameters
# Parameters of earlier locations get their name without a suffix.
PARAMETER_LOCATIONS: Final[tuple[ParameterLocation, ...]] = ("path", "query", "header", "cookie")
_ALLOWED_STYLES: Final[dict[str, tuple[str, ...]]] = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "tabDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
_HTTP_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_PATH_VARIABLE: Final = re.compile(r"\{([^{}/]{1,200})\}")

# OpenAPI itself forbids the first three in a document. The rest would change the destination, the framing or the
# apparent sender of a request.
_FORBIDDEN_HEADERS: Final = frozenset(
    {"accept", "content-type", "authorization", "host", "content-length", "transfer-encoding", "connection", "te"}
    | {"trailer", "upgrade", "keep-alive", "expect", "cookie", "set-cookie", "proxy-authorization", "proxy-connection"}
    | {"accept-encoding", "content-encoding", "forwarded", "via", "http2-settings"}
)


def path_variables(path: str) -> list[str]:
    """Return the variable names of a path template such as `/users/{id}`, in order."""
    return list(dict.fromkeys(_PATH_VARIABLE.findall(path)))


def collect_parameters(path_parameters: Any, operation_parameters: Any, refs: RefResolver, dialect: str) -> list[Json]:
    """Collect an operation's raw parameters. Its own parameters override the path's.

    Swagger 2.0 parameters are converted to OpenAPI 3. Raises `UnresolvedRef` if a parameter has no name, no location,
    or a `$ref` that cannot be resolved.
    """
    found: dict[tuple[str, str], Json] = {}
    for each in [*_list_or_empty(path_parameters), *_list_or_empty(operation_parameters)]:
        raw = refs.resolve_object(each)
        if not isinstance(raw.get("name"), str) or not isinstance(raw.get("in"), str):
            raise UnresolvedRef(f"a parameter has no name or location: {raw!r}"[:200])
        name = raw["name"].lower() if raw["in"] == "header" else raw["name"]
        found[raw["in"], name] = raw
    if dialect != "2.0":
        return list(found.values())
    return [raw if raw["in"] in ("body", "formData") else swagger2.convert_parameter(raw) for raw in found.values()]


class ParameterReader:
    """Reads one API operation's parameters, and names their tool arguments."""

    def __init__(
        self,
        schemas: SchemaConverter,
        refs: RefResolver,
        arguments: ArgumentNames,
        user_supplied: frozenset[tuple[str, str]],
    ) -> None:
        self._schemas = schemas
        self._refs = refs
        self._arguments = arguments
        self._user_supplied = user_supplied  # (location, name); an empty location means any
        self._supplied_headers = frozenset(
            _fold_header(name) for location, name in user_supplied if location in ("", "header")
        )

    def read_parameters(self, raw_parameters: list[Json], path: str) -> list[tuple[Parameter, ConvertedSchema]]:
        """Return the parameters ordered by location, each with the schema of its argument.

        Raises `UnresolvedRef` if a required parameter has an unknown location.
        """
        path_names = path_variables(path)
        missing = set(path_names) - {raw["name"] for raw in raw_parameters if raw["in"] == "path"}
        raw_parameters = raw_parameters + [
            {"name": name, "in": "path", "schema": {"type": "string"}} for name in path_names if name in missing
        ]
        found: list[tuple[Parameter, ConvertedSchema]] = []
        for location in PARAMETER_LOCATIONS:
            usable = [
                raw for raw in raw_parameters if raw["in"] == location and _is_usable(location, raw["name"], path_names)
            ]
            found.extend(self._read_parameter(raw, location) for raw in usable)
        unknown = [
            raw
            for raw in raw_parameters
            if raw["in"] not in (*PARAMETER_LOCATIONS, "body", "formData") and raw.get("required") is True
        ]
        if unknown:
            raise UnresolvedRef(
                f"the parameter {unknown[0]['name'][:80]!r} has the unknown location {unknown[0]['in'][:40]!r}"
            )
        return found

    def _read_parameter(self, raw: Json, location: ParameterLocation) -> tuple[Parameter, ConvertedSchema]:
        name = raw["name"]
        key = name.lower() if location == "header" else name
        schema, content_type = self._raw_schema(raw)
        style = raw.get("style") if raw.get("style") in _ALLOWED_STYLES[location] else _ALLOWED_STYLES[location][0]
        explode = raw.get("explode")
        parameter = Parameter(
            argument=self._arguments.reserve(name, location),
            name=name,
            location=location,
            required=location == "path" or raw.get("required") is True,
            style=str(style),
            explode=explode if isinstance(explode, bool) else style == "form",
            allow_reserved=raw.get("allowReserved") is True and location == "query",
            allow_empty=raw.get("allowEmptyValue") is True and location == "query",
            content_type=content_type,
            user_supplied=not self._user_supplied.isdisjoint({("", name), ("", key), (location, key)})
            or (location == "header" and _fold_header(name) in self._supplied_headers),
        )
        return parameter, self._add_description(
            raw, fit_size(self._schemas.convert(schema), MAX_PARAMETER_SCHEMA_BYTES)
        )

    def _raw_schema(self, raw: Json) -> tuple[Any, str]:
        content = raw.get("content")
        if isinstance(content, dict) and content:
            media, entry = next(iter(content.items()))
            entry = self._refs.resolve_object(entry)
            return entry.get("schema", {}), str(media)
        return raw.get("schema", {}), ""

    def _add_description(self, raw: Json, converted: ConvertedSchema) -> ConvertedSchema:
        text = schema_keywords.clean_text(raw.get("description"), schema_keywords.MAX_FIELD_TEXT)
        extra: Json = {"description": text} if text else {}
        if raw.get("deprecated") is True:
            extra["deprecated"] = True
        if not extra:
            return converted
        return ConvertedSchema(
            {**converted.schema, **extra}, converted.definition_names, converted.size_bytes + len(text) + 20
        )


def _fold_header(name: str) -> str:
    """Return a header name as CGI and WSGI servers compare it: without case, and with `_` equal to `-`."""
    return name.lower().replace("_", "-")


def _is_usable(location: ParameterLocation, name: str, path_names: list[str]) -> bool:
    if location == "path":
        return name in path_names
    if location == "header":
        return _fold_header(name) not in _FORBIDDEN_HEADERS and _HTTP_TOKEN.fullmatch(name) is not None
    return location == "query" or _HTTP_TOKEN.fullmatch(name) is not None


def _list_or_empty(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# -- request bodies ----------------------------------------------------------------------------------------------------

_MAX_MEDIA_TYPES: Final = 10  # media types of one body


def swagger_body(parameters: list[Json], consumes: list[str]) -> Json | None:
    """Return the request body of a Swagger 2.0 operation in OpenAPI 3 form, or None."""
    body_parameter = next((raw for raw in parameters if raw["in"] == "body"), None)
    if body_parameter is not None:
        return swagger2.convert_body(body_parameter, consumes)
    fields = [raw for raw in parameters if raw["in"] == "formData"]
    return swagger2.convert_form(fields, consumes) if fields else None


@dataclass(frozen=True, slots=True)
class _BodyVariants:
    """A request body as the OpenAPI document declares it: its media types, and their distinct schemas."""

    raw: Json
    contents: tuple[BodyContent, ...]
    schemas: list[tuple[ConvertedSchema, SchemaConverter]]


class BodyReader:
    """Reads the request bodies in an OpenAPI document. A body that operations share is read once."""

    def __init__(self, inputs: SchemaConverter, forms: SchemaConverter, refs: RefResolver) -> None:
        self._inputs = inputs
        self._forms = forms
        self._refs = refs
        self._cache: dict[int, _BodyVariants] = {}  # by id() of the raw body, which the value keeps alive

    def read_body(
        self, raw: Any, arguments: ArgumentNames
    ) -> tuple[RequestBody, list[tuple[ConvertedSchema, SchemaConverter]]] | None:
        """Return a request body and its media types' schemas, or None if none of its media types is usable.

        Raises `UnresolvedRef` if a `$ref` in the body cannot be resolved.
        """
        raw = self._refs.resolve_object(raw)
        variants = self._cache.get(id(raw))
        if variants is None:
            variants = self._cache[id(raw)] = self._read_variants(raw)
        if not variants.contents:
            return None
        body = RequestBody(
            argument=arguments.reserve("body", "body"),
            contents=variants.contents,
            required=raw.get("required") is True,
            type_argument=arguments.reserve("contentType", "body") if len(variants.contents) > 1 else "",
            description=schema_keywords.clean_text(raw.get("description"), schema_keywords.MAX_FIELD_TEXT),
        )
        return body, variants.schemas

    def _read_variants(self, raw: Json) -> _BodyVariants:
        raw_content = raw.get("content")
        content: Json = raw_content if isinstance(raw_content, dict) else {}
        contents: list[BodyContent] = []
        schemas: list[tuple[ConvertedSchema, SchemaConverter]] = []
        for name in _ordered_media_types(content):
            entry = self._refs.resolve_object(content[name]) if content[name] is not None else {}
            body_content, schema, converter = self._read_content(name, entry)
            if all(body_content.media_type != known.media_type for known in contents):
                contents.append(body_content)
            if all(schema.schema != known.schema for known, _ in schemas):
                schemas.append((schema, converter))
        return _BodyVariants(raw, tuple(contents), schemas)

    def _read_content(self, name: str, entry: Json) -> tuple[BodyContent, ConvertedSchema, SchemaConverter]:
        node, kind = entry.get("schema", {}), media_kind(name)
        parts = self._read_parts(node, entry.get("encoding")) if kind in ("form", "multipart") else {}
        converter = self._forms if any(part.is_file for part in parts.values()) else self._inputs
        if kind in ("text", "xml"):
            description = schema_keywords.describe_schema(node) if isinstance(node, dict) else {}
            schema = ConvertedSchema(
                {"type": "string", **(description or {"description": f"The text of the {strip_params(name)}."})}, (), 60
            )
        elif kind == "bytes":
            schema = ConvertedSchema(schema_keywords.FILE_SCHEMA, (), 300)
        else:
            schema = converter.inline_reference(converter.convert(node))
        return BodyContent(concrete_type(name), parts), schema, converter

    def _read_parts(self, node: Any, encoding: Any) -> dict[str, FormPart]:
        """Return the encoding of the form fields that are files or have an `encoding` entry, by field name."""
        found: dict[str, FormPart] = {}
        for name, field in self._form_fields(node).items():
            if self._is_file(field):
                found[name] = FormPart(content_type="application/octet-stream", is_file=True)
        for name, raw_part in encoding.items() if isinstance(encoding, dict) else ():
            if isinstance(raw_part, dict):
                found[name] = _read_part(raw_part, is_file=name in found)
        return found

    def _form_fields(self, node: Any) -> Json:
        node = self._resolve_or_none(node)
        if not isinstance(node, dict):
            return {}
        fields = dict(node["properties"]) if isinstance(node.get("properties"), dict) else {}
        for keyword in ("allOf", "anyOf", "oneOf"):
            for branch in node[keyword] if isinstance(node.get(keyword), list) else ():
                inner = self._resolve_or_none(branch)
                if isinstance(inner, dict) and isinstance(inner.get("properties"), dict):
                    fields |= inner["properties"]
        return fields

    def _is_file(self, field: Any) -> bool:
        field = self._resolve_or_none(field)
        if not isinstance(field, dict):
            return False
        inner = [field.get("items"), *(field.get("anyOf") or ()), *(field.get("oneOf") or ())]
        return schema_keywords.is_file_schema(field) or any(
            schema_keywords.is_file_schema(self._resolve_or_none(each)) for each in inner
        )

    def _resolve_or_none(self, node: Any) -> Any:
        try:
            return self._refs.follow(node)
        except UnresolvedRef:
            return None


def _ordered_media_types(content: Json) -> list[str]:
    """Return a request body's media types, best first.

    XML is left out if there is a better type, because a model would have to write the XML as text.
    """
    named = sorted((name for name in content if is_header_safe(name)), key=media_rank)
    return [name for name in named[:_MAX_MEDIA_TYPES] if media_kind(name) != "xml" or media_kind(named[0]) == "xml"]


def _read_part(raw_part: Json, *, is_file: bool) -> FormPart:
    types = raw_part.get("contentType")
    first = types.partition(",")[0].strip() if isinstance(types, str) else ""
    style = (
        raw_part.get("style")
        if raw_part.get("style") in ("form", "spaceDelimited", "pipeDelimited", "tabDelimited", "deepObject")
        else ""
    )
    explode = raw_part.get("explode")
    return FormPart(
        content_type=first if is_header_safe(first) and "*" not in first else "application/octet-stream" * is_file,
        style=str(style),
        explode=explode if isinstance(explode, bool) else style in ("form", ""),
        allow_reserved=raw_part.get("allowReserved") is True,
        is_file=is_file,
    )


# -- media types, grouped by their encoding ----------------------------------------------------------------------------

MediaKind: TypeAlias = Literal["json", "form", "multipart", "xml", "text", "bytes"]

_KIND_ORDER: Final[tuple[MediaKind, ...]] = ("json", "form", "multipart", "xml", "text", "bytes")
_TEXT_TYPES: Final = frozenset(
    {"application/x-ndjson", "application/jsonl", "application/graphql", "application/sdp", "application/javascript"}
    | {"application/yaml", "application/x-yaml", "application/sql", "application/toml"}
)


def strip_params(media: str) -> str:
    """Return a media type without parameters: `text/plain; charset=utf-8` → `text/plain`."""
    return media.partition(";")[0].strip().lower()


def media_kind(media: str) -> MediaKind:
    """Return the encoding group of a media type: json, form, multipart, xml, text or bytes."""
    name = strip_params(media)
    if name in ("application/json", "text/json", "*/*", "application/*", "") or name.endswith("+json"):
        return "json"
    if name == "application/x-www-form-urlencoded":
        return "form"
    if name.startswith("multipart/"):
        return "multipart"
    if name in ("application/xml", "text/xml") or name.endswith("+xml"):
        return "xml"
    if name.startswith("text/") or name in _TEXT_TYPES or name.endswith("+yaml"):
        return "text"
    return "bytes"


def concrete_type(media: str) -> str:
    """Return a concrete media type for a range such as `text/*`; any other type stays unchanged."""
    ranges = {"json": "application/json", "text": "text/plain", "multipart": "multipart/form-data"}
    return ranges.get(media_kind(media), media) if "*" in strip_params(media) else media


def media_rank(media: str) -> int:
    """Return a media type's rank, for picking a request body's type if the caller does not choose one.

    Lower is better.
    """
    return _KIND_ORDER.index(media_kind(media))


def is_header_safe(media: str) -> bool:
    """Return True if a media type from the document is safe in an HTTP header.

    It must be short, printable ASCII and contain a slash, because a document may contain any text.
    """
    return 0 < len(media) <= 200 and media.isascii() and media.isprintable() and "/" in media
