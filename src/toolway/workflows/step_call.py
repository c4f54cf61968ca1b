"""One call of a workflow step: from the planned action to the entry of its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from toolway.errors import AccessDenied, CallError, InvalidArguments, ToolwayError
from toolway.hub.hub import Hub
from toolway.types import Call, Effect, Json, ToolResult
from toolway.workflows.journal import Entry, EntryState
from toolway.workflows.step_planner import CallAction

MAX_TEXT_CHARS = 64 * 1024  # of a text that is stored beside the data


async def call_step(
    hub: Hub,
    action: CallAction,
    intent: Entry,
    clock: Callable[[], float],
    may_send: Callable[[], bool] | None = None,
) -> Entry:
    """Make the call of a step and return the entry with its outcome. Raises nothing but cancellation.

    `may_send` is asked right before the call is sent. If it returns False, the call is not executed.
    """

    def outcome(state: EntryState, body: Json) -> Entry:
        return replace(intent, state=state, body=body, ended=clock())

    try:
        # An unsafe step is sent once: the hub does not repeat what the journal calls unsafe.
        idempotent = None if action.effect is Effect.UNSAFE else True
        if may_send is None:
            result = await hub.call_tool(
                action.tool, action.args, timeout=action.timeout, meta=action.meta, idempotent=idempotent
            )
        else:
            params: Json = {"name": action.tool, "arguments": action.args}
            if action.meta:
                params["_meta"] = action.meta
            call = Call(
                action.tool,
                "tools/call",
                params,
                timeout=action.timeout,
                idempotent=idempotent,
                may_send=may_send,
            )
            found = await hub._core.request(call)
            assert isinstance(found, ToolResult)
            result = found
    except CallError as exc:
        states: dict[str, EntryState] = {"no": "not_executed", "unknown": "unknown", "yes": "failed"}
        return outcome(states[exc.executed], _error_body(exc))
    except ToolwayError as exc:
        return outcome("not_executed", _error_body(exc))
    except asyncio.CancelledError:
        raise
    except Exception as exc:  # a fault of ours: the call may have been sent
        body = {"code": "E-TOOLWAY", "message": repr(exc)[:500], "executed": "unknown"}
        return outcome("unknown", body)
    if result.is_error:
        body = {
            "code": "E-TOOL-FAILED",
            "message": f"{action.tool} failed",
            "detail": result.text[:2000],
            "executed": "yes",
        }
        return outcome("failed", body)
    return outcome("done", result_body(result))


def result_body(result: ToolResult) -> Json:
    """Return the part of a result that later steps may use: its data and its text.

    The data is the structured content, else the value of a JSON text, else the text.
    """
    data: Any = result.data
    text = result.text
    if data is None:
        try:
            data = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            data = text
    return {"data": data, "text": text[:MAX_TEXT_CHARS]}


def _error_body(exc: ToolwayError) -> Json:
    body: Json = {"code": exc.code, "message": exc.message, "detail": exc.detail, "hint": exc.hint}
    body["executed"] = exc.executed if isinstance(exc, CallError) else "no"
    if isinstance(exc, InvalidArguments | AccessDenied):
        body["retryable"] = False
    return body
