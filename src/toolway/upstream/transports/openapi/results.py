"""An API's answer → the result of a tool. Pure.

JSON is structured content, and the same as text; other text is text; images and sound are what they are, and the rest
is a resource that comes with the answer. What the API says beside that (status, where a new thing is, which page is
next) stands in `_meta`. A no of the API is a result with `isError`, without structured content: what is promised of
that holds for answers.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from toolway.model import Json
from toolway.openapi.operation import Operation
from toolway.upstream.transports.openapi.verdict import words

HTTP_META: Final = "toolway/http"
NEXT_META: Final = "toolway/next"
_JSON: Final = re.compile(r"application/(?:[\w.+-]+\+)?json|text/json", re.IGNORECASE)
_TEXT: Final = re.compile(
    r"text/.+|application/(?:[\w.+-]+\+)?(?:xml|yaml)|application/(?:x-yaml|javascript|x-www-form-urlencoded|graphql"
    r"|x-ndjson|jsonl|sql|toml|x-sh|csv)",
    re.IGNORECASE,
)
_CHARSET: Final = re.compile(r"charset\s*=\s*\"?([\w.:-]{1,40})", re.IGNORECASE)
#: What else an API may say that somebody who calls it can use.
_TOLD: Final = ("content-disposition", "content-location", "etag", "last-modified", "link", "location", "retry-after")
_LONGEST: Final = 2000  # characters of such a value
_UNKNOWN: Final = "application/octet-stream"


def media_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json(headers: Mapping[str, str]) -> bool:
    return _JSON.fullmatch(media_type(headers)) is not None


def promises_structure(operation: Operation) -> bool:
    return "outputSchema" in operation.tool


def of_json(operation: Operation, status: int, headers: Mapping[str, str], body: bytes, value: Any) -> Json:
    """The result of an answer in JSON; `body` is `value` as it came."""
    result = _result(status, headers, [_text(body.decode("utf-8", "replace"))])
    if status < 400:
        wraps = operation.wraps if promises_structure(operation) else not isinstance(value, dict)
        result["structuredContent"] = {"result": value} if wraps or not isinstance(value, dict) else value
    return result


def is_expected(operation: Operation, headers: Mapping[str, str]) -> bool:
    """Whether an answer that is no JSON may be one: the document knows it, or promises nothing."""
    if not promises_structure(operation):
        return True
    known = {kind.partition(";")[0].strip().lower() for each in operation.responses for kind in each.media_types}
    kind = media_type(headers)
    return kind in known or f"{kind.partition('/')[0]}/*" in known


def of_other(operation: Operation, status: int, headers: Mapping[str, str], body: bytes) -> Json:
    """The result of any other answer, an empty one too."""
    result = _result(status, headers, [_block(operation, headers, body)] if body else [])
    if status < 400 and promises_structure(operation):
        result["structuredContent"] = {}  # what is promised of answers names nothing that must be there
    return result


def with_next(result: Json, arguments: Json) -> Json:
    """The result, and how to go on from it."""
    hint = _text(f"There is more. The next part: call the same tool with {msgspec.json.encode(arguments).decode()}")
    return {
        **result,
        "content": [*result["content"], hint],
        "_meta": {**result["_meta"], NEXT_META: {"arguments": arguments}},
    }


def _result(status: int, headers: Mapping[str, str], content: list[Json]) -> Json:
    said = {name: headers[name][:_LONGEST] for name in _TOLD if name in headers}
    if status >= 300:
        content = [_text(f"{words(status)}{_where(headers)}"), *content]
    elif not content:
        content = [_text(words(status))]
    result: Json = {
        "resultType": "complete",
        "content": content,
        "_meta": {HTTP_META: {"status": status, **({"headers": said} if said else {})}},
    }
    if status >= 400:
        result["isError"] = True
    return result


def _where(headers: Mapping[str, str]) -> str:
    return f": {headers['location'][:_LONGEST]}" if "location" in headers else ""


def _block(operation: Operation, headers: Mapping[str, str], body: bytes) -> Json:
    kind = media_type(headers)
    if _JSON.fullmatch(kind) or _TEXT.fullmatch(kind) or (not kind and _is_text(body)):
        return _text(_decoded(headers, body))
    data = b64encode(body).decode()
    if kind.startswith(("image/", "audio/")):
        return {"type": kind.partition("/")[0], "data": data, "mimeType": kind}
    uri = f"openapi:{operation.name}"
    return {"type": "resource", "resource": {"uri": uri, "mimeType": kind or _UNKNOWN, "blob": data}}


def _decoded(headers: Mapping[str, str], body: bytes) -> str:
    named = _CHARSET.search(headers.get("content-type", ""))
    try:
        return body.decode(named[1] if named else "utf-8", "replace")
    except (LookupError, UnicodeError):
        return body.decode("utf-8", "replace")


def _is_text(body: bytes) -> bool:
    try:
        return "\0" not in body.decode()
    except UnicodeDecodeError:
        return False


def _text(text: str) -> Json:
    return {"type": "text", "text": text}
