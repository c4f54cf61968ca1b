"""Calls the tool of one workflow step: from the planned action to the journal entry with its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from toolway.callbacks import FunctionCallbacks
from toolway.errors import AccessDenied, CallError, InvalidArguments, NotFound, ToolwayError
from toolway.hub.hub import Hub
from toolway.types import Call, Effect, Json, ToolResult
from toolway.workflows.journal import Entry, EntryState
from toolway.workflows.step_planner import CallAction

MAX_TEXT_CHARS = 64 * 1024  # length of a string that is stored next to the data


class RunAccess(Protocol):
    """Access rights of the callers who start runs. The rights are checked again before each call of a step."""

    def caller_id(self, caller: str) -> str:
        """Return the caller id for the calls of a run.

        It selects the credentials; "" means the local owner's.
        """
        ...

    def user_of(self, caller: str) -> str:
        """Return the id of the user behind a caller. It is the same for all of that user's keys."""
        ...

    def find_problem(self, caller: str, tool: str, arguments: Json | None = None) -> ToolwayError | None:
        """Return an error if a run's caller no longer exists or may not call `tool`, or None if the call is allowed.

        If `tool` is "", this only checks that the caller exists.
        """
        ...


async def call_step(
    hub: Hub,
    action: CallAction,
    intent: Entry,
    clock: Callable[[], float],
    may_send: Callable[[], bool] | None = None,
    *,
    access: RunAccess | None = None,
    caller: str = "",
) -> Entry:
    """Make a step's call, and return the journal entry with its outcome. Raises only `CancelledError`.

    `may_send` is called right before the call is sent. If it returns False, the call does not run.
    """

    def outcome(state: EntryState, body: Json) -> Entry:
        # The process of its server may work on an unknown call after the engine was closed.
        return replace(intent, state=state, body=body, ended=clock(), local=intent.local and state != "unknown")

    try:
        # An unsafe step is sent once: the hub does not repeat what the journal calls unsafe.
        idempotent = None if action.effect is Effect.UNSAFE else True
        if may_send is None and access is None:
            result = await hub.call_tool(
                action.tool,
                action.args,
                timeout=action.timeout,
                meta=action.meta,
                idempotent=idempotent,
                raise_on_error=False,
            )
        else:
            problem = access.find_problem(caller, action.tool, action.args) if access is not None else None
            if problem is not None:
                return outcome("not_executed", error_body(problem))
            result = await _request(hub, action, idempotent, may_send, access, caller)
    except CallError as exc:
        states: dict[str, EntryState] = {"no": "not_executed", "unknown": "unknown", "yes": "failed"}
        body = error_body(exc)
        if isinstance(exc, NotFound) and exc.server and exc.server not in hub.status():
            body["retryable"] = False  # the configuration has no such server: a retry would find none either
        return outcome(states[exc.executed], body)
    except ToolwayError as exc:
        return outcome("not_executed", error_body(exc))
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


async def _request(
    hub: Hub,
    action: CallAction,
    idempotent: bool | None,
    may_send: Callable[[], bool] | None,
    access: RunAccess | None,
    caller: str,
) -> ToolResult:
    """Call a step's tool through the hub's middleware chain, and return its result.

    With `access`, the call is made with the credentials of `caller`, and requests from the server are rejected.
    """
    params: Json = {"name": action.tool, "arguments": action.args}
    if action.meta:
        params["_meta"] = action.meta
    call = Call(
        action.tool,
        "tools/call",
        params,
        timeout=action.timeout,
        idempotent=idempotent,
        caller=access.caller_id(caller) if access is not None else "",
        callbacks=FunctionCallbacks(None, None, None) if access is not None else None,
        may_send=may_send,
    )
    result = await hub._core.calls.request(call)
    assert isinstance(result, ToolResult)
    return result


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


def error_body(exc: ToolwayError) -> Json:
    """Return an error as JSON, in the form in which journal entries and runs store it."""
    body: Json = {"code": exc.code, "message": exc.message, "detail": exc.detail, "hint": exc.hint}
    body["executed"] = exc.executed if isinstance(exc, CallError) else "no"
    if isinstance(exc, InvalidArguments | AccessDenied):
        body["retryable"] = False
    return body
