"""`toolway agent`: let a model work with the tools of your servers, in runs that continue after a crash."""

from __future__ import annotations

import getpass
import json
import sys
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from toolway.agents.agent import AGENT_WORKFLOW, Agent, require_package
from toolway.agents.settings import AgentSettings
from toolway.agents.transcript import read_messages
from toolway.cli.exit_codes import ExitCode, UsageError
from toolway.cli.file_changes import confirm
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.output import Output, format_age
from toolway.cli.run_journals import (
    ASKS_EXIT_CODE,
    JournalFile,
    journal_file,
    journal_flag,
    load_run_config,
    open_reader,
    remember_config,
    resume_flags,
)
from toolway.cli.targets import load_masked_config
from toolway.config.agent_settings import read_agent_settings
from toolway.hub.hub import Hub
from toolway.workflows.engine import WorkflowError
from toolway.workflows.engine.run_executor import CHILD_KEY

if TYPE_CHECKING:
    from toolway.agents.agent import Agent, AgentRun
    from toolway.agents.events import AgentEvent
    from toolway.workflows.journal import RunRecord

MAX_EVENT_CHARS = 400  # of a result that is shown while the run continues
RunId = Annotated[str, typer.Argument(metavar="RUN", help="Id of the run: toolway agent ls.", show_default=False)]


def agent_run(
    context: CommandContext,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The task.", show_default=False)],
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="PROVIDER:MODEL", help="For example openai:gpt-5.", show_default=False),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option("--agent", metavar="NAME", help="Agent of the configuration: toolway.agents.", show_default=False),
    ] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option("--tools", "-t", metavar="PATTERN", help='For example "github.*". Default: all.'),
    ] = None,
    budget: Annotated[
        str,
        typer.Option("--budget", metavar="LIMITS", help="For example 0.50usd,40calls,10m.", show_default=False),
    ] = "",
    approve: Annotated[
        str | None,
        typer.Option("--approve", metavar="WHICH", help="unsafe (default), all, none, or patterns with commas."),
    ] = None,
    untrusted: Annotated[
        list[str] | None,
        typer.Option(
            "--untrusted",
            metavar="SERVER",
            help="Server whose results you do not trust, or none.",
            show_default=False,
        ),
    ] = None,
    instructions: Annotated[
        str, typer.Option("--instructions", metavar="TEXT", help="System prompt, or @FILE.", show_default=False)
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="JSON Schema of the answer.", show_default=False),
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", metavar="URL", help="OpenAI-compatible endpoint.", show_default=False),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="KEY", help="Idempotency key: the same key returns the same run.", show_default=False
        ),
    ] = None,
    journal: JournalFile = None,
) -> CommandResult:
    """Let a model work on a task with your tools. Exit with 9 if it needs approval."""
    if (model is None) == (agent is None):
        raise UsageError(
            "use either --model or --agent",
            hint='--model openai:gpt-5, or --agent NAME with "toolway": {"agents": {NAME: …}} in the configuration',
        )
    given: dict[str, Any] = {
        "model": model,
        "tools": tools,
        "budget": budget or None,
        "approve": approve if approve in (None, "unsafe", "all", "none") else approve.split(","),
        "untrusted": "none" if untrusted == ["none"] else untrusted,
        "instructions": _read_text(Path(instructions[1:])) if instructions.startswith("@") else instructions or None,
        "output": _read_schema(output),
        "base_url": base_url,
    }
    return _run(context, prompt, agent, {name: each for name, each in given.items() if each is not None}, key, journal)


def agent_ls(
    context: CommandContext,
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=1, help="Number of runs.")] = 50,
    journal: JournalFile = None,
) -> CommandResult:
    """List the newest agent runs, with the open question of each run that needs an answer."""
    return _ls(context, lines, journal)


def agent_show(context: CommandContext, run: RunId, journal: JournalFile = None) -> CommandResult:
    """Show the conversation of a run: answers of the model, calls and results, tokens and costs."""
    return _show(context, run, journal)


def agent_resume(context: CommandContext, run: RunId, journal: JournalFile = None) -> CommandResult:
    """Continue a run that was interrupted or approved, with the model and the limits that it was started with."""
    return _resume(context, run, journal)


def agent_replay(context: CommandContext, run: RunId, journal: JournalFile = None) -> CommandResult:
    """Run an agent run again from its journal, to compare the result. No model is asked and no tool is called."""
    return _replay(context, run, journal)


# -- the work


