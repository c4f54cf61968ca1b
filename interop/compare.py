"""Compare two answers of one server: equal as JSON, but for the few values no two runs can share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

COMPARED = ("tools", "prompts", "resources", "templates", "call")


@dataclass(frozen=True)
class Mask:
    """Text that honestly differs from one run of a server to the next."""

    server: str
    at: str  # the JSON path of the string, as `first_difference` writes it
    pattern: str  # only what matches is ignored, the rest of the string is compared
    why: str


_CLOCK = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"

# Found with `direct.py --twice`.
MASKS = (
    Mask("mcp-server-time", "call.content[0].text", _CLOCK, "its answer is the time of day"),
    Mask("mcp-server-time", "call.structuredContent.datetime", _CLOCK, "its answer is the time of day"),
    Mask(
        "mcp-shell-server",
        "tools[0].description",
        r"(?m)^Allowed commands: (?:(?:ls|cat|echo)(?:, |$)){3}",
        "prints a Python set, whose order changes with the hash seed of the process",
    ),
)


def masked(server: str, answer: dict[str, Any]) -> dict[str, Any]:
    """What is to be compared of an answer, the masked parts replaced."""
    masks = {mask.at: mask for mask in MASKS if mask.server == server}
    compared: dict[str, Any] = _masked({key: answer[key] for key in COMPARED}, masks, "")
    return compared


def first_difference(ours: Any, theirs: Any, path: str = "") -> str | None:
    """The JSON path where the two first differ, or None. 1, 1.0 and true are three different values."""
    if type(ours) is not type(theirs):
        return path or "."
    if isinstance(ours, dict):
        return _in_objects(ours, theirs, path)
    if isinstance(ours, list):
        return _in_arrays(ours, theirs, path)
    return None if ours == theirs else path or "."


def _in_objects(ours: dict[str, Any], theirs: dict[str, Any], path: str) -> str | None:
    for key in ours | theirs:
        inner = f"{path}.{key}".lstrip(".")
        if key not in ours or key not in theirs:
            return inner
        if found := first_difference(ours[key], theirs[key], inner):
            return found
    return None


def _in_arrays(ours: list[Any], theirs: list[Any], path: str) -> str | None:
    for index, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if found := first_difference(one, other, f"{path}[{index}]"):
            return found
    return None if len(ours) == len(theirs) else f"{path}[{min(len(ours), len(theirs))}]"


def _masked(value: Any, masks: dict[str, Mask], path: str) -> Any:
    if isinstance(value, dict):
        return {key: _masked(item, masks, f"{path}.{key}".lstrip(".")) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, masks, f"{path}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, str) and path in masks:
        return re.sub(masks[path].pattern, "<masked>", value)
    return value
