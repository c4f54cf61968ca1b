"""Converts an OpenAPI document's schemas to JSON Schema for input, form, or output.

Referenced schemas become `$defs`, so cycles are preserved. A model reads the result, so its size in bytes is limited,
and deeper parts accept anything. Each definition is converted once, for all tools that use it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from toolway.parts.openapi.document import schema_keywords
from toolway.parts.openapi.document.models import InvalidDocument
from toolway.parts.openapi.document.parser import RefResolver, UnresolvedRef
from toolway.parts.openapi.document.schema_keywords import SchemaUse
from toolway.types import Json

MAX_NESTING: Final = 20  # nested schemas, not counting references
MAX_SCHEMAS: Final = 1_000_000  # converted schemas of one document, in total
MAX_SCHEMA_BYTES: Final = 16_000  # bytes of JSON
_INVALID_NAME_CHARS: Final = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class ConvertedSchema:
    """A converted schema, its size, and the names of the `$defs` definitions it refers to."""

    schema: Json
    definition_names: tuple[str, ...]
    size_bytes: int  # bytes of JSON


class SchemaConverter:
    """Converts the schemas of an OpenAPI document for one use (input, form or output)."""

    def __init__(self, refs: RefResolver, use: SchemaUse) -> None:
        self._refs = refs
        self._use = use
        self._suffix = ".form" if use == "form" else ""  # a tool may have definitions of both kinds
        self._names: dict[str, str] = {}  # by reference
        self._references: dict[str, str] = {}  # by name
        self._definitions: dict[str, ConvertedSchema] = {}
        self._outlines: dict[str, ConvertedSchema] = {}
        self._converted_roots: dict[int, tuple[Any, ConvertedSchema]] = {}  # by id() of the node, which it keeps alive
        self._converted_count = 0
        self.warnings: list[str] = []  # reasons why schemas were left open

    def convert(self, node: Any) -> ConvertedSchema:
        """Convert the OpenAPI schema `node` to JSON Schema, pruned to the size limit.

        Raises `UnresolvedRef` if an input or form schema refers to another document, and `InvalidDocument` if the
        document has too many schemas.
        """
        known = self._converted_roots.get(id(node))
        if known is None:
            definition_names: dict[str, None] = {}
            schema = self._convert_node(node, 0, definition_names)
            known = self._converted_roots[id(node)] = (
                node,
                fit_size(_measure(schema, tuple(definition_names)), MAX_SCHEMA_BYTES),
            )
        return known[1]

    def get_definition(self, name: str) -> ConvertedSchema:
        """Return the converted schema that `#/$defs/<name>` refers to."""
        found = self._definitions.get(name)
        if found is None:
            target = self._refs.follow({"$ref": self._references[name]})
            found = self._definitions[name] = self.convert(target)
        return found

    def inline_reference(self, converted: ConvertedSchema) -> ConvertedSchema:
        """Return the definition that a schema refers to if it is only a `$ref`, or else the schema itself."""
        name = _referenced_name(converted.schema)
        if name is None:
            return converted
        found = self.get_definition(name)
        schema = {**found.schema, **{keyword: text for keyword, text in converted.schema.items() if keyword != "$ref"}}
        return ConvertedSchema(schema, found.definition_names, found.size_bytes)

    def collect_definitions(self, roots: list[ConvertedSchema], budget: int) -> dict[str, Json]:
        """Return the `$defs` that the schemas in `roots` need, in at most `budget` bytes.

        The nearest definitions are complete. The others are reduced to an outline, or to their type and description.
        """
        found: dict[str, Json] = {}
        bytes_left = budget - sum(root.size_bytes for root in roots)
        pending = deque(name for root in roots for name in root.definition_names)
        while pending:
            name = pending.popleft()
            if name in found:
                continue
            definition = self.get_definition(name)
            if definition.size_bytes <= bytes_left:
                pending.extend(definition.definition_names)
            else:
                definition = self._outline(name, definition, bytes_left)
            bytes_left -= definition.size_bytes
            found[name] = definition.schema
        return found

    def _outline(self, name: str, definition: ConvertedSchema, bytes_left: int) -> ConvertedSchema:
        """Return a definition's outline: its fields without nested details.

        If the outline has more than `bytes_left` bytes, return only the type and description.
        """
        if name not in self._outlines:
            self._outlines[name] = _measure(prune(definition.schema, 1), ())
        outline = self._outlines[name]
        return outline if outline.size_bytes <= bytes_left else _measure(placeholder(definition.schema), ())

    def _convert_node(self, node: Any, level: int, definition_names: dict[str, None]) -> Json:
        if not isinstance(node, dict):
            return {} if node is not False else {"not": {}}
        if level > MAX_NESTING:
            return {}
        self._converted_count += 1
        if self._converted_count > MAX_SCHEMAS:
            raise InvalidDocument(
                f"its operations have more than {MAX_SCHEMAS:,} schemas", hint="select fewer operations"
            )
        reference = node.get("$ref")
        if isinstance(reference, str):
            return self._convert_reference(node, reference, level, definition_names)
        node = preprocess(node, self._use, self._refs)
        schema = schema_keywords.convert_keywords(
            node, self._use, lambda each: self._convert_node(each, level + 1, definition_names)
        )
        return _simplify(schema, nullable=node.get("nullable") is True or self._use == "output")

    def _convert_reference(self, node: Json, reference: str, level: int, definition_names: dict[str, None]) -> Json:
        try:
            target = self._refs.follow(node)
        except UnresolvedRef as exc:
            if not reference.startswith("#") and self._use != "output":
                raise
            self.warnings.append(str(exc))
            return schema_keywords.describe_schema(node)
        if not isinstance(target, dict):
            return self._convert_node(target, level, definition_names)
        description = schema_keywords.describe_schema(node)
        if schema_keywords.is_leaf_schema(target):
            return {
                **self._convert_node(
                    schema_keywords.leaf_keywords(target, _is_nullable(node)), level, definition_names
                ),
                **description,
            }
        name = self._definition_name(reference)
        definition_names[name] = None
        found: Json = {"$ref": f"#/$defs/{name}"}
        siblings = {
            keyword: value
            for keyword, value in node.items()
            if keyword not in ("$ref", "description", "nullable", "title")
        }
        if siblings and "type" not in siblings:  # 3.1 allows keywords next to a reference
            extra = self._convert_node(siblings, level + 1, definition_names)
            found |= {keyword: value for keyword, value in extra.items() if keyword not in found}
        if _is_nullable(node) and self._use != "output":
            found = {"anyOf": [found, {"type": "null"}]}
        return {**found, **description}

    def _definition_name(self, reference: str) -> str:
        known = self._names.get(reference)
        if known is not None:
            return known
        plain = _INVALID_NAME_CHARS.sub("_", reference.rsplit("/", 1)[-1].replace("~1", "_"))[:60] or "schema"
        plain += self._suffix
        name, number = plain, 2
        while name in self._references:
            name, number = f"{plain}_{number}", number + 1
        self._names[reference] = name
        self._references[name] = reference
        return name


def _is_nullable(node: Json) -> bool:
    return node.get("nullable") is True


def _referenced_name(schema: Json) -> str | None:
    reference = schema.get("$ref")
    if isinstance(reference, str) and not schema.keys() - {"$ref", "description"}:
        return reference.removeprefix("#/$defs/")
    return None


def _simplify(schema: Json, *, nullable: bool) -> Json:
    """Inline an `allOf` with one branch, and allow null if `nullable` is True.

    In OpenAPI 3.0, such an `allOf` is how documents add a description to a reference.
    """
    branches = schema.get("allOf")
    if isinstance(branches, list) and len(branches) == 1 and not schema.keys() - {"allOf", "description"}:
        schema = {**branches[0], **{keyword: text for keyword, text in schema.items() if keyword != "allOf"}}
        return {"anyOf": [schema, {"type": "null"}]} if nullable and "type" not in schema else schema
    if nullable and "type" not in schema and "anyOf" in schema and {"type": "null"} not in schema["anyOf"]:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    return schema


# -- size --------------------------------------------------------------------------------------------------------------


def fit_size(converted: ConvertedSchema, budget: int) -> ConvertedSchema:
    """Reduce a schema to at most `budget` bytes of JSON by pruning its deepest levels."""
    for levels in (6, 5, 4, 3, 2, 1, 0):
        if converted.size_bytes <= budget:
            return converted
        schema = prune(converted.schema, levels)
        converted = _measure(schema, tuple(dict.fromkeys(_find_references(schema))))
    return converted


def prune(schema: Any, levels: int) -> Any:
    """Return a schema cut below `levels` levels: deeper schemas keep only type and description."""
    if levels <= 0:
        return placeholder(schema)
    result = dict(schema)
    for keyword, value in schema.items():
        if keyword in ("properties", "patternProperties") and isinstance(value, dict):
            result[keyword] = {name: prune(each, levels - 1) for name, each in value.items()}
        elif keyword in ("anyOf", "allOf", "prefixItems") and isinstance(value, list):
            result[keyword] = [prune(each, levels - 1) for each in value]
        elif keyword in ("items", "additionalProperties", "not", "if", "then", "else") and isinstance(value, dict):
            result[keyword] = prune(value, levels - 1)
    return result


def placeholder(schema: Json) -> Json:
    """Return what replaces a schema over the size limit: only its `type` and `description`."""
    return {keyword: schema[keyword] for keyword in ("type", "description") if keyword in schema}


def _measure(schema: Json, definition_names: tuple[str, ...]) -> ConvertedSchema:
    return ConvertedSchema(schema, definition_names, len(msgspec.json.encode(schema)))


def _find_references(schema: Json) -> Iterator[str]:
    pending: deque[Any] = deque([schema])
    while pending:
        node = pending.popleft()
        if isinstance(node, dict) and isinstance(node.get("$ref"), str):
            yield node["$ref"].removeprefix("#/$defs/")
        inside = node.values() if isinstance(node, dict) else node
        pending.extend(each for each in inside if isinstance(each, dict | list))


# -- additions of OpenAPI: readOnly, writeOnly, discriminator ----------------------------------------------------------


def preprocess(node: Json, use: SchemaUse, refs: RefResolver) -> Json:
    """Apply `readOnly`, `writeOnly` and `discriminator` to a schema, for input or output.

    The result is still in the dialect of the OpenAPI document.
    """
    if use == "output":
        return _remove_one_way_fields(node, "writeOnly", refs)
    if isinstance(node.get("discriminator"), dict):
        node = _apply_discriminator(node, refs)
    return _remove_one_way_fields(node, "readOnly", refs)


def _remove_one_way_fields(node: Json, keyword: str, refs: RefResolver) -> Json:
    """Remove the fields marked with `keyword` (`readOnly` or `writeOnly`) from a schema.

    They are also removed from `required` and from the parts of `allOf`.
    """
    removed: set[str] = set().union(*(_marked_fields(each, keyword, refs) for each in [node, *_all_of_parts(node)]))
    if not removed:
        return node
    node = _strip_fields(node, removed)
    if isinstance(node.get("allOf"), list):
        node["allOf"] = [_strip_fields(part, removed) if _is_inline(part) else part for part in node["allOf"]]
    return node


def _strip_fields(node: Json, removed: set[str]) -> Json:
    result = dict(node)
    fields, required = node.get("properties"), node.get("required")
    if isinstance(fields, dict):
        result["properties"] = {name: each for name, each in fields.items() if name not in removed}
    if isinstance(required, list):
        result["required"] = [name for name in required if name not in removed]
    return result


def _marked_fields(node: Any, keyword: str, refs: RefResolver) -> set[str]:
    found = _resolve_or_none(node, refs)
    fields = found.get("properties") if isinstance(found, dict) else None
    if not isinstance(fields, dict):
        return set()
    key = keyword, id(fields)
    known = refs.marked_fields.get(key)
    if known is None:  # the cache also holds the fields, so their id() stays unique
        known = refs.marked_fields[key] = (
            fields,
            {name for name, each in fields.items() if _is_marked(each, keyword, refs)},
        )
    return known[1]


def _is_marked(field: Any, keyword: str, refs: RefResolver) -> bool:
    if not isinstance(field, dict):
        return False
    target = _resolve_or_none(field, refs)
    return field.get(keyword) is True or (isinstance(target, dict) and target.get(keyword) is True)


def _apply_discriminator(node: Json, refs: RefResolver) -> Json:
    """Give each of a schema's alternatives the discriminator value that identifies it."""
    field = node["discriminator"].get("propertyName")
    keyword = next((keyword for keyword in ("oneOf", "anyOf") if isinstance(node.get(keyword), list)), None)
    if not isinstance(field, str) or keyword is None:
        return node
    values = _discriminator_values(node["discriminator"].get("mapping"))
    return {**node, keyword: [_pin_discriminator(each, field, values, refs) for each in node[keyword]]}


