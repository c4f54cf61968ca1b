"""Runs in a journal on this machine, for commands that show, answer and resume them.

`--gateway` names the runs of a gateway instead (`remote_runs.py`).
"""

from __future__ import annotations

import asyncio
import getpass
import os
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolway.cli.exit_codes import ExitCode
from toolway.cli.options import CommandContext
from toolway.cli.output import Output
from toolway.cli.remote_runs import act_on_remote_run, find_run_gateway
from toolway.cli.targets import load_masked_config, load_masked_file
from toolway.config.locations import gateway_state_folder
from toolway.errors import ConfigError
from toolway.workflows.journal import CONFIG_VARIABLE

if TYPE_CHECKING:
    from toolway.config.loader import LoadedConfig
    from toolway.hub.hub import Hub
    from toolway.workflows.engine import Workflows
    from toolway.workflows.journal import Entry, RunRecord
    from toolway.workflows.temporal import TemporalWorkflows

TEMPORAL_URL = "temporal://"
ASKS_EXIT_CODE = ExitCode.LINT  # 9: the run waits for a user
JournalFile = Annotated[
    str | None,
    typer.Option(
        "--journal",
        metavar="FILE",
        help="Journal of runs, or temporal://HOST:PORT. Default: runs.db.",
        show_default=False,
    ),
]


@asynccontextmanager
async def open_reader(journal: str | None) -> AsyncIterator[Workflows | TemporalWorkflows]:
    """Open a journal for reading runs and sending them messages, while another process may execute the runs."""
    from toolway.workflows.engine import Workflows
    from toolway.workflows.sqlite_journal import SqliteJournal

    if journal is not None and journal.startswith(TEMPORAL_URL):
        async with open_temporal(None, journal) as workflows:
            yield workflows
        return
    opened = await asyncio.to_thread(SqliteJournal, journal_file(journal), owner=False)
    try:
        yield Workflows.for_reading(opened)
    finally:
        await opened.close()


@asynccontextmanager
async def open_temporal(hub: Hub | None, url: str) -> AsyncIterator[TemporalWorkflows]:
    """Connect to a Temporal server; the namespace is the path of the URL."""
    try:
        from temporalio.client import Client

        from toolway.workflows.temporal import TemporalWorkflows
    except ImportError as exc:
        raise ConfigError(
            "workflows on Temporal need the `temporal` extra", detail=str(exc), hint="pip install 'toolway[temporal]'"
        ) from exc
    address, _, namespace = url.removeprefix(TEMPORAL_URL).partition("/")
    try:
        client = await Client.connect(address, namespace=namespace or "default")
    except RuntimeError as exc:
        raise ConfigError(
            f"the Temporal server {address} cannot be reached",
            detail=str(exc)[:300],
            hint="start one: temporal server start-dev",
        ) from exc
    async with TemporalWorkflows(hub, client) as workflows:
        yield workflows


def journal_file(journal: str | None) -> Path:
    """Return the path of the journal of runs; by default `runs.db` in the state folder."""
    if journal is not None:
        return Path(journal)
    folder = gateway_state_folder(os.environ)
    if folder is None:
        raise ConfigError("no folder for the run journal", hint="set HOME, or use --journal FILE")
    return folder / "runs.db"


def journal_flag(journal: str | None) -> str:
    """Return the `--journal` option for a printed command, so it finds the same run; "" for the default file."""
    return f" --journal {shlex.quote(journal)}" if journal is not None else ""


async def answer_run(
    context: CommandContext,
    id: str,
    step: str | None,
    body: dict[str, Any],
    journal: str | None,
) -> ExitCode:
    """Send the user's answer to a run's question: to the gateway of --gateway, or into the journal."""
    action = "answer" if "data" in body else "approve"

    async def perform(reader: Workflows | TemporalWorkflows, record: RunRecord) -> None:
        await reader.answer(id, step, body, by=getpass.getuser(), roles=_local_roles(record))

    return await act_on_run(context, id, action, step, body, journal, perform)


async def act_on_run(
    context: CommandContext,
    id: str,
    action: str,
    step: str | None,
    body: dict[str, Any],
    journal: str | None,
    perform: Callable[[Workflows | TemporalWorkflows, RunRecord], Awaitable[None]],
) -> ExitCode:
    """Print what an action on a run will cause, then perform it at the gateway or in the journal."""
    gateway = find_run_gateway(context, journal)
    if gateway is not None:
        return await act_on_remote_run(context.output, gateway, id, action, step, body)
    async with open_reader(journal) as reader:
        record, _, entries, _ = await reader.load(id)
        print_effect(context.output, record, entries, action, step, body)
        await perform(reader, record)
    return _print_next(context.output, record, journal)


def print_effect(
    output: Output, record: RunRecord, entries: list[Entry], action: str, step: str | None, body: dict[str, Any]
) -> None:
    """Print what an action on a run will cause, if it is possible now."""
    from toolway.workflows.run_actions import find_effect, possible_actions

    effect = find_effect(possible_actions(record, entries), action, step, body)
    if effect:
        output.info(effect)


def _print_next(output: Output, record: RunRecord, journal: str | None) -> ExitCode:
    from toolway.agents.agent import AGENT_WORKFLOW

    if output.as_json:
        output.print_json({"run": record.id, "stored": True})
    else:
        command = "agent" if record.workflow == AGENT_WORKFLOW else "workflow"
        next_command = f"toolway {command} resume {record.id}{resume_flags(record, journal)}"
        output.info(f"stored; if no process is running it: {next_command}", "green")
    return ExitCode.OK


def _local_roles(record: RunRecord) -> tuple[str, ...]:
    """Return all roles that a run's questions need: the local user owns the journal, so has all."""
    return tuple(str(role) for question in record.asks for role in question.get("who") or [])


def remember_config(context: CommandContext) -> dict[str, str]:
    """Return the variable in which a new run remembers its config file or folder."""
    return {CONFIG_VARIABLE: os.path.abspath(context.config_file() or Path.cwd())}


def load_run_config(context: CommandContext, record: RunRecord | None) -> LoadedConfig:
    """Load the config file of --config, else the one that a stored run was started with.

    Raises `ConfigError` if it cannot be used.
    """
    remembered = _remembered_config(record)
    if remembered is None or context.target_options.config is not None:
        return load_masked_config(context.output, context.target_options)
    if remembered.is_dir():
        return load_masked_file(context.output, None, directory=remembered)
    context.output.info_once(f"using {remembered}, with which the run was started; another file: -c FILE", "dim")
    return load_masked_file(context.output, remembered)


def resume_flags(record: RunRecord, journal: str | None, context: CommandContext | None = None) -> str:
    """Return the options for a command that resumes a run: its journal and config file."""
    given = context.target_options.config if context is not None else None
    file = given if given is not None else _remembered_config(record)
    config = f" -c {shlex.quote(os.fspath(file))}" if file is not None and not file.is_dir() else ""
    return f"{config}{journal_flag(journal)}"


def _remembered_config(record: RunRecord | None) -> Path | None:
    found = (record.variables or {}).get(CONFIG_VARIABLE) if record is not None else None
    return Path(found) if isinstance(found, str) else None
