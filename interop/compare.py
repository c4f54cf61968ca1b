"""Comparison of responses of one server as JSON, except for values that differ in every run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

COMPARED = ("tools", "prompts", "resources", "templates", "call")


@dataclass(frozen=True)
class Mask:
    """A text that differs between runs of a server for a known reason."""

    server: str
    at: str  # JSON path of the string, in the format of `first_difference`
    pattern: str  # only matches are ignored; the rest of the string is compared
    why: str


_CLOCK = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"

# Found with `direct.py --twice`.
MASKS = (
    Mask("mcp-server-time", "call.content[0].text", _CLOCK, "returns the time of day"),
    Mask("mcp-server-time", "call.structuredContent.datetime", _CLOCK, "returns the time of day"),
    Mask(
        "mcp-shell-server",
        "tools[0].description",
        r"(?m)^Allowed commands: (?:(?:ls|cat|echo)(?:, |$)){3}",
        "prints a Python set, whose order changes with the hash seed of the process",
    ),
)


def masked(server: str, responses: dict[str, Any]) -> dict[str, Any]:
    """Return the compared parts of a response with masked strings replaced."""
    masks = {mask.at: mask for mask in MASKS if mask.server == server}
    compared: dict[str, Any] = _masked({key: responses[key] for key in COMPARED}, masks, "")
    return compared


def first_difference(left: Any, right: Any, path: str = "") -> str | None:
    """Return the JSON path of the first difference, or None. 1, 1.0 and true are different values."""
    if type(left) is not type(right):
        return path or "."
    if isinstance(left, dict):
        return _in_objects(left, right, path)
    if isinstance(left, list):
        return _in_arrays(left, right, path)
    return None if left == right else path or "."


def _in_objects(left: dict[str, Any], right: dict[str, Any], path: str) -> str | None:
    for key in left | right:
        inner = f"{path}.{key}".lstrip(".")
        if key not in left or key not in right:
            return inner
        if found := first_difference(left[key], right[key], inner):
            return found
    return None


def _in_arrays(left: list[Any], right: list[Any], path: str) -> str | None:
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if found := first_difference(one, other, f"{path}[{index}]"):
            return found
    return None if len(left) == len(right) else f"{path}[{min(len(left), len(right))}]"


def _masked(value: Any, masks: dict[str, Mask], path: str) -> Any:
    if isinstance(value, dict):
        return {key: _masked(item, masks, f"{path}.{key}".lstrip(".")) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, masks, f"{path}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, str) and path in masks:
        return re.sub(masks[path].pattern, "<masked>", value)
    return value
