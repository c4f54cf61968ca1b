"""Runs of workflows and agents that are waiting for approval: at a gateway, or in a journal of this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote

from toolway.cli.exit_codes import ExitCode
from toolway.cli.options import CommandContext
from toolway.cli.remote_runs import act_on_remote_run, find_run_gateway
from toolway.cli.run_journals import answer_run, journal_file, journal_flag, open_reader
from toolway.cli.targets import find_gateway
from toolway.errors import NotFound, ToolwayError

if TYPE_CHECKING:
    from toolway.cli.gateway_client import GatewayClient
    from toolway.cli.output import Output
    from toolway.types import Json
    from toolway.workflows.journal import Entry, RunMessage, RunRecord

MAX_RUNS: Final = 500


def is_run(id: str, journal: str | None) -> bool:
    """Return True if an id is that of a run: it has a hyphen, or a journal is named."""
    return journal is not None or "-" in id


@dataclass(frozen=True)
class WaitingRun:
    """A run of a workflow or of an agent, and the questions in it that wait for a yes or a no."""

    id: str
    kind: Literal["workflow", "agent"]
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
        """Return a row of the table of requests for each question."""
        return [
            (self.id, each["state"], self.kind, each["title"], self.caller or "owner", _time_left(each["until"]))
            for each in self.questions
        ]

    def print(self, output: Output) -> None:
        """Print the run, its questions with all that will be sent, and the commands that answer them."""
        output.print_line(f"{self.id} ({self.kind} run, {self.state})", "bold")
        output.print_line(f"  {'task' if self.kind == 'agent' else 'name':<8} {self.name}")
        output.print_line(f"  caller   {self.caller or 'owner'}")
        for each in self.questions:
            output.print_line(f"{each['title']} ({each['state']})", "bold")
            output.print_line(f"  step     {each['step']}")
            for field in ("tool", "effect", "arguments"):
                if each.get(field):
                    output.print_line(f"  {field:<9}{each[field]}")
            if each["until"] is not None:
                output.print_line(f"  time     {_time_left(each['until'])}")
        if not self.questions:
            output.info("it does not wait for an approval", "yellow")
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
        """Send a yes or a no to the gateway, or into the journal, and print what it causes."""
        if self.gateway is None:
            return await answer_run(context, self.id, step, body, self.journal)

        return await act_on_remote_run(context.output, self.gateway, self.id, "approve", step, body, kind=self.kind)


@dataclass(frozen=True)
class RunPlaces:
    """Places where runs may wait: a gateway, and a journal on this machine."""

    gateway: GatewayClient | None
    journal: str | None  # None: the default file
    uses_journal: bool
    flag: str  # option that names the same place in another command

    async def list_waiting(self) -> list[WaitingRun]:
        """Return all runs that wait for an approval, each once."""
        found = {each.id: each for each in await self._list_remote()}
        found |= {each.id: each for each in await self._list_local()}
        return [each for each in found.values() if each.questions]

    async def find(self, id: str) -> WaitingRun:
        """Return the run with this id. Raises `NotFound` if there is none."""
        if self.uses_journal:
            async with open_reader(self.journal) as reader:
                try:
                    record, _, entries, messages = await reader.load(id)
                    return _local_run(record, entries, messages, self.journal)
                except ToolwayError as exc:
                    if exc.code != "E-WORKFLOW-RUN":
                        raise
        for kind in ("agents", "runs") if self.gateway is not None else ():
            assert self.gateway is not None
            try:
                return _remote_run(
                    await self.gateway.request_admin("GET", f"{kind}/{quote(id, safe='')}"), self.gateway
                )
            except NotFound:
                continue
        raise NotFound(f"there is no run {id}", hint="see what is waiting: toolway approvals ls", code="E-WORKFLOW-RUN")

    async def _list_remote(self) -> list[WaitingRun]:
        found: dict[str, Json] = {}
        for kind in ("runs", "agents") if self.gateway is not None else ():
            assert self.gateway is not None
            rows = (await self.gateway.request_admin("GET", f"{kind}?state=asks&limit={MAX_RUNS}"))["runs"]
            found |= {row["id"]: row for row in rows}
        return [_remote_run(row, self.gateway) for row in found.values()]

    async def _list_local(self) -> list[WaitingRun]:
        if not self.uses_journal:
            return []
        async with open_reader(self.journal) as reader:
            records = await reader.list_runs("asks", MAX_RUNS)
            loaded = [await reader.read(each.id) for each in records]
        return [_local_run(record, entries, messages, self.journal) for record, entries, messages in loaded]


async def find_places(context: CommandContext, journal: str | None) -> RunPlaces:
    """Return the places to look in: --gateway; --journal; or else the running gateway and the journal of this machine.

    Raises `UsageError` if --gateway and --journal are both given.
    """
    named = find_run_gateway(context, journal)
    if named is not None:
        return RunPlaces(named, None, False, f" -g {named.url}")
    if journal is not None:
        return RunPlaces(None, journal, True, journal_flag(journal))
    return RunPlaces(await find_gateway(context.output, context.target_options), None, _has_journal(), "")


def _has_journal() -> bool:
    """Return True if there is a default journal on this machine, so that none is created."""
    try:
        return journal_file(None).exists()
    except ToolwayError:
        return False  # no folder for it


def _local_run(
    record: RunRecord, entries: Sequence[Entry], messages: Sequence[RunMessage], journal: str | None
) -> WaitingRun:
    answered = {each.path for each in messages if each.kind == "answer"}
    questions = [
        {
            "step": each["path"],
            "title": str(each["title"]),
            "until": each.get("until"),
            "state": "answered" if each["path"] in answered else "pending",
            **_call_fields(record, entries, each["path"]),
        }
        for each in record.asks
        if each["kind"] == "approve"
    ]
    agent = _is_agent(record.workflow)
    name = str((record.input or {}).get("prompt") or "") if agent else record.workflow
    return WaitingRun(
        record.id, "agent" if agent else "workflow", name, record.caller, record.state, questions, None, journal
    )


def _call_fields(record: RunRecord, entries: Sequence[Entry], step: str) -> Json:
    """Return tool, effect and arguments of the call that an agent wants to make at `step`; {} for another question."""
    if not _is_agent(record.workflow):
        return {}

    from toolway.agents.run_reader import AgentRunReader

    found = AgentRunReader(Path()).find_call(record, entries, step)
    if found is None:
        return {}
    arguments = json.dumps(found["arguments"], ensure_ascii=False)
    return {"tool": found["tool"], "effect": found["effect"], "arguments": arguments}


def _remote_run(row: Json, gateway: GatewayClient | None) -> WaitingRun:
    fields = ("step", "title", "until", "tool", "effect", "arguments")
    questions = [
        {**{field: each[field] for field in fields if field in each}, "state": "pending"}
        for each in row["questions"]
        if each["kind"] == "approve"
    ]
    agent = _is_agent(row["workflow"])
    name = str(row.get("prompt") or row["workflow"])
    return WaitingRun(
        row["id"], "agent" if agent else "workflow", name, row["principal"], row["state"], questions, gateway
    )


def _is_agent(workflow: str) -> bool:
    from toolway.agents.agent import AGENT_WORKFLOW

    return workflow == AGENT_WORKFLOW


def _time_left(until: float | None) -> str:
    return "" if until is None else f"expires in {max(0, round((until - time.time()) / 60))} min"
