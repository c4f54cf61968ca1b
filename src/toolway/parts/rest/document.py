"""The OpenAPI 3.1 document of an endpoint: one operation for each tool that a caller sees there."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Generator, Sequence
from typing import Final
from urllib.parse import quote

from toolway._version import __version__
from toolway.parts.rest.references import add_schema
from toolway.types import Json

MAX_OPERATION_ID: Final = 64  # characters: more than some clients accept as the name of a function
MAX_SUMMARY: Final = 120  # characters
SLICE_SIZE: Final = 20  # tools, until the event loop may do something else
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
_STRING: Final[Json] = {"type": "string"}
_FAILURE: Final[Json] = {
    "type": "object",
    "description": "Why the call has no result, and whether the tool ran.",
    "properties": {
        "message": _STRING,
        "executed": {
            "enum": ["no", "unknown", "yes"],
            "description": "no: safe to repeat. unknown: it may have run, so check before you repeat. yes: it ran.",
        },
        "code": {"type": "string", "description": "explained by `toolway explain CODE`"},
        "retryable": {"type": "boolean"},
        "hint": _STRING,
        "approvalId": {"type": "string", "description": "the request that an administrator must approve"},
        "violations": {"type": "array", "items": {"type": "object"}, "description": "what is wrong with the arguments"},
        "callId": _STRING,
    },
    "required": ["message", "executed"],
}
_TEXT: Final[Json] = {"type": "object", "description": "The text of the result.", "properties": {"text": _STRING}}
_ABOUT: Final = (
    "The tools of an MCP gateway. A failed call says in `executed` whether the tool ran. The header `Idempotency-Key` "
    "makes it safe to repeat a call."
)
_FAILURES: Final = {
    "400": "The arguments are invalid. It did not run.",
    "403": "Denied, or an administrator must approve the call. It did not run.",
    "404": "Unknown tool. It did not run.",
    "409": "The outcome is unknown: it may have run. Check before you repeat the call.",
    "422": "The tool ran, and reported an error.",
    "429": "A limit is reached. It did not run; retry after `Retry-After`.",
    "501": "The tool needs input that this API cannot give, or became a task that needs it.",
    "503": "The server is not available. It did not run; retry after `Retry-After`.",
}


def build_document(tools: Sequence[Json], url: str, title: str) -> Generator[None, None, Json]:
    """Build the document of these tool definitions, in slices. `url` is where the API is, without a final slash."""
    components: Json = {"Failure": _FAILURE, "Text": _TEXT}
    paths: Json = {}
    ids = operation_ids([tool["name"] for tool in tools])
    for number, tool in enumerate(tools):
        paths[f"/tools/{quote(tool['name'], safe='')}"] = {"post": _operation(tool, ids[number], components)}
        if number % SLICE_SIZE == SLICE_SIZE - 1:
            yield
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__, "description": _ABOUT},
        "servers": [{"url": url}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {status: _failure(text) for status, text in _FAILURES.items()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def operation_ids(names: Sequence[str]) -> list[str]:
    """Return a unique operation id of at most 64 safe characters for each of these different names, in their order.

    The id of a name depends on that name alone, except that of two ids which differ in case only, one gets a hash.
    """
    taken: set[str] = set()
    found = []
    for name in names:
        id_ = _UNSAFE.sub("_", name)
        if id_ != name or not 0 < len(id_) <= MAX_OPERATION_ID or id_.lower() in taken:
            digest = hashlib.sha256(name.encode()).hexdigest()
            id_ = f"{id_[: MAX_OPERATION_ID - 13]}_{digest[:12]}"
        taken.add(id_.lower())
        found.append(id_)
    return found


def _operation(tool: Json, id_: str, components: Json) -> Json:
    text = tool.get("description") or ""
    result = {"$ref": "#/components/schemas/Text"}
    if isinstance(tool.get("outputSchema"), dict):
        result = add_schema(tool["outputSchema"], f"{id_}.result", components)
    body = {"schema": add_schema(tool["inputSchema"], f"{id_}.arguments", components)}
    operation: Json = {
        "operationId": id_,
        "summary": str(tool.get("title") or text or tool["name"]).partition("\n")[0][:MAX_SUMMARY],
        "description": text,
        "requestBody": {"required": True, "content": {"application/json": body}},
        "responses": {
            "200": {"description": "The result.", "content": {"application/json": {"schema": result}}},
            **{status: {"$ref": f"#/components/responses/{status}"} for status in _FAILURES},
        },
    }
    annotations = tool.get("annotations")
    reads = isinstance(annotations, dict) and annotations.get("readOnlyHint") is True
    return {**operation, "x-openai-isConsequential": not reads}


def _failure(text: str) -> Json:
    return {
        "description": text,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Failure"}}},
    }
