"""How a value becomes text: the styles of OpenAPI, which are those of RFC 6570.

Each function takes `quoted`, which encodes one text for its place; what separates texts is written here and never comes
out of a value.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from toolway.openapi.problems import BadArguments

Quoted: TypeAlias = Callable[[str], str]
Pairs: TypeAlias = list[tuple[str, str]]  # names and values, both encoded

SEPARATORS: Final = {"form": ",", "spaceDelimited": " ", "pipeDelimited": "|", "tabDelimited": "\t"}
_DELIMITERS: Final = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C", "tabDelimited": "%09"}  # encoded
_DEEPEST: Final = 8


def text_of(value: Any) -> str:
    """A single value as text. What has parts is JSON, because no style says what to do with it there."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    if isinstance(value, int | float):
        return json.dumps(value)
    return json_of(value)


def json_of(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def simple(value: Any, explode: bool, quoted: Quoted) -> str:
    """In paths and headers: `a,b` and `x,1,y,2`, or `x=1,y=2`."""
    return ",".join(_flat(value, explode, quoted))


def label(value: Any, explode: bool, quoted: Quoted) -> str:
    return "." + ("." if explode else ",").join(_flat(value, explode, quoted))


def matrix(name: str, value: Any, explode: bool, quoted: Quoted) -> str:
    own = quoted(name)
    if explode and isinstance(value, list):
        return "".join(f";{own}={quoted(text_of(each))}" for each in value)
    if explode and isinstance(value, dict):
        return "".join(f";{quoted(key)}={quoted(text_of(each))}" for key, each in value.items())
    text = ",".join(_flat(value, False, quoted))
    return f";{own}={text}" if text else f";{own}"


def _flat(value: Any, explode: bool, quoted: Quoted) -> list[str]:
    if isinstance(value, list):
        return [quoted(text_of(each)) for each in value]
    if isinstance(value, dict):
        if explode:
            return [f"{quoted(key)}={quoted(text_of(each))}" for key, each in value.items()]
        return [quoted(text) for key, each in value.items() for text in (key, text_of(each))]
    return [quoted(text_of(value))]


def pairs(name: str, value: Any, style: str, explode: bool, named: Quoted, quoted: Quoted) -> Pairs:
    """In queries, cookies and forms. `named` encodes names, and `quoted` values, which may be allowed more."""
    own = named(name)
    if style == "deepObject" and isinstance(value, dict):
        return _deep(own, value, named, quoted, 0)
    if isinstance(value, list):
        if explode or style == "deepObject":
            return [(own, quoted(text_of(each))) for each in value]
        return [(own, _DELIMITERS[style].join(quoted(text_of(each)) for each in value))] if value else []
    if isinstance(value, dict):
        if explode:
            return [pair for key, each in value.items() for pair in _exploded(named(key), each, quoted)]
        texts = [quoted(text) for key, each in value.items() for text in (key, text_of(each))]
        return [(own, _DELIMITERS[style].join(texts))] if texts else []
    return [(own, quoted(text_of(value)))]


def _exploded(own: str, value: Any, quoted: Quoted) -> Pairs:
    values = value if isinstance(value, list) else [value]
    return [(own, quoted(text_of(each))) for each in values]


def _deep(own: str, value: Any, named: Quoted, quoted: Quoted, level: int) -> Pairs:
    """`filter[a][b]=1`; a list is repeated, as most servers read it."""
    if level > _DEEPEST:
        raise BadArguments("an object in a query that is nested too deeply")
    found: Pairs = []
    for key, each in value.items():
        inner = f"{own}%5B{named(key)}%5D"
        if isinstance(each, dict):
            found.extend(_deep(inner, each, named, quoted, level + 1))
        else:
            found.extend((inner, quoted(text_of(item))) for item in (each if isinstance(each, list) else [each]))
    return found
