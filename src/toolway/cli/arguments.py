"""Arguments of a tool as they are typed: `a=text`, `b:=json`, `c@=file`, or one JSON object."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolway.cli.exits import UsageError

_WORD = re.compile(r"([^=]*?)(:=|@=|=)(.*)", re.DOTALL)
_HOW = "write name=text, name:=json, name@=file, or one JSON object"


def parse(words: Sequence[str]) -> dict[str, Any]:
    """The arguments. Raises `UsageError`."""
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        value = _json("the JSON object", words[0])
        if not isinstance(value, dict):
            raise UsageError("the arguments are no JSON object", fix=_HOW)
        return value
    arguments: dict[str, Any] = {}
    for word in words:
        name, value = _one(word)
        if name in arguments:
            raise UsageError(f"the argument {name} is given twice", fix="give it once")
        arguments[name] = value
    return arguments


def _one(word: str) -> tuple[str, Any]:
    found = _WORD.fullmatch(word)
    if found is None or not found[1]:
        raise UsageError(f"{word!r} is no argument", fix=_HOW)
    name, sign, text = found.groups()
    if sign == ":=":
        return name, _json(name, text)
    return name, _file(name, text) if sign == "@=" else text


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as exc:
        raise UsageError(
            f"{name} is not valid JSON", evidence=str(exc), fix="quote it for the shell: name:='{\"a\": 1}'"
        ) from None


def _file(name: str, path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as exc:
        raise UsageError(f"the file for {name} cannot be read", evidence=str(exc)) from None
