"""Converts an API's response to a tool result or an error. No I/O.

JSON becomes structured content, plus the same as text. Other text becomes text, images and sound become their MCP
types, and everything else becomes an embedded resource. The rest (status, URL of a created object, next page) goes into
`_meta`. If the API turns the request down, the result has `isError` and no structured content, because the output
schema only applies to successful responses.

A 2xx is a result, and so is a 4xx about the content of the request: the API has processed the request and says no, and
the caller, often a model, must read why. If the status proves that the request was not processed, the outcome is
REJECTED. With any other status, nobody knows whether the request ran (UNKNOWN).
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from toolway.http.client import HttpTarget
from toolway.parts.openapi.document.models import Operation
from toolway.protocol.sanitize import sanitize
from toolway.types import Certainty, Json
from toolway.upstream.error_mapping import MISSING_CREDENTIAL
from toolway.upstream.transport import TransportError
from toolway.upstream.transports.http_responses import body_excerpt, parse_retry_after

HTTP_META: Final = "toolway/http"
NEXT_META: Final = "toolway/next"
_JSON_TYPE: Final = re.compile(r"application/(?:[\w.+-]+\+)?json|text/json", re.IGNORECASE)
_TEXT_TYPE: Final = re.compile(
    r"text/.+|application/(?:[\w.+-]+\+)?(?:xml|yaml)|application/(?:x-yaml|javascript|x-www-form-urlencoded|graphql"
    r"|x-ndjson|jsonl|sql|toml|x-sh|csv)",
    re.IGNORECASE,
)
_CHARSET: Final = re.compile(r"charset\s*=\s*\"?([\w.:-]{1,40})", re.IGNORECASE)
#: Response headers that may be useful to the caller.
_USEFUL_HEADERS: Final = (
    "content-disposition",
    "content-location",
    "etag",
    "last-modified",
    "link",
    "location",
    "retry-after",
)
_MAX_HEADER_CHARS: Final = 2000  # characters of a header value; a longer one is left out: a part misleads
_DEFAULT_TYPE: Final = "application/octet-stream"


def result_from_json(operation: Operation, status: int, headers: Mapping[str, str], body: bytes, value: Any) -> Json:
    """Return the MCP tool result for the API's JSON response. `value` is the decoded `body`."""
    result = _base_result(status, headers, [_text_block(body.decode("utf-8", "replace"))])
    if status < 400:
        wraps = operation.wraps_result if has_output_schema(operation) else not isinstance(value, dict)
        result["structuredContent"] = {"result": value} if wraps or not isinstance(value, dict) else value
    return result


def result_from_bytes(operation: Operation, status: int, headers: Mapping[str, str], body: bytes) -> Json:
    """Return the MCP tool result for an API response that is empty or not JSON."""
    result = _base_result(status, headers, [_content_block(operation, headers, body)] if body else [])
    if status < 400 and has_output_schema(operation):
        result["structuredContent"] = {}  # the output schema has no required fields
    return result


def with_next_page(result: Json, arguments: Json) -> Json:
    """Return the tool result with the next page's arguments added, as text and in `_meta`."""
    hint = _text_block(
        f"There is more. The next part: call the same tool with {msgspec.json.encode(arguments).decode()}"
    )
    return {
        **result,
        "content": [*result["content"], hint],
        "_meta": {**result["_meta"], NEXT_META: {"arguments": arguments}},
    }


