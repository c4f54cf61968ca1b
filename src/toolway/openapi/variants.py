"""What OpenAPI adds to schemas, worked into them: fields of one direction only, and discriminators."""

from __future__ import annotations

from typing import Any

from toolway.model import Json
from toolway.openapi.keywords import Use
from toolway.openapi.pointers import Pointers, Unresolved


def prepared(node: Json, use: Use, pointers: Pointers) -> Json:
    """A schema as it is for this use, still in the dialect of the document."""
    if use == "output":
        return _without(node, "writeOnly", pointers)
    if isinstance(node.get("discriminator"), dict):
        node = _told_apart(node, pointers)
    return _without(node, "readOnly", pointers)


def _without(node: Json, word: str, pointers: Pointers) -> Json:
    """`node` without the fields that only go the other way; nor are they required, here or in the parts of `allOf`."""
    gone: set[str] = set().union(*(_fields_with(each, word, pointers) for each in [node, *_parts(node)]))
    if not gone:
        return node
    node = _strip(node, gone)
    if isinstance(node.get("allOf"), list):
        node["allOf"] = [_strip(part, gone) if _is_inline(part) else part for part in node["allOf"]]
    return node


def _strip(node: Json, gone: set[str]) -> Json:
    kept = dict(node)
    fields, wanted = node.get("properties"), node.get("required")
    if isinstance(fields, dict):
        kept["properties"] = {name: each for name, each in fields.items() if name not in gone}
    if isinstance(wanted, list):
        kept["required"] = [name for name in wanted if name not in gone]
    return kept


def _fields_with(node: Any, word: str, pointers: Pointers) -> set[str]:
    found = _resolved(node, pointers)
    fields = found.get("properties") if isinstance(found, dict) else None
    if not isinstance(fields, dict):
        return set()
    key = word, id(fields)
    known = pointers.marked.get(key)
    if known is None:  # the fields are kept beside, so that their identity stays theirs
        known = pointers.marked[key] = fields, {name for name, each in fields.items() if _says(each, word, pointers)}
    return known[1]


def _says(field: Any, word: str, pointers: Pointers) -> bool:
    if not isinstance(field, dict):
        return False
    target = _resolved(field, pointers)
    return field.get(word) is True or (isinstance(target, dict) and target.get(word) is True)


def _told_apart(node: Json, pointers: Pointers) -> Json:
    """Each alternative with the value by which the server knows it."""
    field = node["discriminator"].get("propertyName")
    word = next((word for word in ("oneOf", "anyOf") if isinstance(node.get(word), list)), None)
    if not isinstance(field, str) or word is None:
        return node
    values = _values(node["discriminator"].get("mapping"))
    return {**node, word: [_with_value(each, field, values, pointers) for each in node[word]]}


def _values(mapping: Any) -> dict[str, list[str]]:
    """Reference → the values that stand for it."""
    found: dict[str, list[str]] = {}
    for value, target in mapping.items() if isinstance(mapping, dict) else ():
        if isinstance(target, str):
            found.setdefault(target if "/" in target else f"#/components/schemas/{target}", []).append(str(value))
    return found


def _with_value(branch: Any, field: str, values: dict[str, list[str]], pointers: Pointers) -> Any:
    reference = branch.get("$ref") if isinstance(branch, dict) else None
    if not isinstance(reference, str) or _is_fixed(_resolved(branch, pointers), field, pointers):
        return branch
    names = values.get(reference) or ([] if values else [reference.rsplit("/", 1)[-1]])
    if not names:
        return branch
    return {"allOf": [branch, {"properties": {field: {"enum": names}}, "required": [field]}]}


def _is_fixed(target: Any, field: str, pointers: Pointers) -> bool:
    """Whether the alternative itself says which value its field has."""
    for part in [target, *_parts(target)]:
        part = _resolved(part, pointers)
        fields = part.get("properties") if isinstance(part, dict) else None
        said = _resolved(fields.get(field), pointers) if isinstance(fields, dict) else None
        if isinstance(said, dict) and ("const" in said or "enum" in said):
            return True
    return False


def _parts(node: Any) -> list[Any]:
    parts = node.get("allOf") if isinstance(node, dict) else None
    return parts if isinstance(parts, list) else []


def _is_inline(part: Any) -> bool:
    return isinstance(part, dict) and "$ref" not in part


def _resolved(node: Any, pointers: Pointers) -> Any:
    try:
        return pointers.follow(node)
    except Unresolved:
        return None
