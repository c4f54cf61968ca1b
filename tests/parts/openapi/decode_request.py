"""Values taken apart again, by the style in which they were written. In what comes out everything is text."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, unquote_plus

Json = dict[str, Any]
_DELIMITERS = {"spaceDelimited": ("%20",), "pipeDelimited": ("|", "%7C", "%7c"), "tabDelimited": ("%09",)}


@dataclass(frozen=True)
class Slot:
    """A place for a value, as a document describes it."""

    name: str
    place: str
    style: str
    explode: bool
    is_json: bool = False
    required: bool = False


def in_path(slot: Slot, text: str, value: Any) -> Any:
    if slot.is_json:
        return read_json(unquote(text))
    separator = ","
    if slot.style == "label":
        text, separator = text.removeprefix("."), "." if slot.explode else ","
    elif slot.style == "matrix":
        pairs = [tuple(pair.partition("=")[::2]) for pair in text.removeprefix(";").split(";")]
        if isinstance(value, dict) and slot.explode:
            return {unquote(key): unquote(each) for key, each in pairs}
        if isinstance(value, list) and slot.explode:
            return [unquote(each) for _, each in pairs]
        text = pairs[0][1]
    return _split(text, separator, slot.explode, value)


def in_header(slot: Slot, text: str, value: Any) -> Any:
    if slot.is_json:
        return read_json(text)
    # A header is not percent-encoded by the standard; what cannot stand in one must be, and both are accepted.
    read = _split(text, ",", slot.explode, value)
    return read if same(read, value) else _split(text.replace("%", "%25"), ",", slot.explode, value)


def in_query(slot: Slot, own: list[tuple[str, str]], value: Any) -> Any:
    if slot.place == "cookie":
        own = [(name, text.replace("+", "%2B")) for name, text in own]  # only in a query it stands for a space
    if slot.is_json:
        return read_json(unquote_plus(own[0][1])) if len(own) == 1 else None
    if slot.style == "deepObject" and isinstance(value, dict):
        return nested(own, slot.name)
    if isinstance(value, dict) and slot.explode:
        return {unquote(name): unquote_plus(text) for name, text in own}
    if isinstance(value, list) and slot.explode:
        return [unquote_plus(text) for _, text in own]
    if len(own) != 1:
        return [] if value == [] and not own else None
    text = own[0][1]
    for delimiter in _DELIMITERS.get(slot.style, ()):
        if isinstance(value, list | dict) and len(value) > 1 and delimiter in text:
            return _split(text, delimiter, False, value)
    return _split(text, ",", False, value)


def belongs(slot: Slot, name: str, value: Any) -> bool:
    if slot.is_json:
        return name == slot.name
    if slot.style == "deepObject" and isinstance(value, dict):
        return name.startswith(f"{slot.name}[")
    if isinstance(value, dict) and slot.explode and slot.style != "deepObject":
        return name in value
    return name in (slot.name, f"{slot.name}[]")


def nested(pairs: list[tuple[str, str]], name: str) -> Json:
    """`name[a][b]=c`, as deep as it goes."""
    found: Json = {}
    for key, text in pairs:
        path = re.findall(r"\[([^\]]*)\]", unquote(key).removeprefix(name))
        place = found
        for part in path[:-1]:
            place = place.setdefault(part, {})
        last = path[-1]
        place[last] = [*place[last], unquote_plus(text)] if last in place else [unquote_plus(text)]
    return {key: _single(each) for key, each in found.items()}


def _single(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _single(each) for key, each in node.items()}
    return node[0] if len(node) == 1 else node


def _split(text: str, separator: str, explode: bool, value: Any) -> Any:
    """A list or an object that stands in one text. Where a value has the separator in itself, which some styles cannot
    tell from the others, the text as a whole is what it should be, or is not."""
    if unquote(text) == _joined(unquote(separator), explode, value):
        return value
    if isinstance(value, list):
        return [unquote(each) for each in text.split(separator)] if text or len(value) == 1 else []
    if isinstance(value, dict):
        parts = text.split(separator) if text else []
        if explode:
            return {unquote(key): unquote(each) for key, _, each in (part.partition("=") for part in parts)}
        return {unquote(key): unquote(each) for key, each in zip(parts[::2], parts[1::2], strict=False)}
    return unquote(text)


def _joined(separator: str, explode: bool, value: Any) -> str | None:
    if isinstance(value, list):
        return separator.join(map(_text, value))
    if isinstance(value, dict):
        pairs = [(key, _text(each)) for key, each in value.items()]
        return separator.join("=".join(pair) if explode else separator.join(pair) for pair in pairs)
    return None


def same(read: Any, value: Any) -> bool:
    """Whether what was read, in which everything is text, is the value."""
    if isinstance(value, dict):
        if isinstance(read, str):
            return bool(read_json(read) == value)
        present = {key: each for key, each in value.items() if each not in ([], {}, None)}
        return (
            isinstance(read, dict)
            and present.keys() <= read.keys() <= value.keys()
            and all(same(read[key], value[key]) for key in read)
        )
    if isinstance(value, list):
        if isinstance(read, str):
            return (
                read_json(read) == value
                or (len(value) == 1 and same(read, value[0]))
                or read.split(",") == [_text(each) for each in value]
            )
        return isinstance(read, list) and len(read) == len(value) and all(map(same, read, value))
    return bool(read == value or read == _text(value))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value)


def read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def percent(text: str) -> str:
    return "".join(each if each.isascii() and (each.isalnum() or each in "/-._~") else _hex(each) for each in text)


def _hex(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode())
