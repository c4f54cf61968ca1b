"""Admin API for workflow runs: lists them, shows a run's timeline, and performs administrators' actions.

Each action on a run comes with a description of what it will do. Strings from servers are masked as they are everywhere
else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolway.errors import ConfigError, NotFound, ToolwayError
from toolway.gateway.admin.calls import parse_number, parse_query_fields
from toolway.gateway.principals import Principal
from toolway.protocol.sanitize import map_texts, remove_invisible
from toolway.secrets.replacer import mask_and_cut
from toolway.types import Json

if TYPE_CHECKING:
    from toolway.workflows.engine import Workflows
    from toolway.workflows.journal import Entry, RunMessage, RunRecord

MAX_RUNS_PER_REPLY: Final = 500
MAX_ENTRIES_PER_REPLY: Final = 2000
MAX_VALUE_CHARS: Final = 4000  # of one input, argument or result
#: Query fields of the list of runs.
RUN_QUERY: Final = {
    "state": "ready, running, waiting, asks, undoing, done, failed, undone, cancelled, stuck or damaged",
    "workflow": "name of a workflow",
    "q": "part of an id, name or question",
    "limit": f"at most {MAX_RUNS_PER_REPLY}",
}


class RunsAdmin:
    """Handlers of `/admin/runs`. `get_engine` returns the engine, or None if the gateway has no workflows."""

    def __init__(
        self,
        get_engine: Callable[[], Workflows | None],
        key_names: Callable[[], dict[str, str]],
        mask: Callable[[str], str],
    ) -> None:
        self._get_engine = get_engine
        self._key_names = key_names
        self._mask = mask

    async def list_runs(self, query: str) -> Json:
        """Return the newest runs that match the query, with those waiting for a user first."""
        fields = parse_query_fields(query)
        limit = min(MAX_RUNS_PER_REPLY, parse_number(fields.get("limit", "100")))
        engine = self._get_engine()
        if engine is None:
            return {"enabled": False, "runs": [], "workflows": []}
        found = await engine.list_runs(fields.get("state") or None, MAX_RUNS_PER_REPLY)
        names = self._key_names()
        rows = [self.row(each, names) for each in found if _matches(each, fields)]
        rows.sort(key=lambda row: row["state"] != "asks")
        return {"enabled": True, "runs": rows[:limit], "workflows": sorted({each.workflow for each in found})}

    async def get_run(self, id: str) -> Json:
        """Return a run with its steps in time order, its messages, and the possible actions."""
        with _raising_admin_errors():
            record, entries, messages = await self._engine().read(id)
        return self.describe(record, entries, messages)

    def describe(self, record: RunRecord, entries: list[Entry], messages: list[RunMessage]) -> Json:
        """Return one workflow run as JSON."""
        from toolway.workflows.run_actions import possible_actions  # loads the engine

        names = self._key_names()
        ordered = sorted(entries, key=lambda each: (each.began, each.path, each.attempt))
        return {
            **self.row(record, names),
            "input": self._shown(record.input),
            "output": self._shown(record.output),
            "error": self._shown(record.error),
            "steps": [self._step(each) for each in ordered[:MAX_ENTRIES_PER_REPLY]],
            "more": len(ordered) > MAX_ENTRIES_PER_REPLY,
            "messages": [self._message(each, names) for each in messages[-MAX_ENTRIES_PER_REPLY:]],
            "actions": self.masked(possible_actions(record, entries)),
        }

    async def approve(self, id: str, body: Json, principal: Principal) -> Json:
        """Approve or deny what a workflow run is waiting for."""
        if not isinstance(body.get("yes"), bool):
            raise ValueError("yes must be true or false")
        return await self._answer(id, body, {"yes": body["yes"], "note": str(body.get("note") or "")[:500]}, principal)

    async def answer(self, id: str, body: Json, principal: Principal) -> Json:
        """Answer a workflow run's question with data."""
        if not isinstance(body.get("data"), dict):
            raise ValueError("data must be an object")
        return await self._answer(id, body, {"data": body["data"]}, principal)

    async def settle(self, id: str, body: Json, principal: Principal) -> Json:
        """Record whether a call with an unknown outcome ran, so the run can continue."""
        happened = body.get("happened")
        if not isinstance(happened, bool):
            raise ValueError("happened must be true or false")
        with _raising_admin_errors():
            await self._engine().settle(
                id, _step_of(body), happened=happened, result=body.get("result"), by=principal.caller_id
            )
        return {"run": id, "stored": True}

    async def cancel(self, id: str, body: Json, principal: Principal) -> Json:
        """Cancel a run; with `undo`, undo its finished steps."""
        if not isinstance(body.get("undo", False), bool):
            raise ValueError("undo must be true or false")
        with _raising_admin_errors():
            await self._engine().cancel(id, undo=body.get("undo") is True, by=principal.caller_id)
        return {"run": id, "stored": True}

    async def resume(self, id: str, body: Json, principal: Principal) -> Json:
        """Resume a stuck or damaged workflow run where it stopped."""
        with _raising_admin_errors():
            await self._engine().resume(id, by=principal.caller_id)
        return {"run": id, "stored": True}

    async def _answer(self, id: str, body: Json, answer: Json, principal: Principal) -> Json:
        with _raising_admin_errors():
            await self._engine().answer(id, _step_of(body), answer, by=principal.caller_id, roles=principal.roles)
        return {"run": id, "stored": True}

    async def load(self, id: str) -> tuple[RunRecord, Any, list[Entry], list[RunMessage]]:
        """Return a run with its definition, journal entries, and messages. Raises `NotFound` if no such run exists."""
        with _raising_admin_errors():
            return await self._engine().load(id)

    def _engine(self) -> Workflows:
        engine = self._get_engine()
        if engine is None:
            raise NotFound(
                "the gateway has no workflows",
                hint='add their files to the config file: "toolway": {"workflows": ["flows/*.yaml"]}',
            )
        return engine

    # -- JSON

    def row(self, record: RunRecord, names: dict[str, str]) -> Json:
        """Return a workflow run as a row for lists. `names` maps API keys to their names."""
        questions = [
            {"step": each["path"], "kind": each["kind"], "title": each["title"], "until": each.get("until")}
            for each in record.asks
        ]
        return {
            "id": record.id,
            "workflow": record.workflow,
            "state": record.state,
            "principal": names.get(record.caller, record.caller) or "local",
            "created": record.created,
            "ended": record.ended,
            "due": record.due,
            "code": str((record.error or {}).get("code") or ""),
            "questions": self.masked(questions),
        }

    def _step(self, entry: Entry) -> Json:
        body = entry.body if isinstance(entry.body, dict) else {}
        return {
            "step": entry.path,
            "attempt": entry.attempt,
            "kind": entry.kind,
            "tool": entry.tool,
            "effect": entry.effect,
            "state": entry.state,
            "via": entry.via,
            "began": entry.began,
            "ended": entry.ended,
            "life": entry.life,
            "arguments": self._shown(entry.args),
            "outcome": self._shown(body.get("message") or body.get("title") or body.get("data")),
        }

    def _message(self, message: RunMessage, names: dict[str, str]) -> Json:
        by = names.get(message.by, message.by) or "local"
        return {"kind": message.kind, "step": message.path, "by": by, "at": message.at}

    def _shown(self, value: Any) -> str:
        """Return a value for display: as text, cut if too long, with secrets masked, or "" for None."""
        if value is None:
            return ""
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode(errors="replace")
        return remove_invisible(mask_and_cut(text, MAX_VALUE_CHARS, self._mask))

    def masked(self, value: Any) -> Any:
        """Return a JSON value with secrets and invisible characters masked in all its strings."""
        return map_texts(value, lambda text: remove_invisible(self._mask(text)))


def _matches(record: RunRecord, fields: dict[str, str]) -> bool:
    if fields.get("workflow") and record.workflow != fields["workflow"]:
        return False
    texts = (record.id, record.workflow, *(str(each["title"]) for each in record.asks))
    return fields.get("q", "").lower() in " ".join(texts).lower()


def _step_of(body: Json) -> str | None:
    step = body.get("step")
    if step is not None and not isinstance(step, str):
        raise ValueError("step must be a string")
    return step or None


@contextmanager
def _raising_admin_errors() -> Iterator[None]:
    """Turn workflow engine errors into errors that `/admin` reports with an HTTP status."""
    try:
        yield
    except NotFound:
        raise
    except ToolwayError as exc:
        if exc.code == "E-WORKFLOW-RUN":
            raise NotFound(exc.message, hint=exc.hint) from exc
        raise ConfigError(exc.message, detail=exc.detail, hint=exc.hint, code=exc.code) from exc
