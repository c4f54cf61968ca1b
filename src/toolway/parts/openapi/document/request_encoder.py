"""Encodes an operation and its arguments as an HTTP request, safe against injection.

The arguments come from a model, which may repeat an attacker's text. Whatever the input is, the request has exactly the
operation's path segments, query parameters, and headers. If a value cannot be encoded this way, it is rejected, and
nothing is sent.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import msgspec

from toolway.errors import ArgumentViolation
from toolway.parts.openapi.document import inputs, param_styles
from toolway.parts.openapi.document.models import (
    BodyContent,
    FormPart,
    Operation,
    Parameter,
    RequestBody,
    UnencodableArguments,
)

_PATH_VARIABLE: Final = re.compile(r"\{([^{}/]{1,200})\}")
_READ_METHODS: Final = frozenset({"GET", "HEAD"})
_SAFE_PATH_CHARS: Final = "/:@!$&'()*+,;=%~"  # `%`: templates may already be encoded
_LONE_SURROGATE: Final = "a string contains half a character (a lone surrogate)"


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """An encoded HTTP request without its host: every part that depends on the tool arguments."""

    target: str  # path and query, ASCII, ready for the request line
    headers: tuple[tuple[str, str], ...]  # header parameters, and `Cookie` if there are cookies; no Content-Type
    body: bytes | None
    content_type: str  # empty without a body


def encode_operation(operation: Operation, arguments: Mapping[str, Any], base_path: str = "") -> EncodedRequest:
    """Encode the HTTP request for an API operation with these tool arguments.

    `base_path` is the already encoded path of the server's URL. Raises `UnencodableArguments` if an argument is missing
    or unknown, or cannot be encoded.
    """
    _check_names(operation, arguments)
    _check_exploded_keys(operation, arguments)
    path: dict[str, str] = {}
    query: param_styles.EncodedPairs = []
    cookies: param_styles.EncodedPairs = []
    headers: list[tuple[str, str]] = []
    for parameter in operation.parameters:
        value = arguments.get(parameter.argument)
        if value is None or parameter.user_supplied:
            continue
        if parameter.location == "path":
            path[parameter.name] = _encode_path_value(parameter, value, operation)
        elif parameter.location == "query":
            query.extend(_encode_query_value(parameter, value))
        elif parameter.location == "header":
            headers.append((parameter.name, _encode_header_value(parameter, value)))
        else:
            cookies.extend(_encode_cookie_value(parameter, value))
    if cookies:
        headers.append(("Cookie", "; ".join(f"{name}={text}" for name, text in cookies)))
    body, content_type = _encode_body(operation.body, arguments)
    return EncodedRequest(
        _build_target(operation.path, base_path.rstrip("/"), path, query), tuple(headers), body, content_type
    )


def _check_names(operation: Operation, arguments: Mapping[str, Any]) -> None:
    body = operation.body
    tool_parameters = [parameter for parameter in operation.parameters if not parameter.user_supplied]
    known = {parameter.argument for parameter in tool_parameters}
    missing = [each.argument for each in tool_parameters if each.required and arguments.get(each.argument) is None]
    if body is not None:
        known |= {body.argument, body.type_argument} - {""}
        if body.required and body.argument not in arguments:
            missing.append(body.argument)
    if missing:
        raise UnencodableArguments(
            f"missing: {', '.join(missing)}", tuple(ArgumentViolation(f"$.{name}", "is missing") for name in missing)
        )
    unknown = [name for name in arguments if name not in known]
    if unknown:
        known_text = f"known: {', '.join(sorted(known))}" if known else "the tool has no arguments"
        expected = f"one of {', '.join(sorted(known))}"[:1000] if known else "no arguments"
        violations = tuple(
            ArgumentViolation(f"$.{name}"[:100], "is unknown", expected) for name in sorted(unknown)[:20]
        )
        raise UnencodableArguments(f"unknown: {', '.join(sorted(unknown))[:200]}; {known_text}"[:1000], violations)


def _check_exploded_keys(operation: Operation, arguments: Mapping[str, Any]) -> None:
    """Reject an exploded query object that has a key with the name of another parameter."""
    taken = {*operation.reserved_query_names, *(each.name for each in operation.parameters if each.location == "query")}
    for parameter in operation.parameters:
        value = arguments.get(parameter.argument)
        spread = parameter.location == "query" and parameter.style == "form" and parameter.explode
        if spread and isinstance(value, dict) and not parameter.content_type and not taken.isdisjoint(value):
            names = ", ".join(sorted(taken.intersection(value)))
            raise UnencodableArguments(
                f"{parameter.argument!r} must not contain {names}, which are parameters themselves"
            )


def _serialised_value(parameter: Parameter, value: Any) -> Any:
    """Return a parameter's value, or its JSON text if the parameter declares a content type."""
    return param_styles.to_json_text(value) if parameter.content_type and not _is_text(parameter, value) else value


