"""Texts that a person reads before a call is approved: server, tool, effect and every argument.

Values are JSON texts with everything invisible as an escape. What is too long is cut, and a mark says how much.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

from toolway.protocol.sanitize import escape_invisible
from toolway.types import Call, Json

MAX_NAME_CHARS: Final = 100
MAX_VALUE_CHARS: Final = 2000  # of one argument
MAX_ALL_CHARS: Final = 8000  # of all arguments together
ASKER: Final = "toolway gateway"  # before the question, like the name of a server; no server can have this name
ANSWER_KEY: Final = "toolway-approval"  # of our question among the input requests of a result
_ANSWER_FIELD: Final = "approve"


def describe_arguments(arguments: Json, mask: Callable[[str], str]) -> list[tuple[str, str]]:
    """Return name and value of each argument as texts for a person, cut if too long. Known secrets are masked."""
    shown: list[tuple[str, str]] = []
    left = MAX_ALL_CHARS
    for position, (name, value) in enumerate(arguments.items()):
        if left <= 0:
            shown.append(("…", f"cut: {len(arguments) - position} more arguments are not shown"))
            break
        text = _cut(mask(_visible(value)), min(MAX_VALUE_CHARS, left))
        label = _cut(mask(_visible(name)[1:-1]), MAX_NAME_CHARS)
        shown.append((label, text))
        left -= len(label) + len(text)
    return shown


def describe_effect(call: Call) -> str:
    """Return a text about the effect of a call: its effect class, and if its server calls it destructive."""
    tool = call.policy.tool
    hints = tool.annotations if tool is not None else {}
    said = "; its server says that it is destructive" if (hints or {}).get("destructiveHint") is True else ""
    return f"{call.effect.value}{said}"


def build_question(call: Call, arguments: Iterable[tuple[str, str]]) -> Json:
    """Return the params of the elicitation that asks the user of a client about a call."""
    lines = [
        "Approve this call?",
        f"Server: {call.server}",
        f"Tool: {_visible(call.name)[1:-1]}",
        f"Effect: {describe_effect(call)}",
        "Arguments:",
        *([f"  {name}: {value}" for name, value in arguments] or ["  none"]),
    ]
    field = {"type": "boolean", "title": "Approve", "description": "Run this call once.", "default": False}
    return {
        "message": "\n".join(lines),
        "requestedSchema": {"type": "object", "properties": {_ANSWER_FIELD: field}, "required": [_ANSWER_FIELD]},
    }


def refusal_in(answer: Json | None) -> str:
    """Return why an answer of a client does not approve the call; "" if it does.

    Only `accept` with `approve: true` approves.
    """
    action = answer.get("action") if answer is not None else None
    if action != "accept":
        return {"decline": "the user declined", "cancel": "the user closed the question"}.get(
            str(action), "the client sent no answer"
        )
    content = answer.get("content") if answer is not None else None
    approved = content.get(_ANSWER_FIELD) if isinstance(content, dict) else None
    return "" if approved is True else "the user did not tick the approval"


def _visible(value: Any) -> str:
    return escape_invisible(json.dumps(value, ensure_ascii=False, default=str))


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} … (cut: {len(text) - limit} more characters)"
