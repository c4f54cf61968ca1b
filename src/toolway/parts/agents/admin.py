"""Admin API for agent runs: list runs, show a run's conversation, costs, and budget, and approve its calls.

Agent runs are workflow runs. `AgentRunReader` knows how to read a conversation, and where the command `toolway agent`
stores its runs.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolway.errors import NotFound, ToolwayError
from toolway.events import Event, RunAction
from toolway.gateway.admin.calls import parse_number, parse_query_fields
from toolway.gateway.principals import Principal
from toolway.parts.workflows.admin import MAX_RUNS_PER_REPLY, RunsAdmin
from toolway.protocol.sanitize import remove_invisible
from toolway.secrets.replacer import mask_and_cut
from toolway.types import Json

if TYPE_CHECKING:
    from toolway.agents.run_reader import AgentRunReader
    from toolway.workflows.engine import Workflows
    from toolway.workflows.journal import RunRecord

MAX_SEARCHED_RUNS: Final = 1000
MAX_MESSAGES: Final = 500
MAX_TEXT_CHARS: Final = 20_000  # of one message or argument
MAX_REVIEW_CHARS: Final = 70_000  # of a call's arguments while it is waiting for approval: all of them
MAX_PROMPT_CHARS: Final = 300  # in the list
MAX_KNOWN_USAGES: Final = 1000  # of runs that have ended
#: Usage that a row shows for a run that cannot be read.
_NO_USAGE: Final[Json] = {"turns": 0, "calls": 0, "input_tokens": 0, "output_tokens": 0, "usd": None, "model": ""}
#: Query fields of the list of agent runs.
AGENT_QUERY: Final = {
    "state": "asks, ready, running, waiting, done, failed, cancelled, stuck or damaged",
    "q": "part of an id, prompt, model or question",
    "limit": f"at most {MAX_RUNS_PER_REPLY}",
}


class AgentsAdmin:
    """Handlers of `/admin/agents`: list agent runs, show one, and act on one.

    Args:
        get_reader: Returns the reader of agent runs; None if the gateway shows none.
        get_engine: Returns the engine of the gateway, or None.
        key_names: Returns the names of API keys by id.
        mask: Masks secrets in a string.
        emit: Reports an administrator's action in a journal that is not the gateway's.
        usages: Cache of what finished runs have used, by id.
    """

    def __init__(
        self,
        get_reader: Callable[[], AgentRunReader | None],
        get_engine: Callable[[], Workflows | None],
        key_names: Callable[[], dict[str, str]],
        mask: Callable[[str], str],
        emit: Callable[[Event], None],
        usages: dict[str, Json],
    ) -> None:
        self._get_reader = get_reader
        self._get_engine = get_engine
        self._key_names = key_names
        self._mask = mask
        self._emit = emit
        self._usages = usages

    async def list_runs(self, query: str) -> Json:
        """Return the newest agent runs that match the query, with those waiting for approval first."""
        fields = parse_query_fields(query)
        limit = min(MAX_RUNS_PER_REPLY, parse_number(fields.get("limit", "100")))
        reader = self._get_reader()
        if reader is None:
            return {"enabled": False, "runs": [], "problem": ""}
        found: list[Json] = []
        problem = ""
        async with self._engines(reader) as (engines, trouble):
            problem = trouble
            for place, engine in engines:
                try:
                    records = await engine.list_runs(fields.get("state") or None, MAX_SEARCHED_RUNS)
                except ToolwayError as exc:
                    problem = f"{exc.message}: {exc.detail}"
                    continue
                chosen = [each for each in records if reader.is_agent(each) and _matches(each, fields)]
                found += [await self._row(reader, engine, place, each) for each in chosen[:limit]]
        found.sort(key=lambda row: (row["state"] != "asks", -row["created"]))
        return {"enabled": True, "runs": found[:limit], "problem": self._mask(problem)}

    async def get_run(self, id: str) -> Json:
        """Return an agent run with its conversation, timeline, budget, open questions, and available actions."""
        async with self._find(id) as (reader, engine, place):
            admin = self._runs(engine)
            record, _, entries, inbox = await admin.load(id)
            found = admin.describe(record, entries, inbox)
            about = reader.describe(record, entries, time.time())
            messages = reader.read_messages(record, entries)
            calls = {each["path"]: reader.find_call(record, entries, each["path"]) for each in record.asks}
        for step in found["steps"]:
            if step["step"].startswith("model/"):  # the conversation has it
                step["outcome"] = ""
        for question in found["questions"]:  # with all arguments: who approves a call must see it
            question.update(self._call_fields(calls.get(question["step"]), MAX_REVIEW_CHARS))
        return {
            **found,
            **self._texts(about),
            "place": place,
            "conversation": [self._message(each) for each in messages[:MAX_MESSAGES]],
            "more": found["more"] or len(messages) > MAX_MESSAGES,
            "actions": [self._action(each, calls) for each in found["actions"] if not each["body"].get("undo")],
            "resume": f"toolway agent resume {id}" if place == "command" and record.ended is None else "",
        }

    async def act(self, action: str, id: str, body: Json, principal: Principal) -> Json:
        """Perform an administrator's action on an agent run: `approve`, `settle`, `resume` or `cancel`.

        `approve` approves or denies a call. `settle` states whether a call with an unknown outcome ran.
        """
        async with self._find(id) as (_, engine, place):
            admin = self._runs(engine)
            handler = {"approve": admin.approve, "settle": admin.settle, "resume": admin.resume}.get(action)
            stored = await (handler or admin.cancel)(id, body, principal)
        if place == "command":  # its engine has no hub to report to
            done = {"approve": "approved" if body.get("yes") else "denied", "settle": "settled", "resume": "resumed"}
            step = str(body.get("step") or "")
            self._emit(RunAction("workflows", id, done.get(action, "cancelled"), step, principal.caller_id))
        return stored

    # -- journals

    @asynccontextmanager
    async def _engines(self, reader: AgentRunReader) -> AsyncIterator[tuple[list[tuple[str, Workflows]], str]]:
        """Yield an engine for each journal that contains agent runs: the gateway's, and the one `toolway agent` uses.

        Each engine comes with the reason why the command's journal cannot be read, or "" if it can.
        """
        own = self._get_engine()
        engines = [("gateway", own)] if own is not None else []
        manager = reader.open_command_journal()
        try:
            other = await manager.__aenter__()
        except ToolwayError as exc:
            yield engines, f"{exc.message}: {exc.detail}"
            return
        try:
            yield [*engines, *([("command", other)] if other is not None else [])], ""
        finally:
            await manager.__aexit__(None, None, None)

    @asynccontextmanager
    async def _find(self, id: str) -> AsyncIterator[tuple[AgentRunReader, Workflows, str]]:
        """Open the journal that contains this agent run. Raises `NotFound` if no journal contains it."""
        reader = self._get_reader()
        missing = NotFound(f"agent run {id} does not exist", hint="toolway agent ls")
        if reader is None:
            raise missing
        async with self._engines(reader) as (engines, _):
            for place, engine in engines:
                try:
                    record = (await self._runs(engine).load(id))[0]
                except NotFound:
                    continue
                if reader.is_agent(record):
                    yield reader, engine, place
                    return
            raise missing

    def _runs(self, engine: Workflows) -> RunsAdmin:
        return RunsAdmin(lambda: engine, self._key_names, self._mask)

    # -- JSON

    async def _row(self, reader: AgentRunReader, engine: Workflows, place: str, record: RunRecord) -> Json:
        usage = self._usages.get(record.id)
        if usage is None:
            record, entries, _ = await engine.read(record.id)
            usage = dict(_NO_USAGE)
            if record.state != "damaged":
                about = reader.describe(record, entries, time.time())
                usage = {name: about[name] for name in _NO_USAGE}
            if record.ended is not None:
                while len(self._usages) >= MAX_KNOWN_USAGES:
                    self._usages.pop(next(iter(self._usages)))
                self._usages[record.id] = usage
        prompt = str((record.input or {}).get("prompt") or "")
        row = self._runs(engine).row(record, self._key_names())
        return {**row, **usage, "prompt": self._text(prompt)[:MAX_PROMPT_CHARS], "place": place}

    def _message(self, message: Json) -> Json:
        """Return one message of a conversation as JSON.

        All messages have the same fields. Call arguments are JSON strings.
        """
        calls = [self._call_fields({"effect": "", **each}) for each in message.get("tool_calls") or []]
        names = self._key_names()
        by = str(message.get("approved_by") or "")
        return {
            "role": message["role"],
            "step": message["step"],
            "content": self._text(str(message.get("content") or "")),
            "error": self._text(str(message.get("error") or "")),
            "model": str(message.get("model") or ""),
            "input_tokens": message.get("input_tokens", 0),
            "output_tokens": message.get("output_tokens", 0),
            "usd": message.get("usd"),
            "tool_calls": calls,
            "tool": str(message.get("tool") or ""),
            "executed": str(message.get("executed") or ""),
            "approved_by": names.get(by, by),
        }

    def _call_fields(self, call: Json | None, limit: int = MAX_TEXT_CHARS) -> Json:
        if call is None:
            return {"tool": "", "arguments": "", "effect": ""}
        return {"tool": str(call["tool"]), "arguments": self._json(call["arguments"], limit), "effect": call["effect"]}

    def _action(self, action: Json, calls: dict[str, Json | None]) -> Json:
        """Return an action on a run for display, naming the tool that needs approval."""
        call = calls.get(action["step"])
        if action["action"] != "approve" or call is None:
            return action
        tool = call["tool"]
        if action["body"].get("yes"):
            kinds = {
                "unsafe": "It may change something, and repeating it may change it again.",
                "read": "It only reads.",
            }
            effect = f"{tool} is called once, with the arguments shown. {kinds.get(call['effect'], '')}".rstrip()
            return {**action, "label": f"Approve {tool}", "effect": effect}
        effect = f"{tool} is not called. The model learns that its call was denied, with your reason, and continues."
        return {**action, "label": f"Deny {tool}", "effect": effect}

    def _texts(self, value: Json) -> Json:
        return {key: self._text(each) if isinstance(each, str) else each for key, each in value.items()}

    def _json(self, value: Any, limit: int) -> str:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode(errors="replace")
        return self._text(text, limit)

    def _text(self, text: str, limit: int = MAX_TEXT_CHARS) -> str:
        """Return text with secrets masked and its length limited."""
        shown = remove_invisible(mask_and_cut(text, limit, self._mask))
        return shown if len(shown) <= limit else f"{shown} ({len(text)} characters)"


def _matches(record: RunRecord, fields: dict[str, str]) -> bool:
    settings = record.input["settings"]
    texts = (record.id, record.input.get("prompt"), settings.get("model"), *(each["title"] for each in record.asks))
    return fields.get("q", "").lower() in " ".join(map(str, texts)).lower()
