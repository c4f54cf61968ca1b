"""`toolway workflow`: check, run and continue durable workflows of tool calls."""

from __future__ import annotations

import asyncio
import getpass
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from toolway.agents.agent import agent_workflow
from toolway.cli.commands.tools import parse_arguments
from toolway.cli.exit_codes import ExitCode, UsageError
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.output import Output, format_age
from toolway.cli.remote_runs import act_on_remote_run, find_run_gateway
from toolway.cli.run_journals import (
    ASKS_EXIT_CODE,
    TEMPORAL_URL,
    JournalFile,
    act_on_run,
    answer_run,
    journal_file,
    journal_flag,
    load_run_config,
    open_reader,
    open_temporal,
    print_effect,
    remember_config,
    resume_flags,
)
from toolway.hub.hub import Hub
from toolway.parts.workflows.remote import list_remote_runs, show_remote_run
from toolway.workflows.crash_table import crash_table
from toolway.workflows.engine import Workflows
from toolway.workflows.journal import RESUMABLE_STATES
from toolway.workflows.python_workflow import PythonWorkflow, load_workflow
from toolway.workflows.reader import read_file
from toolway.workflows.run_questions import wait_until_asked

if TYPE_CHECKING:
    from toolway.hub.hub import Hub
    from toolway.workflows.definition import Definition
    from toolway.workflows.engine import Workflows
    from toolway.workflows.journal import Entry, RunRecord
    from toolway.workflows.python_workflow import PythonWorkflow
    from toolway.workflows.temporal import TemporalWorkflows

_STATE_STYLES = {
    "done": "green",
    "asks": "yellow",
    "waiting": "cyan",
    "failed": "bold red",
    "stuck": "bold red",
    "damaged": "bold red",
}
File = Annotated[Path, typer.Argument(metavar="FILE", help="Workflow file, YAML or JSON.", show_default=False)]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="Id of the run: toolway workflow ls.", show_default=False)]
StepPath = Annotated[
    str | None, typer.Argument(metavar="[STEP]", help="Step that asks. Default: the only one.", show_default=False)
]
RunFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="Workflow file: YAML, JSON, or FILE.py[:NAME].", show_default=False)
]
CodeFile = Annotated[
    str | None,
    typer.Option("--code", metavar="FILE.py[:NAME]", help="Code of a Python workflow.", show_default=False),
]


def workflow_check(context: CommandContext, file: File) -> CommandResult:
    """Starts the servers of the workflow, and calls no tool."""
    return _check(context, file)


def workflow_run(
    context: CommandContext,
    file: RunFile,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[INPUT]…", help="a=text, b:=json, c@=file, or one JSON object.", show_default=False),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="KEY", help="Idempotency key: the same key returns the same run.", show_default=False
        ),
    ] = None,
    journal: JournalFile = None,
) -> CommandResult:
    """Run a workflow until it ends or needs an answer. Exit with 9 if it needs an answer."""
    return _run(context, file, inputs or [], key, journal)


def workflow_ls(
    context: CommandContext,
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="STATE", help="For example asks, waiting, failed.", show_default=False),
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=1, help="Number of runs.")] = 50,
    journal: JournalFile = None,
) -> CommandResult:
    """List the newest workflow runs, with the open question of each run that needs an answer."""
    return _ls(context, state, lines, journal)


def workflow_show(context: CommandContext, run: RunId, journal: JournalFile = None) -> CommandResult:
    """Show the steps of a run in the order of time, with their outcome."""
    return _show(context, run, journal)


def workflow_answer(
    context: CommandContext,
    run: RunId,
    data: Annotated[
        list[str], typer.Argument(metavar="[DATA]…", help="a=text, b:=json, or one JSON object.", show_default=False)
    ],
    step: Annotated[str | None, typer.Option("--step", metavar="STEP", show_default=False)] = None,
    journal: JournalFile = None,
) -> CommandResult:
    """Send the data that a workflow run asks for."""
    return answer_run(context, run, step, {"data": parse_arguments(data)}, journal)


def workflow_settle(
    context: CommandContext,
    run: RunId,
    step: StepPath = None,
    happened: Annotated[bool, typer.Option("--happened", help="The call ran.")] = False,
    not_: Annotated[bool, typer.Option("--not", help="The call did not run; it is made again.")] = False,
    result: Annotated[
        str | None, typer.Option("--result", metavar="JSON", help="Data of the step.", show_default=False)
    ] = None,
    journal: JournalFile = None,
) -> CommandResult:
    """Settle a call with an unknown outcome, then continue the run with `toolway workflow resume`."""
    if happened == not_:
        raise UsageError("say whether the call ran", hint=f"toolway workflow settle {run} --happened, or --not")
    try:
        value = json.loads(result) if result is not None else None
    except ValueError as exc:
        raise UsageError("--result is not valid JSON", detail=str(exc)) from None
    return _settle(context, run, step, happened, value, journal)


