"""A running gateway's workflow runs, for `toolway workflow … --gateway URL`."""

from __future__ import annotations

import time
from urllib.parse import quote, urlencode

from toolway.cli.exit_codes import ExitCode
from toolway.cli.gateway_client import GatewayClient
from toolway.cli.output import Output, format_age
from toolway.types import Json


async def list_remote_runs(output: Output, gateway: GatewayClient, state: str | None, lines: int) -> ExitCode:
    """Print a gateway's newest workflow runs, with those waiting for an answer first."""
    query = urlencode({"limit": lines, **({"state": state} if state else {})})
    found = await gateway.request_admin("GET", f"runs?{query}")
    if output.as_json:
        output.print_json(found)
    elif not found["enabled"]:
        output.info(f"the gateway at {gateway.url} has no workflows")
    elif not found["runs"]:
        output.info("no runs")
    else:
        now = time.time()
        rows = [
            (each["id"], each["workflow"], each["state"], format_age(now - each["created"]), _questions(each))
            for each in found["runs"]
        ]
        output.print_table(("run", "workflow", "state", "started", "asks"), rows)
    return ExitCode.OK


def _questions(run: Json) -> str:
    return "; ".join(str(each["title"]) for each in run["questions"])


async def show_remote_run(output: Output, gateway: GatewayClient, id: str) -> ExitCode:
    """Print a run's steps, and the available commands with their effects."""
    run = await _load(gateway, id)
    if output.as_json:
        output.print_json(run)
        return ExitCode.OK
    output.print_line(f"{run['id']}  {run['state']}")
    rows = [
        (
            each["step"],
            str(each["attempt"]),
            each["tool"] or each["kind"],
            each["effect"],
            each["state"] + (f" ({each['via']})" if each["via"] else ""),
            f"{each['ended'] - each['began']:.2f}" if each["ended"] is not None else "",
            each["outcome"][:80],
        )
        for each in run["steps"]
    ]
    output.print_table(("step", "try", "tool", "effect", "state", "seconds", "outcome"), rows)
    for each in run["questions"]:
        output.info(f"asks: {each['title']}", "yellow")
    for each in run["actions"]:
        output.info(f"  {_command(each, id, gateway.url)}\n    {each['effect']}")
    if run["error"]:
        output.info(run["error"], "red")
    return ExitCode.OK


def _command(action: Json, id: str, url: str) -> str:
    """Return the command that performs an action on a run."""
    name, body = action["action"], action["body"]
    if name == "approve":
        answer = "approve" if body.get("yes") else "deny"
        return f"toolway approvals {answer} {id} --step {action['step']} --gateway {url}"
    flags = {
        "settle": " --happened" if body.get("happened") else " --not",
        "cancel": " --undo" if body.get("undo") else "",
        "answer": f" --step {action['step']} name=value",
    }
    step = f" {action['step']}" if name == "settle" else ""
    return f"toolway workflow {name} {id}{step}{flags.get(name, '')} --gateway {url}"


async def _load(gateway: GatewayClient, id: str) -> Json:
    return await gateway.request_admin("GET", f"runs/{quote(id, safe='')}")