def _is_text(parameter: Parameter, value: Any) -> bool:
    return isinstance(value, str) and "json" not in parameter.content_type


def _encode_path_value(parameter: Parameter, value: Any, operation: Operation) -> str:
    value = _serialised_value(parameter, value)
    if parameter.style == "label":
        text = param_styles.encode_label(value, parameter.explode, param_styles.escape_path)
    elif parameter.style == "matrix":
        text = param_styles.encode_matrix(parameter.name, value, parameter.explode, param_styles.escape_path)
    else:
        text = param_styles.encode_simple(value, parameter.explode, param_styles.escape_path)
    # An empty value would address another operation: the whole collection instead of one item. For reads this is
    # harmless, and some APIs require it for the root of a tree.
    if not text and not (operation.method in _READ_METHODS and operation.path.endswith(f"/{{{parameter.name}}}")):
        raise UnencodableArguments(f"{parameter.argument!r} is part of the path and must not be empty")
    return text


def _encode_query_value(parameter: Parameter, value: Any) -> param_styles.EncodedPairs:
    escape = partial(param_styles.escape_query, allow_reserved=parameter.allow_reserved)
    return param_styles.encode_pairs(
        parameter.name,
        _serialised_value(parameter, value),
        parameter.style,
        parameter.explode,
        param_styles.escape_query,
        escape,
    )


def _encode_header_value(parameter: Parameter, value: Any) -> str:
    escape = partial(param_styles.escape_header, argument=parameter.argument)
    return param_styles.encode_simple(_serialised_value(parameter, value), parameter.explode, escape)


def _encode_cookie_value(parameter: Parameter, value: Any) -> param_styles.EncodedPairs:
    # Cookie names are tokens fixed by the document, so an object is always one cookie.
    explode = parameter.explode and not isinstance(value, dict)
    return param_styles.encode_pairs(
        parameter.name, _serialised_value(parameter, value), "form", explode, str, param_styles.escape_cookie
    )


def _build_target(template: str, base_path: str, path: Mapping[str, str], query: param_styles.EncodedPairs) -> str:
    pieces, fixed = _split_template(template)
    # Literal strings and variable names alternate.
    whole = "".join(path[piece] if number % 2 else piece for number, piece in enumerate(pieces))
    if param_styles.has_dot_segments(whole):
        raise UnencodableArguments("a path value must not be . or .. or contain them between slashes")
    target = base_path + whole
    fields = [fixed] * bool(fixed) + [f"{name}={text}" for name, text in query]
    return f"{target}?{'&'.join(fields)}" if fields else target


@functools.lru_cache(4096)
def _split_template(template: str) -> tuple[tuple[str, ...], str]:
    """Split a path template such as `/users/{id}?v=1` into alternating literals and variable names, and the query."""
    path, _, query = template.partition("#")[0].partition("?")
    pieces = _PATH_VARIABLE.split(path)
    literal = [piece if number % 2 else quote(piece, safe=_SAFE_PATH_CHARS) for number, piece in enumerate(pieces)]
    return tuple(literal), quote(query, safe=_SAFE_PATH_CHARS + "?")


# -- body, by its media type -------------------------------------------------------------------------------------------