def media_type(headers: Mapping[str, str]) -> str:
    """Return a response's media type in lower case, without parameters such as charset."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json(headers: Mapping[str, str]) -> bool:
    return _JSON_TYPE.fullmatch(media_type(headers)) is not None


def has_output_schema(operation: Operation) -> bool:
    """Return True if the tool made from this API operation has an output schema."""
    return "outputSchema" in operation.tool


def is_declared_type(operation: Operation, headers: Mapping[str, str]) -> bool:
    """Return True if the OpenAPI document allows a response of this media type, which is not JSON.

    That is the case if the document declares the media type, or if the tool has no output schema.
    """
    if not has_output_schema(operation):
        return True
    declared = {kind.partition(";")[0].strip().lower() for each in operation.responses for kind in each.media_types}
    kind = media_type(headers)
    return kind in declared or f"{kind.partition('/')[0]}/*" in declared


def _base_result(status: int, headers: Mapping[str, str], content: list[Json]) -> Json:
    useful = {name: headers[name] for name in _USEFUL_HEADERS if 0 < len(headers.get(name, "")) <= _MAX_HEADER_CHARS}
    if status >= 300:
        content = [_text_block(f"{status_phrase(status)}{_location_suffix(headers)}"), *content]
    elif not content:
        content = [_text_block(status_phrase(status))]
    result: Json = {
        "resultType": "complete",
        "content": content,
        "_meta": {HTTP_META: {"status": status, **({"headers": useful} if useful else {})}},
    }
    if status >= 400:
        result["isError"] = True
    return result


def _location_suffix(headers: Mapping[str, str]) -> str:
    return f": {headers['location']}" if 0 < len(headers.get("location", "")) <= _MAX_HEADER_CHARS else ""


def _content_block(operation: Operation, headers: Mapping[str, str], body: bytes) -> Json:
    kind = media_type(headers)
    if _JSON_TYPE.fullmatch(kind) or _TEXT_TYPE.fullmatch(kind) or (not kind and _is_text(body)):
        return _text_block(_decode_text(headers, body))
    data = b64encode(body).decode()
    if kind.startswith(("image/", "audio/")):
        return {"type": kind.partition("/")[0], "data": data, "mimeType": kind}
    uri = f"openapi:{operation.name}"
    return {"type": "resource", "resource": {"uri": uri, "mimeType": kind or _DEFAULT_TYPE, "blob": data}}


def _decode_text(headers: Mapping[str, str], body: bytes) -> str:
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


def _text_block(text: str) -> Json:
    return {"type": "text", "text": text}


# -- statuses ---------------------------------------------------------------------------------------------------------

_REJECTED, _MAYBE_EXECUTED = Certainty.REJECTED, Certainty.UNKNOWN

#: Statuses that mean that the API, or a proxy in front of it, did not process the request.
_REJECTION_STATUSES: Final[Mapping[int, tuple[str, str]]] = {
    401: ("requires a credential, or rejected the one it got", ""),
    403: ("does not allow this", "check the permissions of the credential"),
    405: ("does not accept this method there", "check the URL of the API, and that its document is up to date"),
    406: ("cannot respond in a format that its document promises", "check that its document is up to date"),
    413: ("rejected the request as too large", "send less in one call"),
    415: ("does not accept a body of this type", "check that its document is up to date"),
    421: ("is not responsible for this host", "check the URL of the API"),
    429: ("limits the request rate", "call less often, or wait as long as it asks"),
}
# Not results: the API has not received the whole request, or will not process it yet.
_UNPROCESSED_STATUSES: Final = frozenset({408, 425})
_GET_REDIRECTS: Final = (301, 302, 303, 307, 308)
_SAFE_REDIRECTS: Final = (307, 308)  # only these prove that the request did not run
_MAX_EXCERPT_CHARS: Final = 200


def is_final_status(status: int) -> bool:
    """Return True if this HTTP status is the API's final answer to the request, good or bad.

    Any other status means that the request was not processed, or that its outcome is unknown.
    """
    return status < 500 and status not in _REJECTION_STATUSES and status not in _UNPROCESSED_STATUSES


def error_for_status(
    status: int, headers: Mapping[str, str], body: bytes, missing: Sequence[str] = ()
) -> TransportError:
    """Return the error for a status that is not the API's answer to the request, such as 401, 429, or 503.

    `missing` are credentials that the document requires but the entry does not have.
    """
    retry_after = parse_retry_after(headers.get("retry-after"), headers.get("date"))
    problem, hint = _REJECTION_STATUSES.get(status, ("failed", ""))
    certainty = (
        _REJECTED if status in _REJECTION_STATUSES or (status == 503 and retry_after is not None) else _MAYBE_EXECUTED
    )
    if status == 401:
        hint = _credential_hint(missing)
    return TransportError(
        f"the API {problem} ({status_phrase(status)}){body_excerpt(body)}",
        certainty,
        code="E-HTTP-STATUS",
        status=status,
        retry_after=retry_after,
        hint=hint,
        www_authenticate=headers.get("www-authenticate"),
    )


def _credential_hint(missing: Sequence[str]) -> str:
    """Return the hint for a 401: add the missing credentials, or check the configured ones."""
    if missing:
        settings = ", ".join(f'"{name}": "${{keyring:NAME}}"' for name in missing)
        return f'{MISSING_CREDENTIAL}: "openapi": {{"security": {{{settings}}}}}'
    return "check the credential under `openapi.security`, `headers` or `auth`"


def follow_redirect(
    operation: Operation, target: HttpTarget, status: int, headers: Mapping[str, str]
) -> HttpTarget | None:
    """Return the target of a redirect, or None if the OpenAPI document declares it as a result.

    Raises `TransportError` if the redirect must not be followed, for example to another origin.
    """
    location = headers.get("location", "")
    try:
        new = target.join(location) if location else None
    except ValueError:
        new = None
    is_read = operation.method in ("GET", "HEAD")
    if new is not None and new.origin == target.origin and status in (_GET_REDIRECTS if is_read else _SAFE_REDIRECTS):
        return new
    if any(str(status) == response.status or response.status.upper() == "3XX" for response in operation.responses):
        return None
    shown_target = f"{new.origin}{new.path.partition('?')[0]}" if new is not None else "nowhere"
    raise TransportError(
        f"the API redirects to {sanitize(shown_target, _MAX_EXCERPT_CHARS)} ({status_phrase(status)}), "
        "which is not followed",
        # A server may also send 303 after it has executed the request.
        _REJECTED if is_read or status in _SAFE_REDIRECTS else _MAYBE_EXECUTED,
        code="E-HTTP-REDIRECT",
        status=status,
        hint="if you trust that address, make it the `url` of the entry",
    )


def error_for_redirect_loop() -> TransportError:
    """Return the error for an API that redirects one request too many times."""
    return TransportError("the API redirects too many times", _REJECTED, code="E-HTTP-REDIRECT", hint="check the url")


def error_for_bad_response(reason: str) -> TransportError:
    """Return the error for an API response that cannot be converted to a tool result."""
    return TransportError(f"the API's response is invalid: {reason}", _MAYBE_EXECUTED, code="E-HTTP-CONTENT")


def status_phrase(status: int) -> str:
    """Return an HTTP status with its phrase, such as "404 Not Found"."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
