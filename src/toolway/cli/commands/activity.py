"""`toolway ui`, `top` and `calls`: activity of a gateway, from its `/admin` API."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote, urlencode

import typer

from toolway.cli import completion
from toolway.cli.commands.login import BROWSER_START_TIMEOUT_S
from toolway.cli.dashboard_link import open_dashboard
from toolway.cli.exit_codes import ExitCode, GatewayError
from toolway.cli.framework import CommandResult
from toolway.cli.gateway_client import explain_missing_gateway
from toolway.cli.options import CommandContext, TargetOptions
from toolway.cli.output import Output
from toolway.cli.targets import find_gateway
from toolway.config.field_reader import parse_duration
from toolway.outcomes import OK

if TYPE_CHECKING:
    from toolway.cli.gateway_client import GatewayClient
    from toolway.types import Json

TOP_INTERVAL_S: Final = 2.0  # seconds between two updates of `top`
_SPARK_CHARS: Final = " ▁▂▃▄▅▆▇█"
_CLEAR_SCREEN: Final = "\x1b[H\x1b[2J"
_WATERFALL_WIDTH: Final = 40  # columns of a waterfall if stdout is not a terminal
_LESS_IMPORTANT: Final = ("", "restarts", "p50", "busy", "failed")  # columns of `top`, in a narrow terminal
_UNHEALTHY_STATES: Final = ("down", "starting")


def ui(
    context: CommandContext,
    demo: Annotated[bool, typer.Option("--demo", help="Show a demo that uses none of your files.")] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the link only.")] = False,
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="Port of the demo; 0 = any.")] = 0,
) -> CommandResult:
    """Open the dashboard by a link that works once. The browser then has a session of twelve hours."""
    if demo:
        from toolway.cli.demo.run import run_demo

        return run_demo(context.output, port, browser=not no_browser)

    return run_ui(context, browser=not no_browser)


def top(
    context: CommandContext, once: Annotated[bool, typer.Option("--once", "-1", help="Print once and exit.")] = False
) -> CommandResult:
    """Update the load of all servers every two seconds until Ctrl-C. Print it once if stdout is not a terminal."""
    return run_top(context, once=once)


def calls(
    context: CommandContext,
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="NAME",
            help="Calls to this server.",
            show_default=False,
            autocompletion=completion.complete_servers,
        ),
    ] = None,
    tool: Annotated[
        str | None, typer.Option("--tool", metavar="TOOL", help="Calls to this tool.", show_default=False)
    ] = None,
    caller: Annotated[
        str | None,
        typer.Option("--caller", metavar="NAME", help="Calls of this key or user, or local.", show_default=False),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Failed calls.")] = False,
    slow: Annotated[
        str | None,
        typer.Option("--slow", metavar="TIME", help="Calls that took at least this: 1s, 200ms.", show_default=False),
    ] = None,
    retried: Annotated[bool, typer.Option("--retried", help="Calls with more than one attempt.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=500, help="Maximum number.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new calls until Ctrl-C.")] = False,
) -> CommandResult:
    """Show the recent calls that the gateway has recorded, newest last."""
    filters = {
        "server": server or "",
        "tool": tool or "",
        "principal": caller or "",
        "status": "failed" if failed else "",
        "slow": f"{parse_duration('--slow', slow):g}" if slow is not None else "",
        "retried": "1" if retried else "",
        "limit": str(limit),
    }
    return run_calls(context, filters, follow=follow)


def calls_show(
    context: CommandContext,
    id_: Annotated[str, typer.Argument(metavar="ID", help="Id of the call, see `toolway calls`.", show_default=False)],
) -> CommandResult:
    """Show every attempt and how long each phase took."""
    return run_call_details(context, id_)


def calls_replay(
    context: CommandContext,
    id_: Annotated[str, typer.Argument(metavar="ID", help="Id of the call, see `toolway calls`.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Make the call even if it may change something.")] = False,
) -> CommandResult:
    """Make the call again through the gateway, with the same arguments, and print the result."""
    return run_replay(context, id_, yes=yes)


# -- dashboard ---------------------------------------------------------------------------------------------------------


async def find_running_gateway(output: Output, target_options: TargetOptions) -> GatewayClient:
    """Return the gateway that the options select, or one that runs on this machine.

    Raises `GatewayError` if no gateway is running.
    """
    gateway = await find_gateway(output, target_options)
    if gateway is None:
        raise GatewayError(
            "no gateway is running",
            detail="--no-gateway was given"
            if target_options.no_gateway
            else explain_missing_gateway(target_options.config),
            hint="start one with: toolway serve",
        )
    return gateway


async def run_ui(context: CommandContext, *, browser: bool) -> ExitCode:
    """Open the gateway's dashboard in a browser with a one-time link, or print the link."""
    output = context.output
    link = await create_dashboard_link(await find_running_gateway(output, context.target_options))
    if output.as_json:
        output.print_raw_json({"url": link})
        return ExitCode.OK
    starting = open_dashboard(output, link, browser=browser)
    if starting is not None:
        sys.stdout.flush()
        await asyncio.to_thread(starting.join, BROWSER_START_TIMEOUT_S)  # the thread would end with this process
    return ExitCode.OK


