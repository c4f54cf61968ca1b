"""Converts one schema object of any dialect, including its descriptions, to JSON Schema 2020-12.

Documents are written by hand, so a keyword is kept only if its value is valid. Dropping a keyword makes a schema accept
more, never less. `oneOf` becomes `anyOf`, because documents use it for overlapping alternatives that no value could
satisfy. A response schema is a hint, not a contract, because servers add fields and values, and omit promised ones. So
it keeps only names and types.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import jsonschema_rs
import msgspec

from toolway.types import Json

#: Purpose of a schema: request values, form fields (they may be files), responses.
SchemaUse: TypeAlias = Literal["input", "form", "output"]
ConvertSubschema: TypeAlias = Callable[[Any], Json]

MAX_ENUM_VALUES: Final = 200
_JSON_TYPES: Final = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})
_TYPE_ALIASES: Final = {"float": "number", "double": "number", "decimal": "number", "int": "integer"} | {
    "long": "integer", "bool": "boolean", "date": "string", "datetime": "string", "date-time": "string",
    "uuid": "string", "text": "string", "list": "array", "map": "object", "dict": "object", "file": "string",
}  # fmt: skip
_RANGE_KEYWORDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COUNT_KEYWORDS: Final = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains",
)  # fmt: skip
_SUBSCHEMA_KEYWORDS: Final = ("contains", "propertyNames", "not", "if", "then", "else")
_SUBSCHEMA_OR_FALSE_KEYWORDS: Final = ("additionalProperties", "unevaluatedProperties", "unevaluatedItems")

_CONTAINER_KEYWORDS: Final = (
    "properties", "patternProperties", "items", "prefixItems", "allOf", "anyOf", "oneOf",
    *_SUBSCHEMA_KEYWORDS, *_SUBSCHEMA_OR_FALSE_KEYWORDS,
)  # fmt: skip
_LEAF_KEYWORDS: Final = (
    "type", "description", "title", "format", "enum", "const", "default", "pattern", "required", "uniqueItems",
    "deprecated", "multipleOf", "contentMediaType", "contentEncoding",
    *_RANGE_KEYWORDS, *_COUNT_KEYWORDS, *_SUBSCHEMA_OR_FALSE_KEYWORDS,
)  # fmt: skip

FILE_SCHEMA: Final[Json] = {
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


def convert_keywords(node: Json, use: SchemaUse, convert_sub: ConvertSubschema) -> Json:
    """Convert one OpenAPI schema object, which must not be a `$ref`, to JSON Schema 2020-12.

    `use` is what the schema is for. `convert_sub` converts its subschemas.
    """
    if use == "form" and is_file_schema(node):
        return {**describe_schema(node), **FILE_SCHEMA}
    schema = describe_schema(node)
    kinds = _type_names(node)
    if use == "output":
        kinds = [*kinds, "null"] if kinds and "null" not in kinds else kinds
    elif node.get("nullable") is True and kinds and "null" not in kinds:
        kinds = [*kinds, "null"]
    if kinds:
        schema["type"] = kinds[0] if len(kinds) == 1 else kinds
    if isinstance(node.get("format"), str):
        schema["format"] = node["format"][:40]
    schema |= _convert_structure(node, convert_sub)
    if use != "output":
        schema |= _convert_constraints(node, convert_sub, nullable="null" in kinds or node.get("nullable") is True)
    if node.get("format") == "byte":
        schema |= {"contentEncoding": "base64"}
    return schema


def _type_names(node: Json) -> list[str]:
    named = node.get("type")
    if named is None and isinstance(node.get("properties"), dict):
        named = "object"  # the intention of nearly every author
    found = []
    for each in named if isinstance(named, list) else [named]:
        kind = "null" if each is None and isinstance(named, list) else each
        kind = _TYPE_ALIASES.get(kind, kind) if isinstance(kind, str) else None
        if kind in _JSON_TYPES and kind not in found:
            found.append(kind)
    return found


def _convert_structure(node: Json, convert_sub: ConvertSubschema) -> Json:
    """Convert the keywords that contain schemas: fields, items, alternatives."""
    schema: Json = {}
    fields = node.get("properties")
    if isinstance(fields, dict):
        schema["properties"] = {
            name: convert_sub(each) for name, each in fields.items() if isinstance(each, dict | bool)
        }
    patterns = node.get("patternProperties")
    if isinstance(patterns, dict):
        schema["patternProperties"] = {
            name: convert_sub(each) for name, each in patterns.items() if is_valid_pattern(name)
        }
    items = node.get("items")
    if isinstance(items, list):  # tuples in older drafts
        schema["prefixItems"] = [convert_sub(each) for each in items] or [{}]
    elif isinstance(items, dict):
        schema["items"] = convert_sub(items)
    for keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
        branches = node.get(keyword)
        if isinstance(branches, list) and branches:
            converted = [convert_sub(each) for each in branches]
            if keyword == "oneOf" and "anyOf" not in schema:
                schema["anyOf"] = converted
            elif keyword == "oneOf":
                schema.setdefault("allOf", []).append({"anyOf": converted})
            else:
                schema[keyword] = converted
    if isinstance(node.get("additionalProperties"), dict):
        schema["additionalProperties"] = convert_sub(node["additionalProperties"])
    return schema


def _convert_constraints(node: Json, convert_sub: ConvertSubschema, *, nullable: bool) -> Json:
    """Convert the keywords that constrain values: counts, ranges, patterns, enums, required."""
    schema: Json = {}
    for keyword in _COUNT_KEYWORDS:
        if _is_number(node.get(keyword)) and node[keyword] >= 0 and int(node[keyword]) == node[keyword]:
            schema[keyword] = int(node[keyword])
    schema |= _convert_ranges(node)
    if _is_number(node.get("multipleOf")) and node["multipleOf"] > 0:
        schema["multipleOf"] = node["multipleOf"]
    if isinstance(node.get("pattern"), str) and is_valid_pattern(node["pattern"]):
        schema["pattern"] = node["pattern"]
    for keyword in ("uniqueItems", "deprecated"):
        if node.get(keyword) is True:
            schema[keyword] = True
    for keyword in _SUBSCHEMA_KEYWORDS:
        if isinstance(node.get(keyword), dict):
            schema[keyword] = convert_sub(node[keyword])
    for keyword in _SUBSCHEMA_OR_FALSE_KEYWORDS:
        if node.get(keyword) is False or (keyword != "additionalProperties" and isinstance(node.get(keyword), dict)):
            schema[keyword] = False if node[keyword] is False else convert_sub(node[keyword])
    for keyword in ("const", "default"):
        if keyword in node and (node[keyword] is not None or nullable or keyword == "const"):
            schema[keyword] = node[keyword]
    schema |= _convert_enum(node.get("enum"), nullable)
    required = node.get("required")
    if isinstance(required, list):
        schema["required"] = list(dict.fromkeys(name for name in required if isinstance(name, str)))
    if not schema.get("required", True):
        del schema["required"]
    return schema


def _convert_ranges(node: Json) -> Json:
    schema: Json = {keyword: node[keyword] for keyword in _RANGE_KEYWORDS if _is_number(node.get(keyword))}
    for keyword, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if node.get(exclusive) is True and keyword in schema:  # 3.0 has a boolean here
            schema[exclusive] = schema.pop(keyword)
    return schema


def _convert_enum(values: Any, nullable: bool) -> Json:
    if not isinstance(values, list) or not values:
        return {}
    if len(values) > MAX_ENUM_VALUES:
        return {}  # too long for a model; the server checks the value
    found = list({msgspec.json.encode(value): value for value in values}.values())
    if nullable and None not in found:
        found.append(None)
    return {"enum": found}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_file_schema(node: Any) -> bool:
    """Return True if a schema describes binary data, such as an uploaded file."""
    if not isinstance(node, dict):
        return False
    if node.get("type") == "file" or node.get("format") == "binary":
        return True
    return "contentMediaType" in node and "contentEncoding" not in node and node.get("type", "string") == "string"


def is_leaf_schema(node: Json) -> bool:
    """Return True if a schema contains no other schema."""
    return not any(isinstance(node.get(keyword), dict | list) for keyword in _CONTAINER_KEYWORDS)


def leaf_keywords(node: Json, nullable: bool) -> Json:
    """Return the keywords of a schema that contains no other schema, allowing null if `nullable` is True."""
    if not nullable:
        return node
    return {keyword: node[keyword] for keyword in _LEAF_KEYWORDS if keyword in node} | {"nullable": True}


def describe_schema(node: Json) -> Json:
    """Return a schema's `description` keyword, cleaned and truncated, or nothing if it has no text."""
    schema: Json = {}
    text = clean_text(node.get("description"), MAX_FIELD_TEXT) or clean_text(node.get("title"), 80)
    if text:
        schema["description"] = text
    return schema