def _discriminator_values(mapping: Any) -> dict[str, list[str]]:
    """Return the discriminator values that select each schema, by the reference to the schema."""
    found: dict[str, list[str]] = {}
    for value, target in mapping.items() if isinstance(mapping, dict) else ():
        if isinstance(target, str):
            found.setdefault(target if "/" in target else f"#/components/schemas/{target}", []).append(str(value))
    return found


def _pin_discriminator(branch: Any, field: str, values: dict[str, list[str]], refs: RefResolver) -> Any:
    reference = branch.get("$ref") if isinstance(branch, dict) else None
    if not isinstance(reference, str) or _has_fixed_value(_resolve_or_none(branch, refs), field, refs):
        return branch
    names = values.get(reference) or ([] if values else [reference.rsplit("/", 1)[-1]])
    if not names:
        return branch
    return {"allOf": [branch, {"properties": {field: {"enum": names}}, "required": [field]}]}


def _has_fixed_value(target: Any, field: str, refs: RefResolver) -> bool:
    """Return True if an alternative itself fixes the value of the discriminator field."""
    for part in [target, *_all_of_parts(target)]:
        part = _resolve_or_none(part, refs)
        fields = part.get("properties") if isinstance(part, dict) else None
        field_schema = _resolve_or_none(fields.get(field), refs) if isinstance(fields, dict) else None
        if isinstance(field_schema, dict) and ("const" in field_schema or "enum" in field_schema):
            return True
    return False


def _all_of_parts(node: Any) -> list[Any]:
    parts = node.get("allOf") if isinstance(node, dict) else None
    return parts if isinstance(parts, list) else []


def _is_inline(part: Any) -> bool:
    return isinstance(part, dict) and "$ref" not in part


def _resolve_or_none(node: Any, refs: RefResolver) -> Any:
    try:
        return refs.follow(node)
    except UnresolvedRef:
        return None
