"""Values that fit a schema, a different one for each seed, with characters in its strings that are hard to carry.

arguments = sample(tool["inputSchema"], seed=7)     # raises NoSample
"""

from __future__ import annotations

import random
import re
from importlib import import_module
from typing import Any

import jsonschema_rs

Json = dict[str, Any]
parser: Any = import_module("re._parser")  # the parts of a pattern, as `re` itself reads them
sre: Any = import_module("re._constants")

HARD = ("a b", "ü/ß", "x&y=z", "100%", "a,b", "..a", "%41", "q?#@:;", "+1", "plain", "日本", "'\"", "a=b;c", "|~^")
FORMATS = {
    "date-time": "2026-11-15T12:00:00Z",
    "date": "2026-11-15",
    "time": "12:00:00Z",
    "duration": "P1D",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
    "email": "a.b@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/a?b=c#d",
    "url": "https://example.com/a?b=c",
    "uri-reference": "/a?b",
    "byte": "YWJj",
    "regex": "a+",
    "json-pointer": "/a",
}
DEEPEST = 6


class NoSample(Exception):
    """No value was found that fits."""


def sample(schema: Json, seed: int = 0) -> Any:
    """A value that fits, made of all or some of what may be there."""
    validator = jsonschema_rs.validator_for(schema)
    value: Any = None
    for number, eagerness in enumerate((0.7, 0.4, 0.2, 0.0, 0.0, 0.0)):
        value = _Sampler(schema, random.Random(f"{seed} {number}"), eagerness).value(schema, 0)
        if validator.is_valid(value):
            return value
    error = next(iter(validator.iter_errors(value)))
    raise NoSample(f"{error.message[:200]} at {list(error.instance_path)}")


