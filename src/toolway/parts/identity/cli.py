"""`toolway users`: the users who logged in at a gateway.

It needs a running gateway, because users log in with an identity provider and no file lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from toolway.cli.commands.keys import format_date
from toolway.cli.exit_codes import ExitCode
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.output import Output
from toolway.cli.targets import require_gateway
from toolway.errors import ConfigError

if TYPE_CHECKING:
    from toolway.cli.gateway_client import GatewayClient
    from toolway.cli.targets import TargetOptions


def users_ls(context: CommandContext) -> CommandResult:
    """List the users whose access tokens this gateway verified in the last 24 hours."""
    return run_users_ls(context.output, context.target_options)


def users_logout(
    context: CommandContext,
    user: Annotated[str, typer.Argument(metavar="USER", help="Subject, id, or name.", show_default=False)],
) -> CommandResult:
    """Reject every token issued to this user until now. They can log in again after a minute."""
    return run_users_logout(context.output, context.target_options, user)


async def run_users_ls(output: Output, target_options: TargetOptions) -> ExitCode:
    """Print the users who logged in with the identity provider."""
    gateway = await _require_gateway(output, target_options)
    found = await gateway.request_admin("GET", "sessions")
    sessions, provider = found["sessions"], found["provider"]
    if provider is None:
        raise ConfigError(
            "no login is configured",
            detail=f"the gateway at {gateway.url} accepts API keys only",
            hint="set toolway.gateway.login in the config file; for API keys: toolway keys ls",
            code="E-LOGIN-NONE",
        )
    if output.as_json:
        output.print_json(found)
        return ExitCode.OK
    if provider["problem"]:
        output.info(f"the identity provider at {provider['issuer']} fails: {provider['problem']}", "yellow")
        output.info("  toolway explain E-LOGIN-PROVIDER", "yellow")
    if sessions:
        rows = [
            (each["subject"], each["name"], ", ".join(each["groups"]), each["client"], format_date(each["expires"]))
            for each in sessions
        ]
        output.print_table(("subject", "name", "groups", "client", "until"), rows)
    else:
        output.info("no logins at this gateway in the last 24 hours")
    return ExitCode.OK


async def run_users_logout(output: Output, target_options: TargetOptions, user: str) -> ExitCode:
    """Log a user out on every node of the gateway."""
    gateway = await _require_gateway(output, target_options)
    ended = await gateway.request_admin("DELETE", f"sessions/{quote(user, safe='')}")
    if output.as_json:
        output.print_json(ended)
        return ExitCode.OK
    output.info(f"logged out {user}: existing tokens no longer work")
    if not ended.get("known"):
        output.info("no recent login by that name, so we treated it as a subject", "yellow")
    return ExitCode.OK


async def _require_gateway(output: Output, target_options: TargetOptions) -> GatewayClient:
    return await require_gateway(output, target_options, "no gateway is running", "start one with: toolway serve")
