"""`toolway approvals`: calls that wait for the approval of an operator, at the running gateway."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from toolway.cli.exit_codes import ExitCode
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext

if TYPE_CHECKING:
    from toolway.cli.gateway_client import GatewayClient
    from toolway.cli.output import Output
    from toolway.types import Json

RequestId = Annotated[str, typer.Argument(metavar="ID", help="Id of the request.", show_default=False)]


def approvals_ls(context: CommandContext) -> CommandResult:
    """List the calls that wait for an approval, and those answered in the last 15 minutes."""
    return run_approvals_ls(context)


def approvals_show(context: CommandContext, request: RequestId) -> CommandResult:
    """Show a call that waits: caller, server, tool, effect and every argument."""
    return run_approvals_show(context, request)


def approvals_yes(
    context: CommandContext,
    request: RequestId,
    note: Annotated[str, typer.Argument(metavar="[NOTE]", help="Reason, for the audit log.", show_default=False)] = "",
) -> CommandResult:
    """Approve one call. Its caller has 15 minutes to repeat it with the same arguments, once."""
    return run_answer(context, request, note, yes=True)


def approvals_no(
    context: CommandContext,
    request: RequestId,
    why: Annotated[
        str, typer.Argument(metavar="[WHY]", help="Reason, which the caller gets.", show_default=False)
    ] = "",
) -> CommandResult:
    """Deny one call. Its caller gets the reason."""
    return run_answer(context, request, why, yes=False)


async def _open_gateway(context: CommandContext) -> GatewayClient:
    from toolway.cli.targets import require_gateway

    return await require_gateway(
        context.output, context.target_options, "approvals are given at a running gateway", "start it: toolway serve"
    )


async def run_approvals_ls(context: CommandContext) -> ExitCode:
    """Print the calls for which the gateway wants an approval, as a table."""
    output = context.output
    found = await (await _open_gateway(context)).request_admin("GET", "approvals")
    if output.as_json:
        output.print_json(found)
        return ExitCode.OK
    if not found["requests"]:
        output.info("no call waits for an approval" if found["enabled"] else 'no rule asks: set "approve" in the file')
        return ExitCode.OK
    rows = [
        (each["id"], each["state"], f"{each['server']}.{each['tool']}", each["caller"], _describe_time(each))
        for each in found["requests"]
    ]
    output.print_table(("id", "state", "tool", "caller", "time"), rows)
    waiting = [each["id"] for each in found["requests"] if each["state"] == "pending"]
    if waiting:
        output.info(f"see the arguments: toolway approvals show {waiting[0]}")
    return ExitCode.OK


async def run_approvals_show(context: CommandContext, request: str) -> ExitCode:
    """Print one call that waits for an approval, with its arguments."""
    output = context.output
    found = await _request(await _open_gateway(context), "GET", request)
    if output.as_json:
        output.print_json(found)
    else:
        _print_request(output, found)
    return ExitCode.OK


async def run_answer(context: CommandContext, request: str, note: str, *, yes: bool) -> ExitCode:
    """Approve or deny one call that waits at the gateway, and print its new state."""
    output = context.output
    found = await _request(await _open_gateway(context), "POST", request, {"yes": yes, "note": note})
    if output.as_json:
        output.print_json(found)
    else:
        output.info(f"{found['state']} {found['server']}.{found['tool']} of {found['caller']} ({found['id']})")
    return ExitCode.OK


async def _request(gateway: GatewayClient, method: str, request: str, body: Json | None = None) -> Json:
    from urllib.parse import quote

    return await gateway.request_admin(method, f"approvals/{quote(request, safe='')}", body)


def _print_request(output: Output, request: Json) -> None:
    output.print_line(f"{request['server']}.{request['tool']} ({request['state']})", "bold")
    output.print_line(f"  caller   {request['caller']}")
    output.print_line(f"  effect   {request['effect']}")
    output.print_line(f"  time     {_describe_time(request)}")
    for argument in request["arguments"]:
        output.print_line(f"  {argument['name']} = {argument['value']}")
    if not request["arguments"]:
        output.print_line("  no arguments")
    if request["reason"]:
        output.print_line(f"  reason   {request['reason']}")
    if request["state"] == "pending":
        output.info(f"approve it: toolway approvals yes {request['id']}; deny it: toolway approvals no {request['id']}")


def _describe_time(request: Json) -> str:
    minutes = max(0, round((request["until"] - time.time()) / 60))
    return f"expires in {minutes} min" if request["state"] in ("pending", "approved") else "over"
