"""Questions of a run and of its child runs, as forms for an MCP client, and the client's answers.

A question of a child run, such as an approval inside an agent step, is shown with the run that the client has started.
The name of its form is the id of the child run and the path of the question.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from toolway.types import Json
from toolway.workflows.engine import Workflows, may_answer
from toolway.workflows.journal import FINAL_STATES, RunRecord

if TYPE_CHECKING:
    from toolway.workflows.temporal import TemporalWorkflows

CHILD_POLL_INTERVAL_S: Final = 1.0  # between two searches for child runs that ask
MAX_CHILD_RUNS: Final = 100  # in one search
_APPROVAL_FORM: Final[Json] = {
    "type": "object",
    "required": ["yes"],
    "properties": {"yes": {"type": "boolean", "title": "Approve"}, "note": {"type": "string", "title": "Note"}},
}
_HAPPENED, _NOT_HAPPENED, _STOP = "it ran", "it did not run", "stop"
_UNKNOWN_FORM: Final[Json] = {
    "type": "object",
    "required": ["happened"],
    "properties": {
        "happened": {"type": "string", "enum": [_HAPPENED, _NOT_HAPPENED, _STOP]},
        "result": {"type": "string", "title": "The step's data as JSON, if it ran"},
    },
}


class RunQuestions:
    """Converts runs' open questions to forms for MCP clients, and filled-in forms to answers.

    A caller gets only the questions that it may answer. `roles` returns the names and roles of a caller.
    """

    def __init__(self, workflows: Workflows, roles: Callable[[str], tuple[str, ...]]) -> None:
        self._workflows = workflows
        self._roles = roles

    def forms(self, run: str, asking: Sequence[RunRecord], caller: str) -> Json:
        """Return those open questions of the runs `asking` that the caller may answer, as forms by name.

        `asking` are the runs that ask a user: the run with the id `run`, or child runs of it.
        """
        return {name: _form_of(question) for name, _, question in self._open(run, asking, caller)}

    async def answer(self, run: str, responses: object, caller: str) -> bool:
        """Send a client's answers to the questions of a run and its child runs.

        Return False if the client declined a question. Raises `WorkflowError` if an answer does not match its form.
        """
        if not isinstance(responses, dict):
            return True
        complete = True
        for name, id, question in self._open(run, await find_asking_runs(self._workflows, run), caller):
            if name in responses:  # else it was asked later, or answered by another client
                response = responses[name]
                complete &= await self._answer(id, question, response if isinstance(response, dict) else {}, caller)
        return complete

    def _open(self, run: str, asking: Sequence[RunRecord], caller: str) -> list[tuple[str, str, Json]]:
        """Return (form name, run id, question) for each open question of these runs that the caller may answer."""
        return [
            (question["path"] if record.id == run else f"{record.id}#{question['path']}", record.id, question)
            for record in asking
            for question in record.asks
            if may_answer(question, caller, self._roles(caller), self._workflows.user_of)
        ]

    async def _answer(self, id: str, question: Json, response: Json, caller: str) -> bool:
        path, kind = question["path"], question["kind"]
        accepted = response.get("action") == "accept"
        content = response.get("content")
        content = content if accepted and isinstance(content, dict) else {}
        if kind == "unknown":
            return await self._settle(id, path, content, caller)
        body: Json
        if kind == "approve" and response.get("action") in ("accept", "decline"):
            body = {"yes": content.get("yes") is True, "note": str(content.get("note") or "")}
        elif kind == "ask" and accepted:
            body = {"data": content}
        else:
            return False
        await self._workflows.answer(id, path, body, by=caller, roles=self._roles(caller))
        return True

    async def _settle(self, id: str, path: str, content: Json, caller: str) -> bool:
        happened = content.get("happened")
        if happened == _STOP:
            await self._workflows.cancel(id, by=caller)
        elif happened in (_HAPPENED, _NOT_HAPPENED):
            result = None
            with contextlib.suppress(ValueError, TypeError):
                result = json.loads(content.get("result") or "null")
            await self._workflows.settle(id, path, happened=happened == _HAPPENED, result=result, by=caller)
        else:
            return False
        return True


def _form_of(question: Json) -> Json:
    forms = {"approve": _APPROVAL_FORM, "unknown": _UNKNOWN_FORM}
    schema = forms.get(question["kind"]) or question.get("form") or {"type": "object", "properties": {}}
    return {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": question["title"], "requestedSchema": schema},
    }


async def find_asking_runs(workflows: Workflows | TemporalWorkflows, id: str) -> list[RunRecord]:
    """Return the runs that wait for a user's answer now, among the run `id` and its child runs at any depth."""
    found: list[RunRecord] = []
    todo = [id]
    for _ in range(MAX_CHILD_RUNS):
        if not todo:
            break
        record, _, entries, _ = await workflows.load(todo.pop())
        if workflows.is_asking(record):
            found.append(record)
        todo += [each.body["run"] for each in entries if each.kind == "child" and each.state == "waiting"]
    return found


async def watch_questions(
    workflows: Workflows | TemporalWorkflows, id: str
) -> AsyncGenerator[tuple[RunRecord, list[RunRecord]]]:
    """Yield (run, runs that ask a user) on each change, until the run `id` has ended.

    The runs that ask are the run itself or child runs of it.
    """
    seen: Any = None
    changes = aiter(workflows.watch(id))
    next_change: asyncio.Task[RunRecord] | None = None
    record = await anext(changes)
    try:
        while True:
            asks = record.state in ("waiting", "asks")
            found = record, await find_asking_runs(workflows, id) if asks else []
            if found != seen:
                seen = found
                yield found
            if record.state in FINAL_STATES:
                return
            if next_change is None:
                next_change = asyncio.ensure_future(anext(changes))
            await asyncio.wait({next_change}, timeout=CHILD_POLL_INTERVAL_S)
            if next_change.done():
                record, next_change = next_change.result(), None
    finally:
        if next_change is not None:
            next_change.cancel()
            await asyncio.gather(next_change, return_exceptions=True)


async def wait_until_asked(
    workflows: Workflows | TemporalWorkflows, id: str, on_change: Callable[[RunRecord], None]
) -> tuple[RunRecord, list[RunRecord]]:
    """Wait until a run has ended, or until it or one of its child runs asks a user.

    Return the run, and the runs that ask. `on_change` is called at each change of the run.
    """
    async with contextlib.aclosing(watch_questions(workflows, id)) as changes:
        async for record, asking in changes:
            on_change(record)
            if record.state in FINAL_STATES or asking:
                return record, asking
    raise AssertionError("a watch ends with a final state")
