"""HTTP headers of a modern MCP request (2026-07-28) that repeat parts of its body, and the required `_meta`.

`tests/protocol/test_headers.py` compares all decisions with the SDK's, which this module does not import: see
`constants.py`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from toolway.protocol.constants import (
    CLIENT_CAPABILITIES_META_KEY,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PARAM_HEADER_PREFIX,
    MCP_PROTOCOL_VERSION_HEADER,
    MODERN_PROTOCOL_VERSIONS,
    NAME_BEARING_METHODS,
    PROTOCOL_VERSION_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
    X_MCP_HEADER_KEY,
)
from toolway.types import Json

_TASK_METHODS: Final = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})
_PREFIX: Final = "=?base64?"
_SUFFIX: Final = "?="
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110, section 5.6.2
_DECIMAL: Final = re.compile(r"(-?[0-9]+)(?:\.([0-9]+))?")
_HEADER_TYPES: Final = ("string", "integer", "boolean")  # a number has no portable text

# Keywords of JSON Schema whose value is a schema, a list of schemas, or an object of schemas.
_SCHEMA_KEYWORDS: Final = frozenset(
    {
        "items",
        "contains",
        "unevaluatedItems",
        "additionalProperties",
        "propertyNames",
        "unevaluatedProperties",
        "not",
        "if",
        "then",
        "else",
        "contentSchema",
    }
)
_SCHEMA_LIST_KEYWORDS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMA_MAP_KEYWORDS: Final = frozenset({"patternProperties", "dependentSchemas", "$defs", "definitions"})


class RequestError(NamedTuple):
    """JSON-RPC error for a request whose headers or `_meta` are not valid."""

    code: int
    message: str
    data: Any = None


# -- requests that we send --------------------------------------------------------------------------------------------


def request_headers(version: str, method: str, params: Json, input_schema: Any = None) -> dict[str, str]:
    """Return the HTTP headers that repeat parts of a modern MCP request (2026-07-28).

    `input_schema` is the schema of the called tool; it names the arguments that are repeated in headers.
    """
    headers = {MCP_PROTOCOL_VERSION_HEADER: version, MCP_METHOD_HEADER: method}
    key = "taskId" if method in _TASK_METHODS else NAME_BEARING_METHODS.get(method)
    name = params.get(key) if key else None
    if isinstance(name, str):
        headers[MCP_NAME_HEADER] = encode_header_value(name)
    arguments = params.get("arguments")
    if method == "tools/call" and isinstance(input_schema, dict) and isinstance(arguments, dict):
        for path, token, _ in _header_properties(input_schema):
            text = _to_text(_argument_at(arguments, path))
            if text is not None:
                headers[MCP_PARAM_HEADER_PREFIX + token] = encode_header_value(text)
    return headers


def encode_header_value(value: str) -> str:
    """Return text as a header value, base64-encoded if a header could not carry it unchanged."""
    if value.isascii() and value.isprintable() and value == value.strip(" ") and not _is_encoded(value):
        return value
    return _PREFIX + base64.b64encode(value.encode()).decode() + _SUFFIX


def decode_header_value(value: str | None) -> str | None:
    """Return the text in a header value, base64 decoded if it is marked so.

    Return None without a value, or for invalid base64.
    """
    if value is None or not _is_encoded(value):
        return value
    payload = value[len(_PREFIX) : -len(_SUFFIX)]
    try:
        data = base64.b64decode(payload, validate=True)
        return data.decode() if base64.b64encode(data).decode() == payload else None
    except ValueError:  # not base64, or not UTF-8
        return None


def _is_encoded(value: str) -> bool:
    return value.startswith(_PREFIX) and value.endswith(_SUFFIX) and len(value) >= len(_PREFIX) + len(_SUFFIX)


# -- requests that we receive -----------------------------------------------------------------------------------------


def check_request(method: str, params: Json, headers: Mapping[str, str] | None = None) -> RequestError | None:
    """Return the error for a modern request whose `_meta` or headers are not valid, or None.

    `headers` have lower-case names; without them, only `_meta` is checked.
    """
    meta = params.get("_meta")
    if not isinstance(meta, dict):
        meta = {}
    missing = [key for key in (PROTOCOL_VERSION_META_KEY, CLIENT_CAPABILITIES_META_KEY) if key not in meta]
    if missing:
        return RequestError(INVALID_PARAMS, f"params._meta lacks {' and '.join(missing)}")
    version = meta[PROTOCOL_VERSION_META_KEY]
    if headers is not None and (different := _different_header(method, params, version, headers)):
        return RequestError(HEADER_MISMATCH, different)
    if not isinstance(version, str):
        return RequestError(INVALID_PARAMS, f"params._meta has a {PROTOCOL_VERSION_META_KEY} that is not a string")
    if version not in MODERN_PROTOCOL_VERSIONS:
        data = {"supported": list(MODERN_PROTOCOL_VERSIONS), "requested": version}
        return RequestError(UNSUPPORTED_PROTOCOL_VERSION, "Unsupported protocol version", data)
    return None


def _different_header(method: str, params: Json, version: Any, headers: Mapping[str, str]) -> str:
    """Return how the version, method, and name headers differ from the request's body, or "" if they agree."""
    header = headers.get(MCP_PROTOCOL_VERSION_HEADER)
    if header is None or header != version:
        return f"the {MCP_PROTOCOL_VERSION_HEADER} header does not match the version in params._meta"
    if headers.get(MCP_METHOD_HEADER) != method:
        return f"the {MCP_METHOD_HEADER} header does not match the request's method"
    key = NAME_BEARING_METHODS.get(method)
    name = params.get(key) if key else None
    if name is not None and decode_header_value(headers.get(MCP_NAME_HEADER)) != name:
        return f"the {MCP_NAME_HEADER} header does not match the request's {key!r}"
    return ""


