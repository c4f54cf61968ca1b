"""Runs waiting for your approval, at a gateway or in a journal on this machine.

An agent run is a workflow run, so the agents part bases its class for agent runs on the one here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias
from urllib.parse import quote

from toolway.cli.exit_codes import ExitCode
from toolway.cli.options import CommandContext
from toolway.cli.remote_runs import act_on_remote_run
from toolway.cli.run_journals import answer_run, journal_file, journal_flag, open_reader
from toolway.errors import NotFound, ToolwayError
from toolway.part_api.inbox import InboxPlace

if TYPE_CHECKING:
    from toolway.cli.gateway_client import GatewayClient
    from toolway.cli.output import Output
    from toolway.types import Json
    from toolway.workflows.journal import Entry, RunMessage, RunRecord

MAX_RUNS: Final = 500
RunKind: TypeAlias = Literal["workflow", "agent"]  # a command shows its runs


@dataclass(frozen=True)
class WaitingRun:
    """A workflow or agent run, and its questions that are waiting for a yes or no."""

    id: str
    kind: RunKind
    name: str  # of the workflow, or the task of the agent
    caller: str
    state: str
    questions: Sequence[Json]  # step, title, until, state, and of an agent's call: tool, arguments, effect
    gateway: GatewayClient | None = None
    journal: str | None = None

    def to_json(self) -> Json:
        """Return the run as the JSON object that `toolway approvals` prints."""
        fields = {"id": self.id, "kind": self.kind, "name": self.name, "caller": self.caller, "state": self.state}
        return {**fields, "gateway": self.gateway.url if self.gateway else None, "questions": list(self.questions)}

    def list_rows(self) -> list[tuple[str, ...]]:
        """Return a row for each question in the table of waiting items."""
        return [
            (self.id, each["state"], self.kind, each["title"], self.caller or "local", _time_left(each["until"]))
            for each in self.questions
        ]

    def print(self, output: Output) -> None:
        """Print the run, its questions with everything that will be sent, and the commands that answer them."""
        output.print_line(f"{self.id} ({self.kind} run, {self.state})", "bold")
        output.print_line(f"  {'task' if self.kind == 'agent' else 'name':<8} {self.name}")
        output.print_line(f"  caller   {self.caller or 'local'}")
        for each in self.questions:
            output.print_line(f"{each['title']} ({each['state']})", "bold")
            output.print_line(f"  step     {each['step']}")
            for field in ("tool", "effect", "arguments"):
                if each.get(field):
                    output.print_line(f"  {field:<9}{each[field]}")
            if each["until"] is not None:
                output.print_line(f"  time     {_time_left(each['until'])}")
        if not self.questions:
            output.info("it does not need approval", "yellow")
        command = f"toolway {self.kind} show {self.id}"
        place = f" -g {self.gateway.url}" if self.gateway is not None else journal_flag(self.journal)
        for each in self.questions:
            if each["state"] == "pending":
                words = f"{self.id} --step {each['step']}{place}"
                output.info(f"approve it: toolway approvals approve {words}")
                output.info(f"deny it:    toolway approvals deny {words}")
        if self.kind == "workflow" or self.gateway is None:  # the conversation of an agent at a gateway: the dashboard
            output.info(f"see the whole run: {command}{place}", "dim")

    async def answer(self, context: CommandContext, step: str | None, body: Json) -> ExitCode:
        """Send a yes or no to the gateway or the journal, and print what happens."""
        if self.gateway is None:
            return await answer_run(context, self.id, step, body, self.journal)
        return await act_on_remote_run(context.output, self.gateway, self.id, "approve", step, body, kind=self.kind)


class RunInbox:
    """The approval inbox's view of workflow runs: runs that need approval (`Inbox`)."""

    kind: ClassVar[RunKind] = "workflow"
    admin: ClassVar[str] = "runs"  # below /admin

    def __init__(self, place: InboxPlace) -> None:
        self._gateway = place.gateway
        self._journal = place.journal
        self._uses_journal = not place.is_named and (place.journal is not None or _has_journal())

    def has(self, workflow: str) -> bool:
        """Return True if runs of this workflow belong here."""
        return True

    async def list_waiting(self) -> list[WaitingRun]:
        found = {each.id: each for each in await self._list_remote()}
        found |= {each.id: each for each in await self._list_local()}
        return [each for each in found.values() if each.questions]

    async def find(self, id: str) -> WaitingRun | None:
        if self._uses_journal:
            async with open_reader(self._journal) as reader:
                try:
                    record, _, entries, messages = await reader.load(id)
                    return self._local_run(record, entries, messages) if self.has(record.workflow) else None
                except ToolwayError as exc:
                    if exc.code != "E-WORKFLOW-RUN":
                        raise
        if self._gateway is None:
            return None
        try:
            return self._remote_run(await self._gateway.request_admin("GET", f"{self.admin}/{quote(id, safe='')}"))
        except NotFound:
            return None

    async def _list_remote(self) -> list[WaitingRun]:
        if self._gateway is None:
            return []
        rows = (await self._gateway.request_admin("GET", f"{self.admin}?state=asks&limit={MAX_RUNS}"))["runs"]
        return [self._remote_run(row) for row in rows]

    async def _list_local(self) -> list[WaitingRun]:
        if not self._uses_journal:
            return []
        async with open_reader(self._journal) as reader:
            records = [each for each in await reader.list_runs("asks", MAX_RUNS) if self.has(each.workflow)]
            loaded = [await reader.read(each.id) for each in records]
        return [self._local_run(record, entries, messages) for record, entries, messages in loaded]

    def name_of(self, record: RunRecord) -> str:
        """Return the name under which users know a run."""
        return record.workflow

    def call_fields(self, record: RunRecord, entries: Sequence[Entry], step: str) -> Json:
        """Return the tool, effect, and arguments of the call that a run wants to make, or {} if it does not want to."""
        return {}

    def _local_run(self, record: RunRecord, entries: Sequence[Entry], messages: Sequence[RunMessage]) -> WaitingRun:
        answered = {each.path for each in messages if each.kind == "answer"}
        questions = [
            {
                "step": each["path"],
                "title": str(each["title"]),
                "until": each.get("until"),
                "state": "answered" if each["path"] in answered else "pending",
                **self.call_fields(record, entries, each["path"]),
            }
            for each in record.asks
            if each["kind"] == "approve"
        ]
        name = self.name_of(record)
        return WaitingRun(record.id, self.kind, name, record.caller, record.state, questions, journal=self._journal)

    def _remote_run(self, row: Json) -> WaitingRun:
        fields = ("step", "title", "until", "tool", "effect", "arguments")
        questions = [
            {**{field: each[field] for field in fields if field in each}, "state": "pending"}
            for each in row["questions"]
            if each["kind"] == "approve"
        ]
        name = str(row.get("prompt") or row["workflow"])
        return WaitingRun(row["id"], self.kind, name, row["principal"], row["state"], questions, self._gateway)


def _has_journal() -> bool:
    """Return True if this machine has a default journal. Looking for runs must not create one."""
    try:
        return journal_file(None).exists()
    except ToolwayError:
        return False  # no folder for it


def _time_left(until: float | None) -> str:
    return "" if until is None else f"expires in {max(0, round((until - time.time()) / 60))} min"