def workflow_resume(
    context: CommandContext, run: RunId, code: CodeFile = None, journal: JournalFile = None
) -> CommandResult:
    """Continue a run that is interrupted, waiting, answered or stuck, until it ends or needs an answer."""
    return _resume(context, run, code, journal)


def workflow_cancel(
    context: CommandContext,
    run: RunId,
    undo: Annotated[bool, typer.Option("--undo", help="Undo the finished steps that have an undo.")] = False,
    journal: JournalFile = None,
) -> CommandResult:
    """Cancel a run: no new step begins."""
    return _cancel(context, run, undo, journal)


# -- the work


async def _check(context: CommandContext, file: Path) -> ExitCode:
    definition = read_file(file)
    async with _open_hub(context, definition) as hub:
        await _wait_for_tools(hub, definition)
        rows = crash_table(definition, hub._core.policies.terms)
    output = context.output
    if output.as_json:
        output.print_json({"workflow": definition.name, "steps": [row._asdict() for row in rows]})
        return ExitCode.OK
    output.print_table(
        ("step", "tool", "effect", "if the process ends in it"),
        [(row.step, row.tool, row.effect, row.after_crash) for row in rows],
    )
    for row in rows:
        if row.advice:
            output.info(f"{row.step}: {row.advice}", "yellow")
    return ExitCode.OK


async def _run(context: CommandContext, file: Path, words: list[str], key: str | None, journal: str | None) -> ExitCode:
    workflow = load_workflow(file) if ".py" in file.name else read_file(file)
    definition = workflow.definition if isinstance(workflow, PythonWorkflow) else workflow
    inputs = parse_arguments(words)
    async with (
        _open_hub(context, definition) as hub,
        _open_workflows(hub, journal) as workflows,
    ):
        run = await workflows.start(
            workflow, inputs, key=key, variables=remember_config(context), caller=getpass.getuser()
        )
        return await _follow(context, workflows, run.id, journal)


async def _resume(context: CommandContext, id: str, code: str | None, journal: str | None) -> ExitCode:
    gateway = find_run_gateway(context, journal)
    if gateway is not None:
        return await act_on_remote_run(context.output, gateway, id, "resume", None, {})
    async with open_reader(journal) as reader:
        record, definition, entries, _ = await reader.load(id)
        if record.state in RESUMABLE_STATES and isinstance(reader, Workflows):
            print_effect(context.output, record, entries, "resume", None, {})
            await reader.resume(id, by=getpass.getuser())
    if "python" in definition.body and code is None:
        raise UsageError(
            f"{id} is a run of the Python workflow {definition.name}",
            hint=f"toolway workflow resume {id} --code FILE.py{resume_flags(record, journal)}",
        )
    async with (
        _open_hub(context, definition, record) as hub,
        _open_workflows(hub, journal, [load_workflow(code)] if code else []) as workflows,
    ):
        return await _follow(context, workflows, id, journal)


async def _follow(
    context: CommandContext, workflows: Workflows | TemporalWorkflows, id: str, journal: str | None
) -> ExitCode:
    """Show a run's progress until it ends or needs an answer; print its output or questions."""
    output = context.output
    output.info(f"run {id}", "dim")
    with output.spinner(f"running {id}") as update:
        record, asking = await wait_until_asked(workflows, id, lambda record: update(f"{id}: {record.state}"))
    children = [each for each in asking if each.id != id]
    if output.as_json:
        found = {"children": [_run_to_json(each) for each in children]} if children else {}
        output.print_json({**_run_to_json(record), **found})
    elif record.state == "done":
        output.print_line(json.dumps(record.output, ensure_ascii=False, indent=2))
    if asking:
        for each in asking:
            _print_questions(output, each, journal)
        if children:
            output.info(f"then: toolway workflow resume {id}{resume_flags(record, journal, context)}")
        return ASKS_EXIT_CODE
    if record.state != "done":
        error = record.error or {}
        output.info(f"the run {id} is {record.state}: {error.get('message', '')}", "red")
        output.info(f"show its steps: toolway workflow show {id}{journal_flag(journal)}")
        return ExitCode.TOOL_FAILED
    return ExitCode.OK


async def _ls(context: CommandContext, state: str | None, lines: int, journal: str | None) -> ExitCode:
    gateway = find_run_gateway(context, journal)
    if gateway is not None:
        return await list_remote_runs(context.output, gateway, state, lines)
    async with open_reader(journal) as reader:
        records = await reader.list_runs(state, lines)
    output = context.output
    if output.as_json:
        output.print_json({"runs": [_run_to_json(each) for each in records]})
        return ExitCode.OK
    if not records:
        output.info("no runs; start one: toolway workflow run FILE, or list a gateway's runs: --gateway URL")
        return ExitCode.OK
    now = time.time()
    output.print_table(
        ("run", "workflow", "state", "started", "asks"),
        [
            (
                each.id,
                each.workflow,
                each.state,
                format_age(now - each.created),
                "; ".join(str(question["title"]) for question in each.asks),
            )
            for each in records
        ],
    )
    return ExitCode.OK


