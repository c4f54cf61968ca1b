"""`toolway approvals`: everything that waits for your yes or no, in one list.

Calls wait at a running gateway. Questions from other parts wait in their runs, at a gateway or in a journal on this
machine (`Part.inbox`). Only run ids contain a hyphen, which is how the two are told apart.
"""

from __future__ import annotations

import importlib
from typing import Annotated

import typer

from toolway.cli.exit_codes import ExitCode
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.remote_runs import find_run_gateway
from toolway.cli.run_journals import JournalFile, journal_flag
from toolway.cli.targets import find_gateway
from toolway.errors import NotFound
from toolway.part_api import registry
from toolway.part_api.inbox import Inbox, InboxItem, InboxPlace
from toolway.parts.approvals.waiting_calls import WaitingCalls

RequestId = Annotated[str, typer.Argument(metavar="ID", help="Id of a waiting call or run.", show_default=False)]
Step = Annotated[
    str | None,
    typer.Option("--step", metavar="STEP", help="Step to decide on, if several are waiting.", show_default=False),
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
    """Print waiting calls and runs in one table."""
    output = context.output
    place = await find_place(context, journal)
    calls = WaitingCalls(context, place)
    found = await calls.read()
    others = {each.id: each for inbox in _inboxes(place) for each in await inbox.list_waiting()}
    if output.as_json:
        output.print_json({**found, "runs": [each.to_json() for each in others.values()]})
        return ExitCode.OK
    rows = [row for each in (*calls.items(found), *others.values()) for row in each.list_rows()]
    if not rows:
        no_rule = place.gateway is not None and not found["enabled"]
        output.info(
            'nothing is waiting, and no rule asks: set "approve" in the file' if no_rule else "nothing is waiting"
        )
        return ExitCode.OK
    output.print_table(("id", "state", "kind", "what", "caller", "time"), rows)
    waiting = [row[0] for row in rows if row[1] == "pending"]
    if waiting:
        output.info(f"see the arguments: toolway approvals show {waiting[0]}{place.flag}{journal_flag(journal)}")
    return ExitCode.OK


async def run_show(context: CommandContext, request: str, journal: str | None) -> ExitCode:
    """Print one waiting call or run."""
    output = context.output
    found = await _find(context, request, journal)
    if output.as_json:
        output.print_json(found.to_json())
    else:
        found.print(output)
    return ExitCode.OK


async def run_answer(
    context: CommandContext, request: str, note: str, step: str | None, journal: str | None, *, yes: bool
) -> ExitCode:
    """Approve or deny a call at the gateway, or a run's waiting step."""
    found = await _find(context, request, journal)
    return await found.answer(context, step, {"yes": yes, "note": note})


async def find_place(context: CommandContext, journal: str | None) -> InboxPlace:
    """Return where to look: what `--gateway` or `--journal` says, or else the running gateway and this machine.

    Raises `UsageError` if both options are given.
    """
    named = find_run_gateway(context, journal)
    if named is not None or journal is not None:
        return InboxPlace(named, named is not None, journal)
    return InboxPlace(await find_gateway(context.output, context.target_options), False, None)


async def _find(context: CommandContext, id: str, journal: str | None) -> InboxItem:
    place = await find_place(context, journal)
    if not is_run(id, journal):
        return await WaitingCalls(context, place).get(id)
    for inbox in reversed(_inboxes(place)):  # a later part knows more about the items of those that it needs
        found = await inbox.find(id)
        if found is not None:
            return found
    raise NotFound(f"no run has the id {id}", hint="see what is waiting: toolway approvals ls", code="E-WORKFLOW-RUN")


def is_run(id: str, journal: str | None) -> bool:
    """Return True if an id belongs to a run, which is the case if it has a hyphen or a journal is given."""
    return journal is not None or "-" in id


def _inboxes(place: InboxPlace) -> list[Inbox]:
    found = []
    for part in registry.in_use():
        module, _, name = part.inbox.partition(":")
        if module:
            found.append(getattr(importlib.import_module(module), name)(place))
    return found