async def create_dashboard_link(gateway: GatewayClient) -> str:
    """Request a dashboard link from the gateway. It works once, within two minutes."""
    return f"{gateway.url}{(await gateway.request_admin('POST', 'dashboard-links'))['path']}"


# -- top ---------------------------------------------------------------------------------------------------------------


async def run_top(context: CommandContext, *, once: bool) -> ExitCode:
    """Print the load and health of every server. At a terminal, repeat until Ctrl-C."""
    output = context.output
    gateway = await find_running_gateway(output, context.target_options)
    is_live = sys.stdout.isatty() and not once and not output.as_json
    while True:
        overview = await gateway.request_admin("GET", "overview")
        if output.as_json:
            output.print_json(overview)
            return ExitCode.OK
        rows = sorted(overview["servers"], key=_sort_key)
        if is_live:
            rows = rows[: max(3, shutil.get_terminal_size().lines - 5)]
            sys.stdout.write(_CLEAR_SCREEN)
        output.print_wrapped(_summarize(overview), "bold")
        heads = ("state", "server", "calls", "", "failed", "p50", "p95", "busy", "restarts", "why")
        right = ("calls", "failed", "p50", "p95", "busy", "restarts")
        output.print_table(heads, [_server_row(row) for row in rows], right=right, cut=True, drop=_LESS_IMPORTANT)
        sys.stdout.flush()
        if not is_live:
            return ExitCode.OK
        await asyncio.sleep(TOP_INTERVAL_S)


def _summarize(overview: Json) -> str:
    servers, totals = overview["servers"], overview["minutes"]
    unhealthy = [server for server in servers if server["state"] in _UNHEALTHY_STATES or server["breaker"] != "closed"]
    health = f"{len(servers) - len(unhealthy)} of {len(servers)} servers are healthy"
    failures = f"{100 * totals['errors'] / totals['calls']:.1f} % failed" if totals["calls"] else "no calls"
    return f"{health}; {totals['calls']} calls in 30 minutes, {failures}, p95 {format_seconds(totals['p95'])}"


def _sort_key(server: Json) -> tuple[bool, int, str]:
    is_unhealthy = server["state"] in _UNHEALTHY_STATES or server["breaker"] != "closed"
    return not is_unhealthy, -server["minutes"]["calls"], server["server"]


def _server_row(row: Json) -> tuple[str, ...]:
    stats = row["minutes"]
    return (
        row["state"],
        row["server"],
        str(stats["calls"]),
        sparkline(stats["per_minute"][-12:]),
        f"{100 * stats['errors'] / stats['calls']:.0f} %" if stats["calls"] else "",
        format_seconds(stats["p50"]),
        format_seconds(stats["p95"]),
        f"{row['in_flight']}/{row['limit']}",
        str(row["restarts"]),
        row["why"],
    )