def check_param_headers(input_schema: Any, arguments: Json, headers: Mapping[str, str]) -> RequestError | None:
    """Return the error for a tool call whose `Mcp-Param-*` headers differ from its arguments, or None.

    A schema with invalid header annotations is not checked, because clients do not send headers for it.
    """
    if check_header_schema(input_schema) is not None:
        return None
    received: dict[str, str] = {}
    repeated: set[str] = set()
    for name, value in headers.items():
        key = name.lower()
        if key in received:
            repeated.add(key)
        received[key] = value
    for path, token, schema in _header_properties(input_schema):
        name = MCP_PARAM_HEADER_PREFIX + token
        header = received.get(name.lower())
        if name.lower() in repeated:
            return RequestError(HEADER_MISMATCH, f"the {name} header is repeated")
        argument = _argument_at(arguments, path)
        text = _to_text(argument)
        if header is None and text is None:
            continue
        if header is None:
            problem = "is missing"
        elif argument is None:
            problem = "has no argument"
        elif text is None or not _matches(schema, argument, text, decode_header_value(header)):
            problem = "does not match"
        else:
            continue
        return RequestError(HEADER_MISMATCH, f"the {name} header {problem}: argument {'.'.join(path)!r}")
    return None


def _matches(schema: Json, argument: Any, text: str, header: str | None) -> bool:
    """Return True if a decoded header value equals its argument. `42` and `42.0` are the same integer."""
    if header is None:
        return False
    decimal = _DECIMAL.fullmatch(header)
    if decimal is None or schema.get("type") != "integer" or not _is_integer(argument):
        return header == text
    try:
        return not (decimal[2] or "").strip("0") and int(decimal[1]) == int(argument)
    except ValueError:  # too many digits
        return False


def _is_integer(value: Any) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())


# -- schemas with header annotations ----------------------------------------------------------------------------------


def check_header_schema(input_schema: Any) -> str | None:
    """Return why a tool with this input schema cannot be called over HTTP, or None if it can."""
    used: dict[str, str] = {}  # header in lower case -> property
    for path, schema in _schemas(input_schema):
        if X_MCP_HEADER_KEY not in schema:
            continue
        if not path:
            return f"{X_MCP_HEADER_KEY} is allowed only in properties of objects"
        where, header, kind = ".".join(path), schema[X_MCP_HEADER_KEY], schema.get("type")
        if not isinstance(header, str) or not _TOKEN.fullmatch(header):
            return f"property {where!r}: {X_MCP_HEADER_KEY} is not a header name (RFC 9110 token)"
        if kind not in _HEADER_TYPES:
            return f"property {where!r}: {X_MCP_HEADER_KEY} is allowed only for string, integer and boolean"
        if header.lower() in used:
            return f"property {where!r}: {X_MCP_HEADER_KEY} {header!r} is used by property {used[header.lower()]!r}"
        used[header.lower()] = where
    return None


def _header_properties(input_schema: Any) -> Iterator[tuple[tuple[str, ...], str, Json]]:
    """Yield path, header name, and schema of each property whose argument must be repeated in a header."""
    for path, schema in _schemas(input_schema):
        header = schema.get(X_MCP_HEADER_KEY)
        if path and isinstance(header, str):
            yield path, header, schema


def _schemas(root: Any) -> Iterator[tuple[tuple[str, ...] | None, Json]]:
    """Yield (path, schema) of a schema and of each schema nested in it. The path consists of property names.

    The path is None if the schema does not describe a property of an object. References are not followed, so this
    always ends.
    """
    waiting: list[tuple[tuple[str, ...] | None, Any]] = [((), root)]
    while waiting:
        path, schema = waiting.pop()
        if not isinstance(schema, dict):
            continue
        yield path, schema
        for keyword, value in schema.items():
            if keyword in _SCHEMA_KEYWORDS:
                waiting.append((None, value))
            elif keyword in _SCHEMA_LIST_KEYWORDS and isinstance(value, list):
                waiting += [(None, each) for each in value]
            elif isinstance(value, dict) and keyword == "properties":
                waiting += [((*path, name) if path is not None else None, each) for name, each in value.items()]
            elif isinstance(value, dict) and keyword in _SCHEMA_MAP_KEYWORDS:
                waiting += [(None, each) for each in value.values()]


def _argument_at(arguments: Json, path: tuple[str, ...]) -> Any:
    value: Any = arguments
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _to_text(argument: Any) -> str | None:
    """Return an argument as header text, or None if it is not a string, number or boolean."""
    if isinstance(argument, bool):
        return "true" if argument else "false"
    if not isinstance(argument, str | int | float):
        return None
    try:
        return str(argument)
    except ValueError:  # an integer with too many digits
        return None
