"""Calls that are waiting for approval at the running gateway, for `toolway approvals`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from toolway.cli.exit_codes import ExitCode
from toolway.cli.options import CommandContext
from toolway.cli.targets import require_gateway

if TYPE_CHECKING:
    from toolway.cli.gateway_client import GatewayClient
    from toolway.cli.output import Output
    from toolway.types import Json

SHORT_DIGEST_CHARS: Final = 16


async def _open_gateway(context: CommandContext) -> GatewayClient:
    return await require_gateway(
        context.output, context.target_options, "a call is approved at a running gateway", "start it: toolway serve"
    )


def list_row(request: Json) -> tuple[str, ...]:
    """Return the row of one call in the table of everything that waits."""
    tool = f"{request['server']}.{request['tool']}"
    return (request["id"], request["state"], "call", tool, request["caller"], _describe_time(request))


async def run_show(context: CommandContext, request: str) -> ExitCode:
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
    return await gateway.request_admin(method, f"approvals/{quote(request, safe='')}", body)


def _print_request(output: Output, request: Json) -> None:
    output.print_line(f"{request['server']}.{request['tool']} ({request['state']})", "bold")
    output.print_line(f"  caller   {request['caller']}")
    output.print_line(f"  effect   {request['effect']}")
    output.print_line(f"  time     {_describe_time(request)}")
    output.print_line(f"  digest   sha256 {request['digest'][:SHORT_DIGEST_CHARS]} of what will be sent")
    for argument in request["arguments"]:
        output.print_line(f"  {argument['name']} = {argument['value']}")
        if argument["note"]:
            output.print_line(f"      ← {argument['note']}", "yellow")
    if not request["arguments"]:
        output.print_line("  no arguments")
    if request["reason"]:
        output.print_line(f"  reason   {request['reason']}")
    if request["state"] == "pending":
        output.info(
            f"approve it: toolway approvals approve {request['id']}; deny it: toolway approvals deny {request['id']}"
        )


def _describe_time(request: Json) -> str:
    minutes = max(0, round((request["until"] - time.time()) / 60))
    return f"expires in {minutes} min" if request["state"] in ("pending", "approved") else "over"
