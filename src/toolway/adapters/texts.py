"""What a model reads about a call's result: what failed, whether it ran, what to do next. No I/O.

The hint of an error is for the administrator; a model gets its own sentence.
"""

from __future__ import annotations

import json
from typing import Any, Final

from toolway.errors import AccessDenied, CallError, InvalidArguments, NotFound, ToolwayError
from toolway.types import Effect, Json, ToolResult

MAX_ERROR_CHARS: Final = 2000  # of an error of ours
MAX_RESULT_CHARS: Final = 32 * 1024  # of a failure that the tool reports, and of a result

_NOT_EXECUTED: Final = "It did not run."
_UNKNOWN_UNSAFE: Final = (
    "It may have run. Do not call it again until you have checked, with a read-only tool, whether it took effect, "
    "and do not call it with other arguments to get around this. If you cannot find out, say so."
)
_UNKNOWN_SAFE: Final = "It may have run. Calling it again does no harm."


def error_text(error: ToolwayError, tool: str, effect: Effect) -> str:
    """Return the message that a model reads about a call without a result.

    It says what failed, whether the call ran, and what to do next.
    """
    cause = f"{error.message}: {error.detail}" if error.detail else error.message
    executed = error.executed if isinstance(error, CallError) else "no"
    facts = f"{tool} failed: {_cut(cause, MAX_ERROR_CHARS - 700)}."
    if executed == "unknown":
        advice = _UNKNOWN_UNSAFE if effect is Effect.UNSAFE else _UNKNOWN_SAFE
    elif executed == "yes":
        advice = "It ran, but its result cannot be used. Do not repeat it."
        if effect is not Effect.UNSAFE:
            advice = "It ran, but its result cannot be used."
    else:
        advice = f"{_NOT_EXECUTED} {_what_to_do(error)}"
    return f"{facts} {advice} [{error.code}]"


def _what_to_do(error: ToolwayError) -> str:
    if isinstance(error, InvalidArguments):
        return "Fix the arguments and call it again."
    if isinstance(error, NotFound):
        return "Use one of the tools that were given to you."
    if isinstance(error, AccessDenied):
        return "It is not allowed: do not try it again or another way; say what you could not do."
    if isinstance(error, CallError) and error.retry_after:
        return f"You may call it again after {error.retry_after:g} seconds."
    if isinstance(error, CallError) and error.retryable:
        return "You may call it again once; if it fails again, continue without it, and say that you did."
    return "Continue without it, and say that you did."


def refusal_text(tool: str, reason: str = "") -> str:
    """Return what a model reads about a call that was not approved."""
    because = f": {_cut(reason, 500)}" if reason else ""
    return (
        f"{tool} was not approved{because}. {_NOT_EXECUTED} Do not try it again or another way; "
        "say what you could not do. [E-ADAPTER-APPROVAL]"
    )


def unknown_tool_text(tool: str, names: list[str]) -> str:
    """Return what a model reads after calling a tool that it was not offered."""
    known = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"No tool is named {tool[:100]!r}. {_NOT_EXECUTED} Use one of: {known}. [E-NOT-FOUND]"


def broken_arguments_text(tool: str, problem: str) -> str:
    """Return what a model reads about a call whose arguments are not a JSON object."""
    return (
        f"The arguments of {tool} are not a JSON object: {_cut(problem, 300)}. {_NOT_EXECUTED} "
        "Send them again as one JSON object. [E-ARGUMENTS]"
    )


def result_text(result: ToolResult) -> str:
    """Return a tool result as one string: its text blocks, or else its structured content.

    Images are only mentioned, not included.
    """
    parts = [part for block in result.content if (part := _block_text(block))]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    text = "\n".join(parts)
    if result.is_error:
        return _cut(text, MAX_RESULT_CHARS) or f"{result.server}.{result.name} failed and gave no reason."
    return _cut(text, MAX_RESULT_CHARS) or "(no content)"


def _block_text(block: Json) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind in ("image", "audio"):
        return f"[{kind}, {block.get('mimeType', 'unknown type')}]"
    if kind == "resource_link":
        return f"[resource {block.get('uri', '')}]"
    resource: Any = block.get("resource")
    if isinstance(resource, dict):
        text = resource.get("text")
        return text if isinstance(text, str) else f"[resource {resource.get('uri', '')}]"
    return ""


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… (cut: {len(text) - limit} more characters)"
