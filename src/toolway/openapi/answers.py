"""The answers of an operation: what is asked for, and what a caller can expect."""

from __future__ import annotations

from typing import Any

from toolway.model import Json
from toolway.openapi import media, swagger, words
from toolway.openapi.operation import Response
from toolway.openapi.pointers import Pointers, Unresolved
from toolway.openapi.schemas import Converted, Schemas


def read(raw: Any, pointers: Pointers, dialect: str, produces: list[str]) -> list[tuple[Response, Json]]:
    """The kinds of answers, each with its content. What cannot be followed is left out: no call needs it."""
    found = []
    for status, each in raw.items() if isinstance(raw, dict) else ():
        if status.startswith("x-"):
            continue
        try:
            entry = pointers.object(each)
        except Unresolved:
            continue
        if dialect == "2.0":
            entry = swagger.response(entry, produces)
        said = entry.get("content")
        content: Json = said if isinstance(said, dict) else {}
        kinds = tuple(name for name in content if media.is_sendable(name))
        found.append((Response(status.upper(), words.cleaned(entry.get("description"), words.FIELD), kinds), content))
    return found


def accept(answers: list[tuple[Response, Json]]) -> str:
    """The Accept header: what a good answer may be, JSON first."""
    kinds = {media.bare(kind): None for response, _ in _good(answers) for kind in response.media_types}
    ordered = sorted(kinds, key=lambda kind: (media.kind(kind) != "json", kind == "*/*"))
    if not ordered or ordered == ["*/*"]:
        return "application/json, */*;q=0.5"
    return ", ".join([*ordered[:8], "*/*;q=0.1"] if "*/*" not in ordered else ordered[:8])


def output(answers: list[tuple[Response, Json]], schemas: Schemas) -> tuple[Converted, bool] | None:
    """The schema of structured content, and whether the answer is wrapped as `result`. None where none is promised."""
    found: list[Converted] = []
    for _, content in _good(answers):
        for kind, entry in content.items():
            node = entry.get("schema") if isinstance(entry, dict) else None
            if media.kind(kind) == "json" and isinstance(node, dict):
                converted = schemas.convert(node)
                if all(converted.schema != known.schema for known in found):
                    found.append(converted)
    if not found:
        return None
    if len(found) == 1:
        whole = schemas.unfold(found[0])
        if _is_object(whole.schema, schemas, 0):
            return Converted({**whole.schema, "type": "object"}, whole.uses, whole.size), False
    if all(_is_object(each.schema, schemas, 0) for each in found):
        schema: Json = {"type": "object", "anyOf": [each.schema for each in found]}
    else:
        inner = found[0].schema if len(found) == 1 else {"anyOf": [each.schema for each in found]}
        schema = {"type": "object", "properties": {"result": inner}}
    uses = tuple(dict.fromkeys(name for each in found for name in each.uses))
    return Converted(schema, uses, sum(each.size for each in found) + 60), "anyOf" not in schema


def _good(answers: list[tuple[Response, Json]]) -> list[tuple[Response, Json]]:
    good = [each for each in answers if each[0].status.startswith("2")]
    return good or [each for each in answers if each[0].status == "DEFAULT"]


def _is_object(schema: Json, schemas: Schemas, level: int) -> bool:
    """Whether every value but null that fits is an object."""
    if level > 5:
        return False
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds:
        return set(kinds) <= {"object", "null"}
    if "$ref" in schema:
        return _is_object(schemas.definition(schema["$ref"].removeprefix("#/$defs/")).schema, schemas, level + 1)
    if "allOf" in schema:
        return any(_is_object(each, schemas, level + 1) for each in schema["allOf"])
    branches = [each for each in schema.get("anyOf", []) if each != {"type": "null"}]
    return bool(branches) and all(_is_object(each, schemas, level + 1) for each in branches)