async def _run(
    context: CommandContext, prompt: str, name: str | None, given: dict[str, Any], key: str | None, journal: str | None
) -> ExitCode:
    """Start an agent run with a prompt.

    The `given` settings replace the settings of the configured agent `name`, if there is one.
    """
    configured: dict[str, Any] = {}
    if name is not None:
        agents = load_masked_config(context.output, context.target_options).gateway.agents
        if name not in agents:
            known = ", ".join(sorted(agents)) or "none"
            hint = f"agents of the configuration: {known}"
            raise UsageError(f"no agent {name} in the configuration", hint=hint)
        configured = msgspec.to_builtins(agents[name].settings)
    settings = read_agent_settings({**configured, **given})
    typed = [str(given["base_url"])] if "base_url" in given else []  # the user named it here, for this run
    async with _open_agent(context, settings, journal, typed) as agent:
        run = await agent.start(prompt, key=key, variables=remember_config(context), caller=getpass.getuser())
        return await _follow(context, run, journal)


async def _resume(context: CommandContext, id: str, journal: str | None) -> ExitCode:
    record = await _load(id, journal)
    settings = msgspec.convert(record.input["settings"], AgentSettings)
    is_child = (record.key or "").startswith(CHILD_KEY)  # a workflow named the address, not the user
    urls = [] if is_child or settings.base_url is None else [settings.base_url]
    async with _open_agent(context, settings, journal, urls, record) as agent:
        return await _follow(context, agent.get(id), journal)


async def _follow(context: CommandContext, run: AgentRun, journal: str | None) -> ExitCode:
    """Print a run's events until it ends. In a terminal, ask for approvals. Then print the answer."""
    output = context.output
    output.info(f"run {run.id}", "dim")
    asks_here = sys.stdin.isatty() and not output.as_json
    async for event in run.events():
        _print_event(output, event)
        if event.kind == "asks":
            if not asks_here:
                break
            if event.step.endswith("/approve"):
                yes = confirm(output, f"Call {event.text}?", False)
                await run.approve(event.step, yes=yes, by=getpass.getuser())
            else:
                happened = confirm(output, f"{event.text}. Did the call run?", False)
                await run.settle(event.step, happened=happened, by=getpass.getuser())
    record = await run.status()
    asking = await run.asking()
    if output.as_json:
        children = {"children": [_to_json(each) for each in asking if each.id != run.id]} if asking else {}
        found = {"run": run.id, "state": record.state, "asks": record.asks, **children}
        output.print_json({**found, **(record.output or {})})
    elif record.state == "done":
        found = record.output["output"]
        output.print_line(found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, indent=2))
        output.info(_format_usage(record.output["usage"]), "dim")
    if asking:
        for each in asking:
            _print_questions(output, each, journal)
        output.info(f"then: toolway agent resume {run.id}{resume_flags(record, journal, context)}")
        return ASKS_EXIT_CODE
    if record.state != "done":
        error = record.error or {}
        output.info(f"the run {run.id} is {record.state}: {error.get('message', '')} [{error.get('code', '')}]", "red")
        for part in (error.get("detail"), error.get("hint")):
            if part:
                output.info(f"  {part}")
        output.info(f"show it: toolway agent show {run.id}{journal_flag(journal)}")
        return ExitCode.TOOL_FAILED
    return ExitCode.OK


async def _ls(context: CommandContext, lines: int, journal: str | None) -> ExitCode:
    async with open_reader(journal) as reader:
        records = [each for each in await reader.list_runs(None, 1000) if each.workflow == AGENT_WORKFLOW][:lines]
    output = context.output
    if output.as_json:
        output.print_json({"runs": [_to_json(each) for each in records]})
        return ExitCode.OK
    if not records:
        output.info('no runs; start one: toolway agent run "…" --model openai:gpt-5')
        return ExitCode.OK
    now = time.time()
    rows = [
        (
            each.id,
            each.state,
            each.input["settings"]["model"],
            format_age(now - each.created),
            str(each.input["prompt"])[:60],
            "; ".join(str(question["title"])[:60] for question in each.asks),
        )
        for each in records
    ]
    output.print_table(("run", "state", "model", "started", "prompt", "asks"), rows)
    return ExitCode.OK


async def _show(context: CommandContext, id: str, journal: str | None) -> ExitCode:
    async with _open_runs(journal) as reader:
        record, _, entries, messages = await reader.load(id)
    _require_agent(record)
    conversation = read_messages(record, entries)
    output = context.output
    if output.as_json:
        output.print_json({**_to_json(record), "messages": conversation})
        return ExitCode.OK
    output.print_line(f"{record.id}  {record.state}  {record.input['settings']['model']}")
    for message in conversation:
        _print_message(output, message)
    if record.state == "done":
        output.info(_format_usage(record.output["usage"]), "dim")
    if record.error is not None:
        output.info(f"{record.error.get('message', '')} [{record.error.get('code', '')}]", "red")
    _print_questions(output, record, journal, {each.path for each in messages if each.kind in ("answer", "settle")})
    return ExitCode.OK


