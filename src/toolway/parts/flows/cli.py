"""`toolway policy flows`: who has used private data, untrusted content, and outbound tools.

Tools of these three kinds have the labels `private`, `untrusted`, and `sink`. All three together may leak data.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from toolway.cli.exit_codes import ExitCode
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.targets import require_gateway

if TYPE_CHECKING:
    from toolway.cli.gateway_client import GatewayClient

LIMIT = "only calls through the gateway are seen; what a client fetches or runs by itself is not"


def flows_suggest(context: CommandContext) -> CommandResult:
    """Propose data-flow labels (private, untrusted, sink) for tools, from their names and hints. Nothing is written."""
    return run_suggest(context)


def flows_show(
    context: CommandContext,
    who: Annotated[str, typer.Argument(metavar="[WHO]", help="Name or id of a caller.", show_default=False)] = "",
) -> CommandResult:
    """Show which data-flow labels the tools had that each caller called in the last half hour."""
    return run_show(context, who)


def flows_reset(
    context: CommandContext,
    who: Annotated[str, typer.Argument(metavar="WHO", help="Id of the caller, or name of a key.", show_default=False)],
) -> CommandResult:
    """Clear the data-flow labels that a caller has collected by its calls."""
    return run_reset(context, who)


async def _open_gateway(context: CommandContext) -> GatewayClient:
    return await require_gateway(
        context.output, context.target_options, "only a running gateway tracks flows", "start it: toolway serve"
    )


async def run_suggest(context: CommandContext) -> ExitCode:
    """Print suggested flow labels as config entries that the user can copy."""
    output = context.output
    found = await (await _open_gateway(context)).request_admin("GET", "flows/suggestions")
    if output.as_json:
        output.print_json(found)
        return ExitCode.OK
    entries: dict[str, dict[str, dict[str, list[str]]]] = {}
    for each in found["tools"]:
        if each["suggested"]:
            labels = {"labels": [*each["labels"], *each["suggested"]]}
            entries.setdefault(each["server"], {})[each["tool"]] = labels
    if not entries:
        output.info("nothing to suggest")
    for server, tools in entries.items():
        output.print_line(f'"{server}": {{… "tools": {json.dumps(tools)}}}')
    output.info(f"suggestions from names and hints: review each one. {LIMIT}")
    return ExitCode.OK


async def run_show(context: CommandContext, who: str) -> ExitCode:
    """Print the flow labels that all callers, or one, have collected."""
    output = context.output
    found = await (await _open_gateway(context)).request_admin("GET", "flows")
    if who:
        found["callers"] = [each for each in found["callers"] if who in (each["caller"], each["name"])]
    if output.as_json:
        output.print_json(found)
        return ExitCode.OK
    rows = [
        (
            each["name"],
            each["caller"] or "local",
            label["label"],
            label["tool"],
            f"{max(0, round((time.time() - label['at']) / 60))} min ago",
        )
        for each in found["callers"]
        for label in each["labels"]
    ]
    if rows:
        output.print_table(("caller", "id", "label", "by", "when"), rows)
    elif found["enabled"]:
        output.info("no call set a label in the last half hour")
    else:
        output.info("no tool has labels: toolway policy flows suggest")
    output.info(f"mode {found['mode']}; {LIMIT}")
    return ExitCode.OK


async def run_reset(context: CommandContext, who: str) -> ExitCode:
    """Clear the flow labels that one caller has collected."""
    found = await (await _open_gateway(context)).request_admin("DELETE", f"flows/{quote(who, safe='')}")
    if context.output.as_json:
        context.output.print_json(found)
    else:
        context.output.info(f"cleared the labels of {who}")
    return ExitCode.OK
