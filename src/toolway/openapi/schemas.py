"""The schemas of one document, for one use. What is referred to becomes `$defs`, so cycles stay what they are.

What a model reads must be small: a schema may have so many bytes, and what lies beyond is left open. Definitions are
converted once and shared by all tools that use them.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from toolway.model import Json
from toolway.openapi import keywords, variants
from toolway.openapi.keywords import Use
from toolway.openapi.pointers import Pointers, Unresolved
from toolway.openapi.problems import BadDocument

MAX_LEVELS: Final = 20  # schemas inside of schemas, without references
MAX_WORK: Final = 1_000_000  # schemas of one document that are converted, in all
MAX_SCHEMA: Final = 16_000  # bytes of JSON
_NOT_FOR_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Converted:
    """A schema, and the definitions that it refers to."""

    schema: Json
    uses: tuple[str, ...]
    size: int  # bytes of JSON


class Schemas:
    """Converts schemas for one use."""

    def __init__(self, pointers: Pointers, use: Use) -> None:
        self._pointers = pointers
        self._use = use
        self._suffix = ".form" if use == "form" else ""  # a tool may have definitions of both kinds
        self._names: dict[str, str] = {}  # by reference
        self._references: dict[str, str] = {}  # by name
        self._definitions: dict[str, Converted] = {}
        self._outlines: dict[str, Converted] = {}
        self._roots: dict[
            int, tuple[Any, Converted]
        ] = {}  # by identity of the node, which is kept so that it stays one
        self._work = 0
        self.open: list[str] = []  # why schemas were left open

    def convert(self, node: Any) -> Converted:
        """The schema of `node`. Raises `Unresolved` for a reference to another document, except in answers."""
        known = self._roots.get(id(node))
        if known is None:
            uses: dict[str, None] = {}
            schema = self._of(node, 0, uses)
            known = self._roots[id(node)] = node, fitted(_measured(schema, tuple(uses)), MAX_SCHEMA)
        return known[1]

    def definition(self, name: str) -> Converted:
        found = self._definitions.get(name)
        if found is None:
            target = self._pointers.follow({"$ref": self._references[name]})
            found = self._definitions[name] = self.convert(target)
        return found

    def unfold(self, converted: Converted) -> Converted:
        """The same with the definition itself instead of a mere reference to one, so that its fields are seen first."""
        name = _refers_to(converted.schema)
        if name is None:
            return converted
        found = self.definition(name)
        schema = {**found.schema, **{word: text for word, text in converted.schema.items() if word != "$ref"}}
        return Converted(schema, found.uses, found.size)

    def closure(self, roots: list[Converted], budget: int) -> dict[str, Json]:
        """The `$defs` for some schemas: the nearest whole, and of others what there is room for."""
        found: dict[str, Json] = {}
        left = budget - sum(root.size for root in roots)
        line = deque(name for root in roots for name in root.uses)
        while line:
            name = line.popleft()
            if name in found:
                continue
            definition = self.definition(name)
            if definition.size <= left:
                line.extend(definition.uses)
            else:
                definition = self._outline(name, definition, left)
            left -= definition.size
            found[name] = definition.schema
        return found

    def _outline(self, name: str, definition: Converted, room: int) -> Converted:
        """The fields of a definition without what is inside of them, or its mere type."""
        if name not in self._outlines:
            self._outlines[name] = _measured(pruned(definition.schema, 1), ())
        outline = self._outlines[name]
        return outline if outline.size <= room else _measured(stub(definition.schema), ())

    def _of(self, node: Any, level: int, uses: dict[str, None]) -> Json:
        if not isinstance(node, dict):
            return {} if node is not False else {"not": {}}
        if level > MAX_LEVELS:
            return {}
        self._work += 1
        if self._work > MAX_WORK:
            raise BadDocument(f"more than {MAX_WORK:,} schemas in its operations", fix="choose fewer operations")
        reference = node.get("$ref")
        if isinstance(reference, str):
            return self._reference(node, reference, level, uses)
        node = variants.prepared(node, self._use, self._pointers)
        schema = keywords.convert(node, self._use, lambda each: self._of(each, level + 1, uses))
        return _simplified(schema, nullable=node.get("nullable") is True or self._use == "output")

    def _reference(self, node: Json, reference: str, level: int, uses: dict[str, None]) -> Json:
        try:
            target = self._pointers.follow(node)
        except Unresolved as exc:
            if not reference.startswith("#") and self._use != "output":
                raise
            self.open.append(str(exc))
            return keywords.notes(node)
        if not isinstance(target, dict):
            return self._of(target, level, uses)
        beside = keywords.notes(node)
        if keywords.is_leaf(target):
            return {**self._of(keywords.leaf(target, _nullable(node)), level, uses), **beside}
        name = self._name(reference)
        uses[name] = None
        found: Json = {"$ref": f"#/$defs/{name}"}
        siblings = {
            word: value for word, value in node.items() if word not in ("$ref", "description", "nullable", "title")
        }
        if siblings and "type" not in siblings:  # 3.1 lets a reference have company
            extra = self._of(siblings, level + 1, uses)
            found |= {word: value for word, value in extra.items() if word not in found}
        if _nullable(node) and self._use != "output":
            found = {"anyOf": [found, {"type": "null"}]}
        return {**found, **beside}

    def _name(self, reference: str) -> str:
        known = self._names.get(reference)
        if known is not None:
            return known
        plain = _NOT_FOR_NAMES.sub("_", reference.rsplit("/", 1)[-1].replace("~1", "_"))[:60] or "schema"
        plain += self._suffix
        name, number = plain, 2
        while name in self._references:
            name, number = f"{plain}_{number}", number + 1
        self._names[reference] = name
        self._references[name] = reference
        return name


def fitted(converted: Converted, budget: int) -> Converted:
    """A schema that is no larger than that, with as many levels as there is room for."""
    for levels in (6, 5, 4, 3, 2, 1, 0):
        if converted.size <= budget:
            return converted
        schema = pruned(converted.schema, levels)
        converted = _measured(schema, tuple(dict.fromkeys(_references(schema))))
    return converted


def _measured(schema: Json, uses: tuple[str, ...]) -> Converted:
    return Converted(schema, uses, len(msgspec.json.encode(schema)))


def _references(schema: Json) -> Iterator[str]:
    line: deque[Any] = deque([schema])
    while line:
        node = line.popleft()
        if isinstance(node, dict) and isinstance(node.get("$ref"), str):
            yield node["$ref"].removeprefix("#/$defs/")
        inside = node.values() if isinstance(node, dict) else node
        line.extend(each for each in inside if isinstance(each, dict | list))


def stub(schema: Json) -> Json:
    """What is left of a schema for which there is no room."""
    return {word: schema[word] for word in ("type", "description") if word in schema}


def pruned(schema: Any, levels: int) -> Any:
    """A schema of which only the first levels of fields are kept."""
    if levels <= 0:
        return stub(schema)
    kept = dict(schema)
    for word, value in schema.items():
        if word in ("properties", "patternProperties") and isinstance(value, dict):
            kept[word] = {name: pruned(each, levels - 1) for name, each in value.items()}
        elif word in ("anyOf", "allOf", "prefixItems") and isinstance(value, list):
            kept[word] = [pruned(each, levels - 1) for each in value]
        elif word in ("items", "additionalProperties", "not", "if", "then", "else") and isinstance(value, dict):
            kept[word] = pruned(value, levels - 1)
    return kept


def _nullable(node: Json) -> bool:
    return node.get("nullable") is True


def _refers_to(schema: Json) -> str | None:
    reference = schema.get("$ref")
    if isinstance(reference, str) and not schema.keys() - {"$ref", "description"}:
        return reference.removeprefix("#/$defs/")
    return None


def _simplified(schema: Json, *, nullable: bool) -> Json:
    """`allOf` with one branch is a way of 3.0 to put a description beside a reference."""
    branches = schema.get("allOf")
    if isinstance(branches, list) and len(branches) == 1 and not schema.keys() - {"allOf", "description"}:
        schema = {**branches[0], **{word: text for word, text in schema.items() if word != "allOf"}}
        return {"anyOf": [schema, {"type": "null"}]} if nullable and "type" not in schema else schema
    if nullable and "type" not in schema and "anyOf" in schema and {"type": "null"} not in schema["anyOf"]:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    return schema
