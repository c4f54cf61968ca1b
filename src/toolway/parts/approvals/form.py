"""Builds what someone reads before approving a call: the server, tool, effect, and every argument.

Values are JSON strings in which every invisible character is escaped. Administrators see all of each value. In a list
or a client's form, a value that is too long is cut, and a mark says how much is missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from toolway.middleware.approval import bound_meta
from toolway.parts.approvals.records import ShownArgument
from toolway.protocol.sanitize import escape_invisible
from toolway.types import Call, Json

MAX_NAME_CHARS: Final = 100  # the following: in a list, and in the form of a client
MAX_VALUE_CHARS: Final = 2000  # of one argument
MAX_ALL_CHARS: Final = 8000  # of all arguments together
MAX_NAMED: Final = 20  # arguments with secrets whose names are shown
SHORT_DIGEST_CHARS: Final = 16
#: Parameters that an approval is not bound to (`bind_call`), and those that are shown in another way.
_NOT_LISTED: Final = frozenset({"_meta", "requestState", "inputResponses", "name", "arguments"})
_ANSWER_FIELD: Final = "approve"


class ArgumentReader:
    """Describes call arguments to a human reader.

    `mask` hides secrets in a string. `name_secrets` says which secrets a masked text contained, such as `the secret
    API_TOKEN of server bank`, because the reader must know what will be sent without seeing it.
    """

    def __init__(self, mask: Callable[[str], str], name_secrets: Callable[[str], Sequence[str]]) -> None:
        self._mask = mask
        self._name_secrets = name_secrets

    def describe(self, call: Call) -> list[ShownArgument]:
        """Return everything this call will send: arguments, other request parameters, and its `_meta`.

        Protocol and tracing keys are left out.
        """
        others = {f"request.{name}": value for name, value in call.params.items() if name not in _NOT_LISTED}
        others |= {f"request._meta.{name}": value for name, value in bound_meta(call).items()}
        shown: list[ShownArgument] = []
        named = 0
        for name, value in (*call.arguments.items(), *others.items()):
            label, text = _visible(name)[1:-1], _visible(value)
            masked_label, masked = self._mask(label), self._mask(text)
            note = ""
            if (masked_label, masked) != (label, text):
                named += 1
                found = self._name_secrets(f"{label}\n{text}") if named <= MAX_NAMED else ()
                is_all = masked == '"***"' and masked_label == label
                note = f"{'equals' if is_all else 'contains'} {', '.join(found) or 'a secret that this gateway knows'}"
            shown.append(ShownArgument(masked_label, masked, note))
        return shown


def size_of(arguments: Iterable[ShownArgument]) -> int:
    """Return how many bytes of arguments the approver has to read."""
    return sum(
        len(text.encode("utf-8", "replace")) for each in arguments for text in (each.name, each.value, each.note)
    )


def cut_arguments(arguments: Sequence[ShownArgument]) -> list[ShownArgument]:
    """Return the arguments for a list or form, cut if they are too long. If nothing is cut, this is the same object."""
    shown: list[ShownArgument] = []
    left = MAX_ALL_CHARS
    for position, each in enumerate(arguments):
        if left <= 0:
            shown.append(ShownArgument("…", f"cut: {len(arguments) - position} more arguments are not shown"))
            break
        label, text = _cut(each.name, MAX_NAME_CHARS), _cut(each.value, min(MAX_VALUE_CHARS, left))
        shown.append(ShownArgument(label, text, each.note))
        left -= len(label) + len(text)
    return shown


def describe_effect(call: Call) -> str:
    """Describe a call's effect: its effect class, and whether its server calls it destructive."""
    tool = call.policy.tool
    hints = tool.annotations if tool is not None else {}
    said = "; its server says that it is destructive" if (hints or {}).get("destructiveHint") is True else ""
    return f"{call.effect.value}{said}"


def build_question(call: Call, arguments: Iterable[ShownArgument], digest: str) -> Json:
    """Return the elicitation params for asking a client's user about a call."""
    lines = [
        "Approve this call?",
        f"Server: {call.server}",
        f"Tool: {_visible(call.name)[1:-1]}",
        f"Effect: {describe_effect(call)}",
        f"Digest of what will be sent: sha256 {digest[:SHORT_DIGEST_CHARS]}",
        "Arguments:",
        *([f"  {describe_line(each, ': ')}" for each in arguments] or ["  none"]),
    ]
    field = {"type": "boolean", "title": "Approve", "description": "Run this call once.", "default": False}
    return {
        "message": "\n".join(lines),
        "requestedSchema": {"type": "object", "properties": {_ANSWER_FIELD: field}, "required": [_ANSWER_FIELD]},
    }


def describe_line(argument: ShownArgument, between: str) -> str:
    """Return one line about an argument, noting what is masked in it."""
    note = f"  ← {argument.note}" if argument.note else ""
    return f"{argument.name}{between}{argument.value}{note}"


def refusal_in(answer: Json | None) -> str:
    """Return why a client's answer does not approve the call; "" if it does.

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