_DEFAULT_PART: Final = FormPart()
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,100}/[A-Za-z0-9!#$&^_.+-]{1,100}")
_NAME_ESCAPES: Final = str.maketrans({'"': "%22", "\r": "%0D", "\n": "%0A", "\0": "%00"})  # like browsers


def _encode_body(body: RequestBody | None, arguments: Mapping[str, Any]) -> tuple[bytes | None, str]:
    if body is None or body.argument not in arguments:
        return None, ""
    content = body.contents[0]
    media_type = arguments.get(body.type_argument) if body.type_argument else None
    if media_type is not None:
        found = next((each for each in body.contents if each.media_type == media_type), None)
        if found is None:
            names = ", ".join(each.media_type for each in body.contents)
            raise UnencodableArguments(f"{body.type_argument!r} must be one of {names}")
        content = found
    return encode_content(arguments[body.argument], content)


def encode_content(value: Any, content: BodyContent) -> tuple[bytes, str]:
    """Encode a value as a request body of this media type, and return it with its Content-Type.

    Raises `UnencodableArguments` if the value does not fit the media type.
    """
    kind = inputs.media_kind(content.media_type)
    if kind == "json":
        return _encode_json(value), content.media_type
    if kind == "form":
        return _encode_form(_require_object(value), content.parts), content.media_type
    if kind == "multipart":
        return _encode_multipart(_require_object(value), content)
    if kind == "bytes":
        data, _, file_type = _decode_file(value)
        return data, file_type or (content.media_type if "*" not in content.media_type else "application/octet-stream")
    text = param_styles.to_text(value)
    plain = kind == "text" and ";" not in content.media_type
    return _encode_text(text), f"{content.media_type}; charset=utf-8" if plain else content.media_type


def _require_object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UnencodableArguments("the body must be an object, because it is sent as a form")
    return value


def _encode_form(fields: Mapping[str, Any], parts: Mapping[str, FormPart]) -> bytes:
    found: param_styles.EncodedPairs = []
    for name, value in fields.items():
        part = parts.get(name, _DEFAULT_PART)
        escape = partial(param_styles.escape_query, allow_reserved=part.allow_reserved)
        if value is None:
            continue
        if part.style:
            found.extend(
                param_styles.encode_pairs(name, value, part.style, part.explode, param_styles.escape_query, escape)
            )
            continue
        for each in value if isinstance(value, list) else [value]:
            data = _decode_file(each)[0] if part.is_file else param_styles.to_text(each)
            found.append(
                (param_styles.escape_query(name), param_styles.escape_query(data, allow_reserved=part.allow_reserved))
            )
    return "&".join(f"{name}={text}" for name, text in found).encode()


def _encode_multipart(fields: Mapping[str, Any], content: BodyContent) -> tuple[bytes, str]:
    pieces: list[bytes] = []
    for name, value in fields.items():
        part = content.parts.get(name, _DEFAULT_PART)
        pieces.extend(_encode_part(name, each, part) for each in _part_items(value, part))
    boundary = _choose_boundary(pieces)
    line = b"--" + boundary.encode()
    body = b"".join(line + b"\r\n" + piece + b"\r\n" for piece in pieces) + line + b"--\r\n"
    return body, f"{inputs.strip_params(content.media_type)}; boundary={boundary}"


def _part_items(value: Any, part: FormPart) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, list) and part.style in param_styles.SEPARATORS and not part.explode:
        return [param_styles.SEPARATORS[part.style].join(param_styles.to_text(each) for each in value)]
    as_one = part.content_type and inputs.media_kind(part.content_type) == "json"  # the whole list is one part
    return value if isinstance(value, list) and not as_one else [value]


def _encode_part(name: str, value: Any, part: FormPart) -> bytes:
    head = f'Content-Disposition: form-data; name="{name.translate(_NAME_ESCAPES)}"'
    is_file = part.is_file and (not isinstance(value, dict) or "base64" in value)  # otherwise a plain object
    content_type = part.content_type if is_file == part.is_file else ""
    if is_file:
        data, filename, file_type = _decode_file(value)
        head += f'; filename="{(filename or name).translate(_NAME_ESCAPES)}"'
        content_type = file_type or content_type
    else:
        as_json = isinstance(value, dict | list) or (content_type and inputs.media_kind(content_type) == "json")
        data = _encode_json(value) if as_json else _encode_text(param_styles.to_text(value))
        content_type = content_type or ("application/json" if as_json else "")
    if content_type:
        head += f"\r\nContent-Type: {content_type}"
    return _encode_text(head) + b"\r\n\r\n" + data


def _choose_boundary(pieces: list[bytes]) -> str:
    """Return a multipart boundary that does not occur in any part. The same parts always give the same boundary."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    boundary = f"toolway-{digest.hexdigest()[:40]}"
    while any(boundary.encode() in piece for piece in pieces):
        boundary = f"toolway-{hashlib.sha256(boundary.encode()).hexdigest()[:40]}"
    return boundary


def _decode_file(value: Any) -> tuple[bytes, str, str]:
    """Decode a file argument, given as text or base64, to its bytes, name, and media type."""
    if not isinstance(value, dict):
        return _encode_text(param_styles.to_text(value)), "", ""
    data = value.get("base64")
    if not isinstance(data, str):
        raise UnencodableArguments('a file must be a string, or {"base64": …, "filename": …, "contentType": …}')
    name, content_type = value.get("filename"), value.get("contentType")
    if content_type is not None and not (isinstance(content_type, str) and _MEDIA_TYPE.fullmatch(content_type)):
        raise UnencodableArguments("the contentType of a file must be a media type like image/png")
    try:
        return base64.b64decode(data, validate=True), name if isinstance(name, str) else "", content_type or ""
    except (binascii.Error, ValueError):
        raise UnencodableArguments("the base64 of a file is invalid") from None


def _encode_json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        raise UnencodableArguments(_LONE_SURROGATE) from None


def _encode_text(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UnencodableArguments(_LONE_SURROGATE) from None