async def _show(context: CommandContext, id: str, journal: str | None) -> ExitCode:
    gateway = find_run_gateway(context, journal)
    if gateway is not None:
        return await show_remote_run(context.output, gateway, id)
    async with open_reader(journal) as reader:
        record, entries, messages = await reader.read(id)
    output = context.output
    ordered = sorted(entries, key=lambda each: (each.began, each.path, each.attempt))
    if output.as_json:
        output.print_json(
            {
                **_run_to_json(record),
                "steps": [_entry_to_json(each) for each in ordered],
                "messages": [
                    {"kind": each.kind, "step": each.path, "by": each.by, "at": each.at, **each.body}
                    for each in messages
                ],
            }
        )
        return ExitCode.OK
    output.print_line(f"{record.id}  {record.state}", _STATE_STYLES.get(record.state, ""))
    output.print_table(
        ("step", "try", "tool", "effect", "state", "seconds", "outcome"),
        [
            (
                each.path,
                str(each.attempt),
                each.tool or each.kind,
                each.effect,
                each.state + (f" ({each.via})" if each.via else ""),
                f"{each.ended - each.began:.2f}" if each.ended is not None else "",
                _short(each),
            )
            for each in ordered
        ],
    )
    _print_questions(output, record, journal)
    if record.error is not None:
        output.info(f"{record.error.get('message', '')} [{record.error.get('code', '')}]", "red")
        if record.state == "damaged":
            output.info(f"{record.error.get('detail', '')}\n{record.error.get('hint', '')}{journal_flag(journal)}")
    return ExitCode.OK


async def _settle(
    context: CommandContext, id: str, step: str | None, happened: bool, result: Any, journal: str | None
) -> ExitCode:
    async def perform(reader: Workflows | TemporalWorkflows, record: RunRecord) -> None:
        await reader.settle(id, step, happened=happened, result=result, by=getpass.getuser())

    body = {"happened": happened, **({"result": result} if result is not None else {})}
    return await act_on_run(context, id, "settle", step, body, journal, perform)


async def _cancel(context: CommandContext, id: str, undo: bool, journal: str | None) -> ExitCode:
    async def perform(reader: Workflows | TemporalWorkflows, record: RunRecord) -> None:
        await reader.cancel(id, undo=undo, by=getpass.getuser())

    return await act_on_run(context, id, "cancel", None, {"undo": undo}, journal, perform)


@asynccontextmanager
async def _open_hub(
    context: CommandContext, definition: Definition, record: RunRecord | None = None
) -> AsyncIterator[Hub]:
    """Open a hub with the configured servers, or with the servers that a stored run was started with.

    Servers that the workflow uses start at once, and the rest when they are first called.
    """
    loaded = load_run_config(context, record)
    used = {name.partition(".")[0] for name in definition.tool_names()}  # agents start theirs when they list tools
    servers = {name: replace(server, lazy=name not in used) for name, server in loaded.servers.items()}
    async with Hub(replace(loaded, servers=servers)) as hub:
        yield hub


async def _wait_for_tools(hub: Hub, definition: Definition) -> None:
    names = sorted(definition.tool_names())
    await asyncio.gather(*(hub.find_tool(name, timeout=20) for name in names), return_exceptions=True)


@asynccontextmanager
async def _open_workflows(
    hub: Hub, journal: str | None, code: Sequence[PythonWorkflow] = ()
) -> AsyncIterator[Workflows | TemporalWorkflows]:
    """Open a workflow engine that executes runs in this process."""
    if journal is not None and journal.startswith(TEMPORAL_URL):
        async with open_temporal(hub, journal) as workflows:
            yield workflows
    else:
        async with Workflows(hub, journal_file(journal), code=[agent_workflow(hub), *code]) as local:
            yield local


def _print_questions(output: Output, record: RunRecord, journal: str | None) -> None:
    flag = journal_flag(journal)
    for question in record.asks:
        output.info(f"asks: {question['title']}", "yellow")
        command = {
            "approve": f"toolway approvals approve {record.id} --step {question['path']}{flag}   (or deny)",
            "ask": f"toolway workflow answer {record.id} --step {question['path']}{flag} name=value",
            "unknown": f"toolway workflow settle {record.id} {question['path']} --happened{flag}   (or --not)",
        }[question["kind"]]
        output.info(f"  {command}")


def _run_to_json(record: RunRecord) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(record)
    return found


def _entry_to_json(entry: Entry) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(entry)
    return found


def _short(entry: Entry) -> str:
    body = entry.body if isinstance(entry.body, dict) else {}
    text = body.get("message") or body.get("title")
    if text is None and body.get("data") is not None:
        text = json.dumps(body["data"], ensure_ascii=False)
    return str(text or "")[:80]
