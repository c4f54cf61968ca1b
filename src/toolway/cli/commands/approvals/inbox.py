"""`toolway approvals`: everything that waits for a yes or a no, in one list.

A call waits at a running gateway. A step of a workflow and a call of an agent wait in a run: at a gateway, or in a
journal on this machine. The id says which it is: a run id has a hyphen, a call id has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from toolway.cli.commands.approvals import calls, waiting_runs
from toolway.cli.exit_codes import ExitCode
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.run_journals import JournalFile

if TYPE_CHECKING:
    from toolway.types import Json

RequestId = Annotated[
    str, typer.Argument(metavar="ID", help="Id of a call, or of a run that waits.", show_default=False)
]
Step = Annotated[
    str | None,
    typer.Option("--step", metavar="STEP", help="Step of a run, if several wait.", show_default=False),
]


def approvals_ls(context: CommandContext, journal: JournalFile = None) -> CommandResult:
    """List calls, workflow steps, and agent calls that wait for you, and calls answered in the last 15 minutes.

    Runs outside a gateway are read from the journal on this machine.
    """
    return run_ls(context, journal)


def approvals_show(context: CommandContext, request: RequestId, journal: JournalFile = None) -> CommandResult:
    """Show who asks, for which server and tool, the effect, and every argument."""
    return run_show(context, request, journal)


def approvals_approve(
    context: CommandContext,
    request: RequestId,
    note: Annotated[str, typer.Argument(metavar="[NOTE]", help="Reason, for the record.", show_default=False)] = "",
    step: Step = None,
    journal: JournalFile = None,
) -> CommandResult:
    """The caller of a call has 15 minutes to repeat it with the same arguments, once.

    A run at a gateway continues by itself; one outside continues with `toolway workflow resume` or `agent resume`.
    """
    return run_answer(context, request, note, step, journal, yes=True)


def approvals_deny(
    context: CommandContext,
    request: RequestId,
    why: Annotated[str, typer.Argument(metavar="[WHY]", help="Reason; the caller sees it.", show_default=False)] = "",
    step: Step = None,
    journal: JournalFile = None,
) -> CommandResult:
    """A denied call is not sent, and a denied step of a run fails."""
    return run_answer(context, request, why, step, journal, yes=False)


async def run_ls(context: CommandContext, journal: str | None) -> ExitCode:
    """Print the calls and the runs that wait for an answer, as one table."""
    output = context.output
    places = await waiting_runs.find_places(context, journal)
    found: Json = {"enabled": False, "requests": []}
    if places.gateway is not None:
        found = await places.gateway.request_admin("GET", "approvals")
    runs = await places.list_waiting()
    if output.as_json:
        output.print_json({**found, "runs": [each.to_json() for each in runs]})
        return ExitCode.OK
    rows = [*map(calls.list_row, found["requests"]), *(row for each in runs for row in each.list_rows())]
    if not rows:
        no_rule = places.gateway is not None and not found["enabled"]
        output.info(
            'nothing is waiting, and no rule asks: set "approve" in the file' if no_rule else "nothing is waiting"
        )
        return ExitCode.OK
    output.print_table(("id", "state", "kind", "what", "caller", "time"), rows)
    waiting = [row[0] for row in rows if row[1] == "pending"]
    if waiting:
        output.info(f"see the arguments: toolway approvals show {waiting[0]}{places.flag}")
    return ExitCode.OK


async def run_show(context: CommandContext, request: str, journal: str | None) -> ExitCode:
    """Print one call, or one run, that waits for an answer."""
    output = context.output
    if not waiting_runs.is_run(request, journal):
        return await calls.run_show(context, request)
    found = await (await waiting_runs.find_places(context, journal)).find(request)
    if output.as_json:
        output.print_json(found.to_json())
    else:
        found.print(output)
    return ExitCode.OK


async def run_answer(
    context: CommandContext, request: str, note: str, step: str | None, journal: str | None, *, yes: bool
) -> ExitCode:
    """Approve or deny one call at the gateway, or the step that a run waits for."""
    if not waiting_runs.is_run(request, journal):
        return await calls.run_answer(context, request, note, yes=yes)
    places = await waiting_runs.find_places(context, journal)
    return await (await places.find(request)).answer(context, step, {"yes": yes, "note": note})
