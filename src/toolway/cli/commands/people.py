"""`toolway who` and `toolway sessions`: who you are at a gateway, and people who logged in there.

Both need a running gateway: people log in with an identity provider, and nothing about them is in a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from toolway.cli.commands.keys import describe_access, format_date
from toolway.cli.exit_codes import ExitCode
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.output import Output
from toolway.errors import ConfigError

if TYPE_CHECKING:
    from toolway.cli.gateway_client import GatewayClient
    from toolway.cli.targets import TargetOptions


def who(context: CommandContext) -> CommandResult:
    """Show as whom the gateway identifies you by your token: name, groups, rights, and the end of the token."""
    return run_who(context.output, context.target_options)


def sessions_ls(context: CommandContext) -> CommandResult:
    """List the people whose tokens of the identity provider this gateway verified in the last 24 hours."""
    return run_sessions_ls(context.output, context.target_options)


def sessions_end(
    context: CommandContext,
    person: Annotated[str, typer.Argument(metavar="WHO", help="Subject, id or name.", show_default=False)],
) -> CommandResult:
    """Refuse all tokens that were issued to a person until now. A new login is possible after a minute."""
    return run_sessions_end(context.output, context.target_options, person)


async def run_who(output: Output, target_options: TargetOptions) -> ExitCode:
    """Print as whom the gateway identifies the sender of the token: name, kind, groups, access and expiry."""
    gateway = await _require_gateway(output, target_options)
    found = await gateway.request_who()
    if output.as_json:
        output.print_json(found)
        return ExitCode.OK
    kinds = {"person": "a person", "key": "an API key", "owner": "the owner of this machine's token"}
    rows = [("name", found["name"]), ("kind", kinds.get(found["kind"], found["kind"])), ("id", found["id"])]
    rows += [(field, found[field]) for field in ("subject", "issuer", "client") if found.get(field)]
    if "groups" in found:
        rows.append(("groups", ", ".join(found["groups"]) or "none"))
    rows.append(("access", describe_access(found)))
    if found.get("expires"):
        rows.append(("until", format_date(found["expires"])))
    output.print_table(("field", "value"), rows)
    return ExitCode.OK


async def run_sessions_ls(output: Output, target_options: TargetOptions) -> ExitCode:
    """Print the people who logged in with the identity provider."""
    gateway = await _require_gateway(output, target_options)
    found = await gateway.request_admin("GET", "sessions")
    sessions, provider = found["sessions"], found["provider"]
    if provider is None:
        raise ConfigError(
            "no login is configured",
            detail=f"the gateway at {gateway.url} accepts API keys only",
            hint="see toolway.gateway.login in the configuration; API keys: toolway keys ls",
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
        output.info("no person has logged in at this gateway in the last 24 hours")
    return ExitCode.OK


async def run_sessions_end(output: Output, target_options: TargetOptions, person: str) -> ExitCode:
    """End the logins of a person, at all nodes of the gateway."""
    gateway = await _require_gateway(output, target_options)
    ended = await gateway.request_admin("DELETE", f"sessions/{quote(person, safe='')}")
    if output.as_json:
        output.print_json(ended)
        return ExitCode.OK
    output.info(f"tokens that were issued to {person} until now are refused")
    if not ended.get("known"):
        output.info("this gateway has not seen the person lately: the text was taken for a subject", "yellow")
    return ExitCode.OK


async def _require_gateway(output: Output, target_options: TargetOptions) -> GatewayClient:
    from toolway.cli.targets import require_gateway

    return await require_gateway(output, target_options, "no gateway is running", "start one with: toolway serve")