class _Sampler:
    def __init__(self, root: Json, dice: random.Random, eagerness: float) -> None:
        self._root = root
        self._dice = dice
        self._eagerness = eagerness  # how likely something that need not be there is there

    def value(self, schema: Any, depth: int) -> Any:
        schema = self._merged(schema)
        if "const" in schema:
            return schema["const"]
        if "base64" in schema.get("properties", {}):
            return {"base64": "AP/+YQ==", "filename": "ü.png", "contentType": "image/png"}  # a file
        if schema.get("enum"):
            return self._dice.choice([each for each in schema["enum"] if each is not None] or schema["enum"])
        for word in ("anyOf", "oneOf"):
            if schema.get(word):
                return self._branch(schema, word, depth)
        match self._kind(schema):
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "integer":
                return int(self._number(schema, 1))
            case "number":
                return self._number(schema, 0.5)
            case "boolean":
                return self._dice.random() < 0.5
            case "null":
                return None
        return self._text(schema)

    def _merged(self, schema: Any) -> Json:
        """With references followed and `allOf` as one."""
        if not isinstance(schema, dict):
            return {}
        for _ in range(20):
            if "$ref" not in schema:
                break
            target: Any = self._root
            for part in schema["$ref"][2:].split("/"):
                target = target[part.replace("~1", "/").replace("~0", "~")]
            rest = {key: each for key, each in schema.items() if key != "$ref"}
            schema = _both(target if isinstance(target, dict) else {}, rest)
        for each in schema.get("allOf", ()):
            schema = _both({key: value for key, value in schema.items() if key != "allOf"}, self._merged(each))
        return dict(schema)

    def _branch(self, schema: Json, word: str, depth: int) -> Any:
        branches = [self._merged(each) for each in schema[word]]
        some = [each for each in branches if each.get("type") != "null"] or branches
        chosen = self._dice.choice(some) if depth < DEEPEST else min(some, key=lambda each: len(str(each)))
        return self.value(_both({key: each for key, each in schema.items() if key != word}, chosen), depth + 1)

    def _kind(self, schema: Json) -> str:
        kinds = schema.get("type")
        kinds = [kinds] if isinstance(kinds, str) else [each for each in kinds or () if each != "null"] or kinds
        if kinds:
            return str(kinds[0])
        if "properties" in schema or "additionalProperties" in schema or "required" in schema:
            return "object"
        return "array" if "items" in schema else "string"

    def _object(self, schema: Json, depth: int) -> Json:
        fields = schema.get("properties", {})
        needed = [each for each in schema.get("required", ()) if isinstance(each, str)]
        found = {}
        for name, each in fields.items():
            if each is False:
                continue
            if name in needed or (depth < DEEPEST and self._dice.random() < self._eagerness / (depth + 1)):
                found[name] = self.value(each, depth + 1)
        more = schema.get("additionalProperties", True)
        for name in needed:
            if name not in found:
                found[name] = self.value(more if isinstance(more, dict) else {}, depth + 1)
        if more is not False:
            while len(found) < schema.get("minProperties", 0):
                found[f"more {len(found)}"] = self.value(more if isinstance(more, dict) else {}, depth + 1)
        return found

    def _array(self, schema: Json, depth: int) -> list[Any]:
        least = schema.get("minItems", 0)
        count = max(least, 2 if depth < DEEPEST and self._eagerness else least)
        count = min(count, schema.get("maxItems", count))
        made = [self.value(each, depth + 1) for each in schema.get("prefixItems", ())]
        for _ in range(count * 5):
            if len(made) >= count:
                break
            item = self.value(schema.get("items", {}), depth + 1)
            if not (schema.get("uniqueItems") and item in made):
                made.append(item)
        return made

    def _number(self, schema: Json, step: float) -> float:
        low, high = schema.get("minimum"), schema.get("maximum")
        above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        multiple = schema.get("multipleOf")
        step = multiple or step
        if low is None and above is not None:
            low = above + step
        if high is None and below is not None:
            high = below - step
        start = low if low is not None else high - step if high is not None else self._dice.randint(1, 99) * step
        value = -(-start // step) * step if multiple else start
        return value if value != int(value) else int(value)

    def _text(self, schema: Json) -> str:
        least, most = schema.get("minLength", 0), schema.get("maxLength", 10**6)
        if isinstance(schema.get("pattern"), str):
            return _matching(schema["pattern"], self._dice, least)
        if schema.get("format") in FORMATS:
            return FORMATS[schema["format"]]
        if schema.get("contentEncoding") == "base64":
            return "YWJj"
        fitting = [each for each in HARD if least <= len(each) <= most]
        return self._dice.choice(fitting) if fitting else "x" * max(least, min(most, 3))


def _both(one: Json, other: Json) -> Json:
    """One schema that asks for what both ask for, as far as that is often needed."""
    merged = {**one, **other}
    if "properties" in one and "properties" in other:
        merged["properties"] = {**one["properties"], **other["properties"]}
    if "required" in one and "required" in other:
        merged["required"] = [*one["required"], *other["required"]]
    if "enum" in one and "enum" in other:
        merged["enum"] = [each for each in one["enum"] if each in other["enum"]]
    return merged


def _matching(pattern: str, dice: random.Random, least: int) -> str:
    """A text that matches, the shortest of its kind that is long enough."""
    try:
        parsed = parser.parse(pattern)
    except (re.error, OverflowError, RecursionError):
        return "x"
    texts = [_written(parsed, dice, more) for more in (0, 1, 3, 10, least)]
    return next((text for text in texts if len(text) >= least), texts[-1])


_OF_CATEGORY = {sre.CATEGORY_DIGIT: "7", sre.CATEGORY_WORD: "w", sre.CATEGORY_SPACE: " "}


def _written(parts: Any, dice: random.Random, more: int) -> str:
    text = ""
    for kind, of in parts:
        if kind is sre.LITERAL:
            text += chr(of)
        elif kind in (sre.NOT_LITERAL, sre.ANY):
            text += "x" if of != ord("x") else "y"
        elif kind is sre.IN:
            text += _of_set(of, dice)
        elif kind in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            low, high, inner = of
            text += "".join(_written(inner, dice, more) for _ in range(min(low + more, int(high))))
        elif kind is sre.SUBPATTERN:
            text += _written(of[-1], dice, more)
        elif kind is sre.BRANCH:
            text += _written(dice.choice(of[1]), dice, more)
        elif kind is sre.CATEGORY:
            text += _OF_CATEGORY.get(of, "x")
    return text


def _of_set(choices: Any, dice: random.Random) -> str:
    if choices[0][0] is sre.NEGATE:
        for candidate in "xaZ7-_ .é":
            if not any(_holds(each, candidate) for each in choices[1:]):
                return candidate
        return "~"
    # A dot alone would be a segment of a path that leads elsewhere, and is refused.
    kind, of = dice.choice([each for each in choices if each[0] is not sre.LITERAL] or choices)
    if kind is sre.RANGE:
        return chr(dice.randint(of[0], min(of[1], 0x2FF) if of[0] <= 0x2FF else of[0]))
    return chr(of) if kind is sre.LITERAL else _OF_CATEGORY.get(of, "x")


def _holds(part: Any, candidate: str) -> bool:
    kind, of = part
    if kind is sre.LITERAL:
        return bool(ord(candidate) == of)
    if kind is sre.RANGE:
        return bool(of[0] <= ord(candidate) <= of[1])
    digit, word, space = candidate.isdigit(), candidate.isalnum() or candidate == "_", candidate.isspace()
    return {sre.CATEGORY_DIGIT: digit, sre.CATEGORY_WORD: word, sre.CATEGORY_SPACE: space}.get(of, False)
