"""Generator of arguments from a JSON schema: mostly valid ones, and spoiled copies of them. Deterministic by its seed.

What it makes is not trusted: a second validator says whether it is valid.
"""

from __future__ import annotations

import copy
import random
import re
from typing import Any

Json = dict[str, Any]
_TEXTS = ("", "a", "abc", "a.b-c", "2026-11-16", "#ff0000", "/tmp/x", "https://example.org/a", "0", "é☃", "x" * 40)
_NUMBERS = (0, 1, -1, 2, 3, 7, 10, 100, 0.5, 1.0, 1e9, 2**53, -(2**40))
_ANYTHING: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    1.0,
    -5,
    2.5,
    10**20,
    "",
    "text",
    [],
    [1],
    ["a", None],
    {},
    {"a": 1},
    [[]],
)


class ArgumentGenerator:
    """Makes values for schemas of one root schema."""

    def __init__(self, root: Json, seed: int) -> None:
        self._root = root
        self._random = random.Random(seed)

    def valid(self) -> Any:
        """Return arguments that should be valid."""
        return self._value(self._root, 0)

    def spoiled(self, arguments: Any) -> Any:
        """Return a changed copy of arguments: one to three random changes, which may leave them valid."""
        changed = copy.deepcopy(arguments)
        for _ in range(self._random.randint(1, 3)):
            changed = self._spoil(changed)
        return changed

    # -- valid values -------------------------------------------------------------------------------------------------

    def _value(self, schema: Any, depth: int) -> Any:
        pick = self._random
        if not isinstance(schema, dict) or depth > 12:
            return pick.choice(_ANYTHING)
        if "$ref" in schema:
            return self._value(self._resolve(schema["$ref"]), depth + 1)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return pick.choice(schema["enum"])
        for keyword in ("anyOf", "oneOf"):
            if schema.get(keyword):
                return self._value({**_rest(schema, keyword), **pick.choice(schema[keyword])}, depth + 1)
        if schema.get("allOf"):
            return self._value(_merged([_rest(schema, "allOf"), *schema["allOf"]]), depth + 1)
        kinds = schema.get("type") or ("object" if "properties" in schema else pick.choice(["string", "integer"]))
        kind = pick.choice(kinds) if isinstance(kinds, list) else kinds
        return getattr(self, f"_{kind}")(schema, depth)

    def _object(self, schema: Json, depth: int) -> Json:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        made = {
            name: self._value(each, depth + 1)
            for name, each in properties.items()
            if name in required or self._random.random() < (0.6 if depth < 4 else 0.1)
        }
        made |= {name: "required" for name in required if name not in made}
        more = schema.get("additionalProperties", depth > 0)
        if more is not False and self._random.random() < 0.3:
            made["additional"] = self._value(more, depth + 1) if isinstance(more, dict) else "x"
        return made

    def _array(self, schema: Json, depth: int) -> list[Any]:
        least = schema.get("minItems", 0)
        count = self._random.randint(least, max(least, min(schema.get("maxItems", least + 3), least + 3)))
        first = schema.get("prefixItems", [])
        made = [self._value(each, depth + 1) for each in first[:count]]
        return made + [self._value(schema.get("items", {}), depth + 1) for _ in range(count - len(made))]

    def _string(self, schema: Json, depth: int) -> str:
        least, most = schema.get("minLength", 0), schema.get("maxLength", 10**6)
        texts = [text for text in (*_TEXTS, "b" * least) if least <= len(text) <= most]
        if "pattern" in schema:
            texts = [text for text in texts if re.search(schema["pattern"], text)]
        return self._random.choice(texts or ["a"])

    def _number(self, schema: Json, depth: int) -> Any:
        least, most = schema.get("minimum", -(2**60)), schema.get("maximum", 2**60)
        step = schema.get("multipleOf", 1)
        exact = [least, most, schema.get("exclusiveMinimum", 0) + 1, least + step, step, 3 * step]
        numbers = [number for number in (*_NUMBERS, *exact) if least <= number <= most]
        return self._random.choice(numbers or [least])

    def _integer(self, schema: Json, depth: int) -> Any:
        found = self._number(schema, depth)
        return int(found) if self._random.random() < 0.9 else float(int(found))

    def _boolean(self, schema: Json, depth: int) -> bool:
        return self._random.random() < 0.5

    def _null(self, schema: Json, depth: int) -> None:
        return None

    def _resolve(self, reference: str) -> Any:
        found: Any = self._root
        for part in reference.split("/")[1:]:
            found = found[part]
        return found

    # -- changes ------------------------------------------------------------------------------------------------------

    def _spoil(self, value: Any) -> Any:
        pick = self._random
        if isinstance(value, dict) and value and pick.random() < 0.85:
            name = pick.choice(sorted(value))
            change = pick.randrange(5)
            if change == 0:
                del value[name]
            elif change == 1:
                value[name + "s"] = value.pop(name)
            elif change == 2:
                value[pick.choice(["extra", "id", ""])] = pick.choice(_ANYTHING)
            else:
                value[name] = self._spoil(value[name])
            return value
        if isinstance(value, list) and value and pick.random() < 0.7:
            change = pick.randrange(3)
            if change == 0:
                value.append(copy.deepcopy(pick.choice(value)))
            elif change == 1:
                value.pop()
            else:
                value[0] = self._spoil(value[0])
            return value
        if isinstance(value, str) and pick.random() < 0.5:
            return pick.choice([value + "!", value * 300, value[:-1], value.upper(), "\n" + value, value + "\n"])
        if isinstance(value, int | float) and not isinstance(value, bool) and pick.random() < 0.5:
            return pick.choice([value + 1, value - 1, -value, value * 1000, value + 0.5, str(value)])
        return copy.deepcopy(pick.choice(_ANYTHING))


def _rest(schema: Json, keyword: str) -> Json:
    return {key: value for key, value in schema.items() if key != keyword}


def _merged(schemas: list[Json]) -> Json:
    made: Json = {}
    for each in schemas:
        for key, value in each.items():
            if isinstance(value, dict) and isinstance(made.get(key), dict):
                made[key] = {**made[key], **value}
            elif isinstance(value, list) and isinstance(made.get(key), list):
                made[key] = [*made[key], *value]
            else:
                made[key] = value
    return made
