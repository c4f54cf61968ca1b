"""One schema object of any dialect → JSON Schema 2020-12.

Documents are written by hand, so each keyword is kept only where its value is what the keyword wants; what is left out
makes a schema wider, never narrower. `oneOf` becomes `anyOf`: documents use it for alternatives that overlap, which no
value could satisfy. A schema of answers is a hint and no contract: servers add fields and values, and leave out what
they promised, so it keeps names and types alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import jsonschema_rs
import msgspec

from toolway.model import Json
from toolway.openapi import words

#: What a schema is for: values that are sent, fields of forms that are sent (they may be files), answers.
Use: TypeAlias = Literal["input", "form", "output"]
Convert: TypeAlias = Callable[[Any], Json]

MAX_ENUM: Final = 200
_TYPES: Final = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})
_TYPES_OF_OTHERS: Final = {"float": "number", "double": "number", "decimal": "number", "int": "integer"} | {
    "long": "integer", "bool": "boolean", "date": "string", "datetime": "string", "date-time": "string",
    "uuid": "string", "text": "string", "list": "array", "map": "object", "dict": "object", "file": "string",
}  # fmt: skip
_NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COUNTS: Final = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains",
)  # fmt: skip
_SCHEMAS: Final = ("contains", "propertyNames", "not", "if", "then", "else")
_SCHEMAS_OR_FALSE: Final = ("additionalProperties", "unevaluatedProperties", "unevaluatedItems")

_CONTAINERS: Final = (
    "properties", "patternProperties", "items", "prefixItems", "allOf", "anyOf", "oneOf", *_SCHEMAS, *_SCHEMAS_OR_FALSE,
)  # fmt: skip
_OF_LEAVES: Final = (
    "type", "description", "title", "format", "enum", "const", "default", "pattern", "required", "uniqueItems",
    "deprecated", "multipleOf", "contentMediaType", "contentEncoding", *_NUMBERS, *_COUNTS, *_SCHEMAS_OR_FALSE,
)  # fmt: skip

FILE: Final[Json] = {
    "anyOf": [
        {"type": "string", "description": "The file as text."},
        {
            "type": "object",
            "description": "A file that is not text.",
            "properties": {
                "base64": {"type": "string", "contentEncoding": "base64"},
                "filename": {"type": "string"},
                "contentType": {"type": "string"},
            },
            "required": ["base64"],
            "additionalProperties": False,
        },
    ]
}


def is_file(node: Any) -> bool:
    """Whether a schema stands for bytes."""
    if not isinstance(node, dict):
        return False
    if node.get("type") == "file" or node.get("format") == "binary":
        return True
    return "contentMediaType" in node and "contentEncoding" not in node and node.get("type", "string") == "string"


def is_leaf(node: Json) -> bool:
    """Whether a schema contains no other."""
    return not any(isinstance(node.get(word), dict | list) for word in _CONTAINERS)


def leaf(node: Json, nullable: bool) -> Json:
    """What counts of a schema that contains no other, and may be null besides."""
    if not nullable:
        return node
    return {word: node[word] for word in _OF_LEAVES if word in node} | {"nullable": True}


def notes(node: Json) -> Json:
    """What a schema says to a reader."""
    kept: Json = {}
    text = words.cleaned(node.get("description"), words.FIELD) or words.cleaned(node.get("title"), 80)
    if text:
        kept["description"] = text
    return kept


def convert(node: Json, use: Use, sub: Convert) -> Json:
    """The schema `node` without its references. `sub` converts a schema inside of it."""
    if use == "form" and is_file(node):
        return {**notes(node), **FILE}
    kept = notes(node)
    kinds = _kinds(node)
    if use == "output":
        kinds = [*kinds, "null"] if kinds and "null" not in kinds else kinds
    elif node.get("nullable") is True and kinds and "null" not in kinds:
        kinds = [*kinds, "null"]
    if kinds:
        kept["type"] = kinds[0] if len(kinds) == 1 else kinds
    if isinstance(node.get("format"), str):
        kept["format"] = node["format"][:40]
    kept |= _structure(node, sub)
    if use != "output":
        kept |= _limits(node, sub, nullable="null" in kinds or node.get("nullable") is True)
    if node.get("format") == "byte":
        kept |= {"contentEncoding": "base64"}
    return kept


def _kinds(node: Json) -> list[str]:
    named = node.get("type")
    if named is None and isinstance(node.get("properties"), dict):
        named = "object"  # nearly every author means that
    found = []
    for each in named if isinstance(named, list) else [named]:
        kind = "null" if each is None and isinstance(named, list) else each
        kind = _TYPES_OF_OTHERS.get(kind, kind) if isinstance(kind, str) else None
        if kind in _TYPES and kind not in found:
            found.append(kind)
    return found


def _structure(node: Json, sub: Convert) -> Json:
    """What is inside: fields, items, alternatives."""
    kept: Json = {}
    fields = node.get("properties")
    if isinstance(fields, dict):
        kept["properties"] = {name: sub(each) for name, each in fields.items() if isinstance(each, dict | bool)}
    patterns = node.get("patternProperties")
    if isinstance(patterns, dict):
        kept["patternProperties"] = {name: sub(each) for name, each in patterns.items() if is_pattern(name)}
    items = node.get("items")
    if isinstance(items, list):  # the tuples of older drafts
        kept["prefixItems"] = [sub(each) for each in items] or [{}]
    elif isinstance(items, dict):
        kept["items"] = sub(items)
    for word in ("allOf", "anyOf", "oneOf", "prefixItems"):
        branches = node.get(word)
        if isinstance(branches, list) and branches:
            converted = [sub(each) for each in branches]
            if word == "oneOf" and "anyOf" not in kept:
                kept["anyOf"] = converted
            elif word == "oneOf":
                kept.setdefault("allOf", []).append({"anyOf": converted})
            else:
                kept[word] = converted
    if isinstance(node.get("additionalProperties"), dict):
        kept["additionalProperties"] = sub(node["additionalProperties"])
    return kept


def _limits(node: Json, sub: Convert, *, nullable: bool) -> Json:
    """What values must keep to."""
    kept: Json = {}
    for word in _COUNTS:
        if _is_number(node.get(word)) and node[word] >= 0 and int(node[word]) == node[word]:
            kept[word] = int(node[word])
    kept |= _ranges(node)
    if _is_number(node.get("multipleOf")) and node["multipleOf"] > 0:
        kept["multipleOf"] = node["multipleOf"]
    if isinstance(node.get("pattern"), str) and is_pattern(node["pattern"]):
        kept["pattern"] = node["pattern"]
    for word in ("uniqueItems", "deprecated"):
        if node.get(word) is True:
            kept[word] = True
    for word in _SCHEMAS:
        if isinstance(node.get(word), dict):
            kept[word] = sub(node[word])
    for word in _SCHEMAS_OR_FALSE:
        if node.get(word) is False or (word != "additionalProperties" and isinstance(node.get(word), dict)):
            kept[word] = False if node[word] is False else sub(node[word])
    for word in ("const", "default"):
        if word in node and (node[word] is not None or nullable or word == "const"):
            kept[word] = node[word]
    kept |= _enum(node.get("enum"), nullable)
    wanted = node.get("required")
    if isinstance(wanted, list):
        kept["required"] = list(dict.fromkeys(name for name in wanted if isinstance(name, str)))
    if not kept.get("required", True):
        del kept["required"]
    return kept


def _ranges(node: Json) -> Json:
    kept: Json = {word: node[word] for word in _NUMBERS if _is_number(node.get(word))}
    for word, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if node.get(exclusive) is True and word in kept:  # 3.0 says only that it is
            kept[exclusive] = kept.pop(word)
    return kept


def _enum(values: Any, nullable: bool) -> Json:
    if not isinstance(values, list) or not values:
        return {}
    if len(values) > MAX_ENUM:
        return {}  # a list that nobody reads; the server knows it
    found = list({msgspec.json.encode(value): value for value in values}.values())
    if nullable and None not in found:
        found.append(None)
    return {"enum": found}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@functools.lru_cache(4096)
def is_pattern(text: str) -> bool:
    """Whether the regular expression can be evaluated at all."""
    if len(text) > 1000:
        return False
    try:
        jsonschema_rs.Draft202012Validator({"pattern": text}, retriever=_refuse)
    except ValueError:
        return False
    return True


def _refuse(uri: str) -> Any:
    raise ValueError(uri)
