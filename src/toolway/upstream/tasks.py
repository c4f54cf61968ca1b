"""Tasks: a modern server may answer a tool call with a task, which is then polled until it ends.

The task continues without its client, so if an answer is lost, we just ask again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from toolway.errors import Certainty, OutcomeUnknown, ProtocolError
from toolway.types import Json
from toolway.upstream.transport import JSONRPCError, TransportError

TASK_CODE: Final = "E-TASK"
FIRST_INTERVAL_S: Final = 1.0  # until the first question about a task, if the server names no interval
MAX_INTERVAL_S: Final = 10.0  # to which it grows
INTERVAL_GROWTH: Final = 1.5
MIN_NAMED_S: Final = 0.1  # least interval that a server may name
MAX_NAMED_S: Final = 60.0  # longest one
MAX_LOST_ANSWERS: Final = 5  # in a row, until the task counts as lost
MAX_ID_CHARS: Final = 4096


class TaskOwner(NamedTuple):
    """The session's functions for a call whose task is being followed."""

    server: str
    tool: str
    request: Callable[[str, Json], Awaitable[Json]]  # sends (method, params) to the server
    answer: Callable[[Json], Awaitable[Json]]  # (a task with `inputRequests`) → answers by key
    report: Callable[[str], None]  # gets each new status message
    is_open: Callable[[], bool]  # returns False if the connection has ended


def task_id_of(created: Json) -> str:
    """Return the id of a task that a server created. Raises `TransportError` if it has none."""
    id_ = created.get("taskId")
    if not isinstance(id_, str) or not 0 < len(id_) <= MAX_ID_CHARS:
        raise TransportError("a task without a usable id", Certainty.UNKNOWN, code="E-ANSWER")
    return id_


async def follow_task(created: Json, owner: TaskOwner) -> Json:
    """Wait until a task ends, and return the result of its call. Answers the server's requests for input.

    Raises `TransportError` if the task has no result: it failed, was cancelled, or is lost.
    """
    params = {"taskId": task_id_of(created)}
    task, interval, answered, message = created, FIRST_INTERVAL_S, set[str](), None
    if task.get("status") != "working":
        task = await _ask(params, interval, owner)  # what was created has neither a result nor requests for input
    while True:
        if isinstance(text := task.get("statusMessage"), str) and text != message:
            message = text
            owner.report(text)
        status = task.get("status")
        if status == "input_required":
            await _give_input(task, params, answered, owner)
        elif status != "working":
            return _end(task, owner)
        await asyncio.sleep(_named_interval(task, interval))
        interval = min(interval * INTERVAL_GROWTH, MAX_INTERVAL_S)
        task = await _ask(params, interval, owner)


async def _ask(params: Json, interval: float, owner: TaskOwner) -> Json:
    """Ask for a task's state, repeatedly if answers are lost. Raises `TransportError` if the task is lost."""
    for number in range(1, MAX_LOST_ANSWERS + 1):
        try:
            return await owner.request("tasks/get", params)
        except JSONRPCError as exc:
            raise _lost(owner, exc.message) from exc
        except TransportError as exc:
            if number == MAX_LOST_ANSWERS or not owner.is_open():
                raise _lost(owner, exc.reason) from exc
        await asyncio.sleep(interval)
    raise AssertionError("unreachable")


async def _give_input(task: Json, params: Json, answered: set[str], owner: TaskOwner) -> None:
    """Answer a task's new requests for input. A server may keep showing answered ones for a while."""
    requests = task.get("inputRequests")
    new = {key: each for key, each in requests.items() if key not in answered} if isinstance(requests, dict) else {}
    if not new:
        return
    answers = await owner.answer({"inputRequests": new})
    answered.update(new)
    try:
        await owner.request("tasks/update", {**params, "inputResponses": answers})
    except JSONRPCError as exc:
        raise _lost(owner, exc.message) from exc
    except TransportError as exc:
        if not owner.is_open():
            raise _lost(owner, exc.reason) from exc
        answered.difference_update(new)  # whether it arrived shows at the next question


def _end(task: Json, owner: TaskOwner) -> Json:
    status, result = task.get("status"), task.get("result")
    if status == "completed" and isinstance(result, dict):
        return result
    if status == "failed":
        raise _failed(task.get("error"), owner)
    if status == "cancelled":
        raise _lost(owner, "the task was cancelled")
    raise TransportError("a task with an unknown status, or without its result", Certainty.UNKNOWN, code="E-ANSWER")


def _failed(given: object, owner: TaskOwner) -> TransportError:
    """Return the error of a failed task. It ran, whatever the server's error code says."""
    error = given if isinstance(given, dict) else {}
    code, message = error.get("code"), error.get("message")
    code = code if isinstance(code, int) and not isinstance(code, bool) else None
    final = ProtocolError(
        f"{owner.server} answered with error {code}" if code is not None else f"the task of {owner.server} failed",
        rpc_code=code,
        data=error.get("data"),
        server=owner.server,
        tool=owner.tool,
        certainty=Certainty.EXECUTED,
        attempts=1,
        detail=message if isinstance(message, str) else "",
    )
    final.retryable = False
    return TransportError(final.message, Certainty.EXECUTED, call_error=final)


def _lost(owner: TaskOwner, reason: str) -> TransportError:
    final = OutcomeUnknown(
        f"the task of {owner.server}.{owner.tool} has no result",
        server=owner.server,
        tool=owner.tool,
        certainty=Certainty.UNKNOWN,
        attempts=1,
        detail=reason,
        hint="check whether the call took effect before you retry",
        code=TASK_CODE,
    )
    return TransportError(reason, Certainty.UNKNOWN, code=TASK_CODE, call_error=final)


def _named_interval(task: Json, default: float) -> float:
    named = task.get("pollIntervalMs")
    if not isinstance(named, int | float) or isinstance(named, bool) or not named > 0:
        return default
    return float(min(max(named / 1000, MIN_NAMED_S), MAX_NAMED_S))
