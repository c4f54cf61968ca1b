"""`toolway whoami`: who you are at a gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolway.cli.commands.keys import describe_access, format_date
from toolway.cli.exit_codes import ExitCode
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.output import Output
from toolway.cli.targets import require_gateway

if TYPE_CHECKING:
    from toolway.cli.targets import TargetOptions


def whoami(context: CommandContext) -> CommandResult:
    """Show your name, groups, access, and when your token expires."""
    return run_whoami(context.output, context.target_options)


async def run_whoami(output: Output, target_options: TargetOptions) -> ExitCode:
    """Print how the gateway identifies the token: name, kind, groups, access and expiry."""
    gateway = await require_gateway(output, target_options, "no gateway is running", "start one with: toolway serve")
    found = await gateway.request_who()
    if output.as_json:
        output.print_json(found)
        return ExitCode.OK
    kinds = {"user": "a user", "key": "an API key", "local": "the local token"}
    rows = [("name", found["name"]), ("kind", kinds.get(found["kind"], found["kind"])), ("id", found["id"])]
    rows += [(field, found[field]) for field in ("subject", "issuer", "client") if found.get(field)]
    if "groups" in found:
        rows.append(("groups", ", ".join(found["groups"]) or "none"))
    rows.append(("access", describe_access(found)))
    if found.get("expires"):
        rows.append(("until", format_date(found["expires"])))
    output.print_table(("field", "value"), rows)
    return ExitCode.OK