async def _replay(context: CommandContext, id: str, journal: str | None) -> ExitCode:
    _require_package()
    from toolway.agents.replay import replay_run

    async with _open_runs(journal) as reader:
        record, _, entries, messages = await reader.load(id)
    _require_agent(record)
    found = await replay_run(record, entries, messages)
    same = found.state == record.state and found.output == record.output
    output = context.output
    if output.as_json:
        output.print_json({"run": id, "state": found.state, "same": same, "missing": list(found.missing)})
    elif found.missing:
        output.info(f"the journal ends before {', '.join(found.missing)}", "yellow")
    else:
        output.info(f"{found.state}, {'the same result' if same else 'ANOTHER RESULT than recorded'}")
    return ExitCode.OK if same or found.missing else ExitCode.TOOL_FAILED


@asynccontextmanager
async def _open_agent(
    context: CommandContext,
    settings: Any,
    journal: str | None,
    model_urls: Sequence[str],
    record: RunRecord | None = None,
) -> AsyncIterator[Agent]:
    """Open an agent over the configured servers, or over the servers that a stored run was started with.

    Each server starts when it is first used. `model_urls` are model addresses that the user gave directly, not ones
    from the configuration.
    """
    _require_package()
    loaded = load_run_config(context, record)
    servers = {name: replace(server, lazy=True) for name, server in loaded.servers.items()}
    async with (
        Hub(replace(loaded, servers=servers)) as hub,
        Agent.from_settings(settings, hub, journal=journal_file(journal), model_urls=model_urls) as agent,
    ):
        yield agent


@asynccontextmanager
async def _open_runs(journal: str | None) -> AsyncIterator[Any]:
    """Open the journal of runs for reading. If a run is unknown, the error's hint suggests `toolway agent ls`."""
    async with open_reader(journal) as reader:
        try:
            yield reader
        except WorkflowError as exc:
            if exc.code == "E-WORKFLOW-RUN":
                exc.hint = "toolway agent ls"
            raise


async def _load(id: str, journal: str | None) -> RunRecord:
    async with _open_runs(journal) as reader:
        record: RunRecord = await reader.get(id)
    _require_agent(record)
    return record


def _require_agent(record: RunRecord) -> None:
    if record.workflow != AGENT_WORKFLOW:
        raise UsageError(f"{record.id} is not an agent run", hint=f"toolway workflow show {record.id}")


def _require_package() -> None:
    require_package()


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        hint = "put the instructions after --instructions, or use @FILE to read a text file"
        raise UsageError(f"{file} cannot be read", detail=str(exc), hint=hint) from None


def _read_schema(file: Path | None) -> Any:
    if file is None:
        return None
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as exc:
        hint = "use a JSON file with the answer's schema"
        raise UsageError(f"{file} is not a JSON Schema", detail=str(exc), hint=hint) from None


def _print_event(output: Output, event: AgentEvent) -> None:
    if event.kind == "answer":
        output.info(event.text, "cyan")
    elif event.kind == "call":
        output.info(f"→ {event.tool} {json.dumps(event.arguments, ensure_ascii=False)[:MAX_EVENT_CHARS]}")
    elif event.kind == "result":
        style = "" if event.executed == "yes" else "yellow"
        output.info(f"← {event.text[:MAX_EVENT_CHARS]}", style or "dim")


def _print_message(output: Output, message: dict[str, Any]) -> None:
    role = message["role"]
    if role == "tool":
        by = f", approved by {message['approved_by']}" if message.get("approved_by") else ""
        output.print_line(f"tool {message['tool']} (executed: {message['executed']}{by})", "bold")
        output.print_line(f"  {str(message['content'])[:2000]}")
        return
    tokens = f" ({message['input_tokens']} + {message['output_tokens']} tokens)" if message.get("model") else ""
    output.print_line(f"{role}{tokens}", "bold")
    if message.get("error"):
        output.print_line(f"  {message['error']}", "red")
    if message["content"]:
        output.print_line(f"  {message['content']}")
    for call in message.get("tool_calls") or []:
        output.print_line(f"  → {call['tool']} {json.dumps(call['arguments'], ensure_ascii=False)}")


def _print_questions(output: Output, record: RunRecord, journal: str | None, answered: Collection[str] = ()) -> None:
    flag = journal_flag(journal)
    for question in record.asks:
        if question["path"] in answered:  # by a user, but no process has continued the run since
            output.info(f"answered: {question['title']}", "yellow")
            output.info(f"  toolway agent resume {record.id}{resume_flags(record, journal)}")
            continue
        output.info(f"asks: {question['title']}", "yellow")
        if question["kind"] == "unknown":
            output.info(f"  toolway workflow settle {record.id} {question['path']} --happened{flag}   (or --not)")
        else:
            output.info(f"  toolway approvals approve {record.id} --step {question['path']}{flag}   (or deny)")


def _format_usage(usage: dict[str, Any]) -> str:
    cost = "price unknown" if usage["usd"] is None else f"{usage['usd']:.4f} USD"
    return f"{usage['requests']} requests, {usage['input_tokens']} + {usage['output_tokens']} tokens, {cost}"


def _to_json(record: RunRecord) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(record)
    return found
