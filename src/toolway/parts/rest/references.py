"""Moves the JSON Schema of a tool into the components of an OpenAPI document, so its references still work.

In an OpenAPI document `#` is the document, so a reference inside a schema would lead to another place. Each of the
schema's definitions becomes a component, anchors become pointers, and a reference that leads nowhere is left out: the
schema then accepts anything there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote, unquote

from toolway.types import Json

_DEFINITIONS: Final = ("$defs", "definitions")
#: Keywords whose value has a schema for each name.
_MAPS: Final = frozenset({*_DEFINITIONS, "properties", "patternProperties", "dependentSchemas", "dependencies"})
_DATA: Final = frozenset({"const", "enum", "default", "examples", "example", "required"})  # not schemas
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")
_DROPPED: Final = frozenset({*_ANCHORS, *_REFERENCES, "$id", "id", "$schema", "$recursiveAnchor", "$vocabulary"})
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")
_PREFIX: Final = "#/components/schemas/"

Path = tuple[str, ...]


def add_schema(schema: Json, name: str, components: Json) -> Json:
    """Add a schema to the components, under `name` and names that begin with it. Return a reference to it."""
    _Move(schema, name, components).run()
    return {"$ref": _PREFIX + name}


class _Move:
    def __init__(self, schema: Json, name: str, components: Json) -> None:
        self._schema = schema
        self._name = name
        self._components = components
        self._names: dict[Path, str] = {(): name}  # by the path in the schema
        self._anchors: dict[str, Path] = {}  # also ids, which a reference may name in full
        for path, node in _walk(schema):
            for key in _ANCHORS:
                if isinstance(anchor := node.get(key), str):
                    self._anchors.setdefault(f"#{anchor}", path)
            if isinstance(id_ := node.get("$id"), str):
                self._anchors.setdefault(id_.rstrip("#"), path)

    def run(self) -> None:
        found = [(key, each) for key in _DEFINITIONS for each in _mapping(self._schema.get(key))]
        for key, each in found:
            self._names[key, each] = self._free_name(f"{self._name}.{_UNSAFE.sub('_', each)}")
        for path, name in self._names.items():
            node = self._schema if not path else self._schema[path[0]][path[1]]
            if not path:
                node = {key: value for key, value in node.items() if key not in _DEFINITIONS}
            self._components[name] = self._convert(node)

    def _free_name(self, wanted: str) -> str:
        name, number = wanted, 2
        while name in self._components or name in self._names.values():
            name, number = f"{wanted}_{number}", number + 1
        return name

    def _convert(self, node: Any) -> Any:
        """Return a schema as it stands in the components. Its data, such as a default, stays as it is."""
        if not isinstance(node, dict):
            return [self._convert(each) for each in node] if isinstance(node, list) else node
        converted: Json = {}
        for key, value in node.items():
            if key in _DATA:
                converted[key] = value
            elif key in _MAPS and isinstance(value, dict):
                converted[key] = {name: self._convert(each) for name, each in value.items()}
            elif key not in _DROPPED or not isinstance(value, str | bool):
                converted[key] = self._convert(value)
        if isinstance(items := converted.get("items"), list):  # tuples before 2020-12
            converted["prefixItems"] = items
            del converted["items"]
            if "additionalItems" in converted:
                converted["items"] = converted.pop("additionalItems")
        reference = next((value for key in _REFERENCES if isinstance(value := node.get(key), str)), None)
        if reference is not None and (target := self._resolve(reference)) is not None:
            converted["$ref"] = target
        return converted

    def _resolve(self, reference: str) -> str | None:
        """Return where a reference leads in the document; None if it leads nowhere."""
        base, _, fragment = reference.partition("#")
        start: Path | None = self._anchors.get(base) if base else ()
        if start is None:
            return None
        if fragment and not fragment.startswith("/"):
            found = self._anchors.get(f"#{fragment}")
            return self._locate(found) if found is not None else None
        tokens = [_decode_token(each) for each in fragment.split("/")[1:]]
        path = (*start, *tokens)
        return self._locate(path) if self._exists(path) else None

    def _exists(self, path: Path) -> bool:
        node: Any = self._schema
        for token in path:
            if isinstance(node, list) and token.isdecimal() and int(token) < len(node):
                node = node[int(token)]
            elif isinstance(node, dict) and token in node:
                node = node[token]
            else:
                return False
        return isinstance(node, dict | bool)

    def _locate(self, path: Path) -> str | None:
        """Return the reference to a path of the schema; None for a part of it that is not kept."""
        length = 2 if len(path) > 1 and path[:2] in self._names else 0
        if not length and path and path[0] in _DEFINITIONS:
            return None
        rest, at = [], self._schema if not length else self._schema[path[0]][path[1]]
        for token in path[length:]:
            is_tuple = token == "items" and isinstance(at, dict) and isinstance(at.get("items"), list)
            rest.append("prefixItems" if is_tuple else token)
            at = at[int(token)] if isinstance(at, list) else at.get(token) if isinstance(at, dict) else None
        return _PREFIX + self._names[path[:length]] + "".join(f"/{_encode_token(each)}" for each in rest)


def _walk(node: Any, path: Path = ()) -> Iterator[tuple[Path, Json]]:
    """Yield every schema in a schema, with its path."""
    if isinstance(node, list):
        for number, each in enumerate(node):
            yield from _walk(each, (*path, str(number)))
    elif isinstance(node, dict):
        yield path, node
        for key, value in node.items():
            if key in _MAPS and isinstance(value, dict):
                for name, each in value.items():
                    yield from _walk(each, (*path, key, name))
            elif key not in _DATA:
                yield from _walk(value, (*path, key))


def _mapping(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _decode_token(token: str) -> str:
    return unquote(token).replace("~1", "/").replace("~0", "~")


def _encode_token(token: str) -> str:
    return quote(token.replace("~", "~0").replace("/", "~1"), safe="~$")
