"""The calls that need approval at the running gateway, for `toolway approvals`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from toolway.cli.exit_codes import ExitCode
from toolway.cli.options import CommandContext
from toolway.cli.targets import require_gateway
from toolway.part_api.inbox import InboxPlace

if TYPE_CHECKING:
    from toolway.cli.gateway_client import GatewayClient
    from toolway.cli.output import Output
    from toolway.types import Json

SHORT_DIGEST_CHARS: Final = 16


class WaitingCall:
    """A call that is waiting for an answer, or was answered in the last 15 minutes."""

    def __init__(self, gateway: GatewayClient, request: Json) -> None:
        self._gateway = gateway
        self._request = request
        self.id: str = request["id"]

    def to_json(self) -> Json:
        return self._request

    def list_rows(self) -> list[tuple[str, ...]]:
        """Return the rows for this call in the table of waiting items."""
        request = self._request
        tool = f"{request['server']}.{request['tool']}"
        return [(self.id, request["state"], "call", tool, request["caller"], _describe_time(request))]

    def print(self, output: Output) -> None:
        """Print the call with all its arguments."""
        _print_request(output, self._request)

    async def answer(self, context: CommandContext, step: str | None, body: Json) -> ExitCode:
        """Approve or deny the call at the gateway, and print its new state."""
        output = context.output
        found = await self._gateway.request_admin("POST", f"approvals/{quote(self.id, safe='')}", body)
        if output.as_json:
            output.print_json(found)
        else:
            output.info(f"{found['state']} {found['server']}.{found['tool']} of {found['caller']} ({found['id']})")
        return ExitCode.OK


class WaitingCalls:
    """The waiting calls at the gateway that a command talks to."""

    def __init__(self, context: CommandContext, place: InboxPlace) -> None:
        self._context = context
        self._gateway = place.gateway

    async def read(self) -> Json:
        """Return all requests, and whether any rule asks for approval.

        If no gateway is running, the list of requests is empty.
        """
        if self._gateway is None:
            return {"enabled": False, "requests": []}
        return await self._gateway.request_admin("GET", "approvals")

    def items(self, found: Json) -> list[WaitingCall]:
        """Return the requests in the result of `read`."""
        return [WaitingCall(self._gateway, each) for each in found["requests"]] if self._gateway is not None else []

    async def get(self, id: str) -> WaitingCall:
        """Return one call. Raises `NotFound` if it is unknown, and `ServerUnavailable` if no gateway is running."""
        gateway = await require_gateway(
            self._context.output,
            self._context.target_options,
            "a call is approved at a running gateway",
            "start it: toolway serve",
        )
        return WaitingCall(gateway, await gateway.request_admin("GET", f"approvals/{quote(id, safe='')}"))


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
