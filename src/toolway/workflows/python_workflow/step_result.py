"""Result and failure of a step, as a workflow function gets them, and `verify` for an unknown outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from toolway.errors import ToolwayError
from toolway.types import Json
from toolway.workflows.definition import (
    UnknownPolicy,
    Verify,
    read_duration,
)


class Suspended(BaseException):
    """Raised in a workflow function when its waiting run is removed from memory. Do not catch it."""


class RunFailure(ToolwayError):
    """Raised by a workflow function to make its run fail. `facts` are additional keys of the stored error."""

    def __init__(self, message: str, **parts: str) -> None:
        super().__init__(message, **parts)
        self.facts: Json = {}


class StepFailed(ToolwayError):
    """Raised by a step that failed, was denied, or did not run. `error` is the stored error as JSON."""

    code = "E-WORKFLOW-FAILED"

    def __init__(self, error: Json) -> None:
        super().__init__(
            str(error.get("message", "")),
            detail=str(error.get("detail") or ""),
            hint=str(error.get("hint") or ""),
            code=str(error.get("code") or self.code),
        )
        self.error = error


class StepUnknown(StepFailed):
    """Raised by a step with `on_unknown="fail"` that may have run. Check before you repeat it."""

    code = "E-WORKFLOW-UNKNOWN"


class StepResult(msgspec.Struct, frozen=True):
    """Result of a step: `data` is the structured content, else the value of a JSON text, else the text."""

    data: Any = None
    text: str | None = None


def verify(
    tool: str,
    args: Json,
    happened: Callable[[StepResult], Any],
    *,
    result: Callable[[StepResult], Any] | None = None,
    after: str | float | None = None,
    otherwise: UnknownPolicy = "ask",
) -> Verify:
    """Return a read that finds out whether a call ran, for `run.call(on_unknown=…)`.

    Args:
        tool: The tool to read with.
        args: Its arguments.
        happened: Function of its result: was the call executed?
        result: Function of its result: the data of the step if it ran.
        after: Longest time in which the server may still execute a call after it timed out. If it is not given,
            "not executed" counts only if the process of the server has ended.
        otherwise: What to do if the read fails, or the call may still run: `ask`, `fail` or `retry`.
    """
    seconds = None if after is None else read_seconds("after", after)
    return Verify(tool=tool, params=args, happened=happened, result=result, after=seconds, otherwise=otherwise)


def as_json(value: Any) -> Any:
    """Return `value` as it would be after it was stored as JSON. Raises `TypeError` if it cannot be stored as JSON."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError) as exc:
        raise TypeError(f"{type(value).__name__} is not JSON: {exc}") from exc


def read_seconds(key: str, value: str | float) -> float:
    seconds = read_duration(value)
    if seconds is None:
        raise ValueError(f"{key} is not a duration: use seconds, or 30s, 10m, 2h, 7d")
    return seconds