@functools.lru_cache(4096)
def is_valid_pattern(text: str) -> bool:
    """Return True if the regular expression is valid and has at most 1000 characters."""
    if len(text) > 1000:
        return False
    try:
        jsonschema_rs.Draft202012Validator({"pattern": text}, retriever=_reject_external)
    except ValueError:
        return False
    return True


def _reject_external(uri: str) -> Any:
    raise ValueError(uri)


# -- text, cleaned and shortened for models ---------------------------------------------------------------------------

MAX_TOOL_TEXT: Final = 1000  # characters of a tool's description
MAX_FIELD_TEXT: Final = 300  # characters of an argument's or a property's description

_MARKDOWN_LINK: Final = re.compile(r"\[([^\[\]]{1,200})\]\([^()\s]{0,500}\)")
_HTML_TAG: Final = re.compile(
    r"</?(?:p|br|a|b|i|em|strong|ul|ol|li|code|pre|div|span|h[1-6]|table|thead|tbody|tr|td|th|sup|sub|hr)\b[^<>]{0,300}>"
)
_INVISIBLE: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)
_SPACE: Final = re.compile(r"[ \t]+")
_BLANK_LINES: Final = re.compile(r"\n\s*\n\s*")


def clean_text(text: Any, limit: int) -> str:
    """Return `text` without link targets, HTML tags, and invisible characters, cut at a word."""
    if not isinstance(text, str):
        return ""
    text = text[: limit * 4]  # enough, even after the removals
    for pattern, replacement in (
        (_INVISIBLE, ""),
        (_MARKDOWN_LINK, r"\1"),
        (_HTML_TAG, " "),
        (_SPACE, " "),
        (_BLANK_LINES, "\n\n"),
    ):
        text = pattern.sub(replacement, text)
    return truncate(text.strip(), limit)


def truncate(text: str, limit: int) -> str:
    """Truncate text to `limit` characters, at the end of a sentence, line, or word."""
    if len(text) <= limit:
        return text
    head = text[: limit - 2]
    for mark in (". ", ".\n", "\n", " "):
        end = head.rfind(mark)
        if end > limit // 2:
            return f"{head[: end + 1].rstrip()} …"
    return f"{head} …"


def operation_texts(operation: Any, method: str, path: str) -> tuple[str, str]:
    """Return the title and description of the MCP tool for an API operation."""
    summary = clean_text(operation.get("summary"), 200).replace("\n", " ")
    text = clean_text(operation.get("description"), MAX_TOOL_TEXT)
    if not text or text.startswith(summary):
        whole = text or summary or f"{method} {path}"
    else:
        whole = truncate(f"{summary}\n\n{text}" if summary else text, MAX_TOOL_TEXT)
    if operation.get("deprecated") is True:
        whole = f"Deprecated. {whole}"
    return truncate(summary, 80), whole