def sparkline(values: list[int]) -> str:
    """Return counts as a sparkline: one block character per count, scaled to its height."""
    highest = max([*values, 1])
    return "".join(_SPARK_CHARS[-(-value * (len(_SPARK_CHARS) - 1) // highest)] for value in values)


# -- calls -------------------------------------------------------------------------------------------------------------


async def run_calls(context: CommandContext, filters: Mapping[str, str], *, follow: bool) -> ExitCode:
    """Print recent calls of the gateway, newest last, and with `follow` new calls as they end."""
    output = context.output
    gateway = await find_running_gateway(output, context.target_options)
    query = urlencode({key: value for key, value in filters.items() if value})
    found = (await gateway.request_admin("GET", f"calls?{query}"))["calls"]
    if output.as_json and not follow:
        output.print_json({"calls": found})
        return ExitCode.OK
    seen = _print_calls(output, found, set(), head=True)
    if not found:
        output.info("no matching calls")
    while follow:
        await asyncio.sleep(TOP_INTERVAL_S / 2)
        seen = _print_calls(output, (await gateway.request_admin("GET", f"calls?{query}"))["calls"], seen, head=False)
    return ExitCode.OK


def _print_calls(output: Output, found: list[Json], seen: set[str], *, head: bool) -> set[str]:
    new = [call for call in reversed(found) if call["id"] not in seen]
    if output.as_json:
        for call in new:
            output.print_json_line(call)
    elif new:
        rows = [_call_row(call) for call in new]
        heads = ("time", "took", "attempts", "outcome", "id", "tool", "error") if head else rows.pop(0)
        output.print_table(heads, rows, right=("took", "attempts"), cut=True)
    sys.stdout.flush()
    return {call["id"] for call in found}


def _call_row(call: Json) -> tuple[str, ...]:
    name = f"{call['server']}.{call['tool']}"
    return (
        _format_time(call["at"]),
        format_seconds(call["seconds"]),
        str(call["attempts"]),
        call["outcome"],
        call["id"],
        name,
        f"{call['message']} [{call['code']}]" if call["message"] else call["code"],
    )


# -- one call ----------------------------------------------------------------------------------------------------------


async def run_call_details(context: CommandContext, id_: str) -> ExitCode:
    """Print the attempts of one recorded call and how long each phase took."""
    output = context.output
    gateway = await find_running_gateway(output, context.target_options)
    call = await gateway.request_admin("GET", f"calls/{quote(id_, safe='')}")
    if output.as_json:
        output.print_json(call)
        return ExitCode.OK
    width = shutil.get_terminal_size().columns - 34 if sys.stdout.isatty() else _WATERFALL_WIDTH
    for text, style in format_waterfall(call, max(20, min(100, width))):
        output.print_line(text, style)
    return ExitCode.OK


def format_waterfall(call: Json, width: int) -> list[tuple[str, str]]:
    """Return a recorded call as styled lines: its outcome, then a bar per phase of each attempt."""
    attempts = "1 attempt" if call["attempts"] == 1 else f"{call['attempts']} attempts"
    outcome = f"{call['outcome']} in {format_seconds(call['seconds'])}, {attempts}, executed: {call['executed']}"
    lines = [(f"{call['server']}.{call['tool']}  {_format_time(call['at'])}  by {call['principal']}", "bold")]
    lines.append((outcome, "red" if call["failed"] else "green" if call["outcome"] == OK.word else "yellow"))
    lines += [(f"  {name:<9}{call[name]}", "") for name in ("code", "message", "detail", "hint", "trace") if call[name]]
    total = max([call["seconds"], 1e-9, *(each["began"] + each["seconds"] for each in call["attempt_details"])])
    for each in call["attempt_details"]:
        lines.append((f"attempt {each['number']}  {_attempt_result(each)} ({each['certainty']})", "dim"))
        for phase in each["phases"]:
            if phase["seconds"] > 0:
                bar = _waterfall_bar(phase["began"] / total, phase["seconds"] / total, width)
                lines.append((f"  {phase['name']:<8}{bar}  {format_seconds(phase['seconds']):>8}", ""))
    if not call["attempt_details"]:
        untimed = "the phases were not recorded" if call["attempts"] else "no attempt was made"
        lines.append((f"  result from {call['source']}" if call["source"] else f"  {untimed}", "dim"))
    return lines


def _attempt_result(attempt: Json) -> str:
    return f"{attempt['outcome']} {attempt['code']}".rstrip()


def _waterfall_bar(begin: float, share: float, width: int) -> str:
    left = min(width - 1, int(begin * width))
    length = max(1, min(width - left, round(share * width)))
    return f"{'·' * left}{'█' * length}{'·' * (width - left - length)}"


async def run_replay(context: CommandContext, id_: str, *, yes: bool) -> ExitCode:
    """Repeat a recorded call through the gateway, with the same arguments, and print the result."""
    output = context.output
    gateway = await find_running_gateway(output, context.target_options)
    response = await gateway.request_admin("POST", f"calls/{quote(id_, safe='')}/replay", {"confirm": yes})
    result = response["result"]
    failed = result.get("isError") is True
    if output.as_json:
        output.print_raw_json(response)
    else:
        for block in result.get("content") or []:
            output.print_tool_text(block["text"] if isinstance(block.get("text"), str) else json.dumps(block))
        count = response["attempts"]
        attempts = "1 attempt" if count == 1 else f"{count} attempts"
        output.info(f"{format_seconds(response['seconds'])}, {attempts}; see toolway calls show {response['id']}")
    return ExitCode.TOOL_FAILED if failed else ExitCode.OK


def format_seconds(seconds: Any) -> str:
    """Format the duration of a call: `1.23 ms`, `250 ms`, `2.50 s`, `30 s`."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"


def _format_time(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")
