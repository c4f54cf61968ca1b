"""Actions on a running gateway's runs, for commands with `--gateway URL`."""

from __future__ import annotations

from typing import Literal
from urllib.parse import quote

from toolway.cli.exit_codes import ExitCode, UsageError
from toolway.cli.gateway_client import GatewayClient, gateway_from_url
from toolway.cli.options import CommandContext
from toolway.cli.output import Output
from toolway.types import Json


def find_run_gateway(context: CommandContext, journal: str | None) -> GatewayClient | None:
    """Return the gateway of --gateway; None if the option is missing, to use a journal.

    Raises `UsageError` if --journal is given too.
    """
    options = context.target_options
    if options.gateway is None:
        return None
    if journal is not None:
        raise UsageError("--gateway and --journal cannot be used together", hint="use one or the other")
    return gateway_from_url(options)


async def act_on_remote_run(
    output: Output,
    gateway: GatewayClient,
    id: str,
    action: str,
    step: str | None,
    body: Json,
    kind: Literal["workflow", "agent"] = "workflow",
) -> ExitCode:
    """Print what an action on a run will cause, then request it from the gateway."""
    from toolway.workflows.run_actions import find_effect

    path = f"{'agents' if kind == 'agent' else 'runs'}/{quote(id, safe='')}"
    found = await gateway.request_admin("GET", path)
    effect = find_effect(found["actions"], action, step, body)
    if effect:
        output.info(effect)
    request = {**body, "step": step} if step is not None else body
    stored = await gateway.request_admin("POST", f"{path}/{action}", request)
    if output.as_json:
        output.print_json(stored)
    else:
        own = str(found.get("resume") or "")  # of a run that the gateway reads, but does not execute
        after = own or f"toolway workflow show {id} -g {gateway.url}"
        output.info(f"stored; {'resume the run' if own else 'the gateway resumes the run'}: {after}", "green")
    return ExitCode.OK
