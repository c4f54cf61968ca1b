"""`toolway` without a command: states of the servers and the suggested next step.

No server is started.
"""

from __future__ import annotations

import os
from typing import Any

from toolway.cli.cached_lists import CachedLists, load_cached_lists
from toolway.cli.commands.import_ import discover_servers
from toolway.cli.commands.servers import owner_keys
from toolway.cli.exit_codes import ExitCode, NextStep, SetupState, choose_next_step
from toolway.cli.options import CommandContext
from toolway.cli.output import Output, problem_to_json
from toolway.cli.targets import exit_code_for_statuses, find_gateway, load_masked_config
from toolway.config.schema import Server
from toolway.config.scopes import UNTRUSTED_CODE
from toolway.doctor.last_check import load_causes
from toolway.errors import ConfigError
from toolway.gateway.state_dir import StateDir


async def show_overview(context: CommandContext) -> ExitCode:
    """Print one line per server and the suggested next command. No server is started."""
    output = context.output
    gateway = await find_gateway(output, context.target_options)
    if gateway is not None:
        return await _gateway_overview(output, gateway)
    try:
        loaded = load_masked_config(output, context.target_options)
    except ConfigError as exc:
        if exc.code not in ("E-CONFIG-NONE", UNTRUSTED_CODE):
            raise
        return _report_no_config(output, exc)

    cached = load_cached_lists(loaded.servers)
    checked = load_causes(StateDir.default(os.environ).folder, {name: loaded.servers[name] for name in cached.uncached})
    untrusted = [p for p in loaded.issues if p.code == UNTRUSTED_CODE]
    errors = [p for p in loaded.issues if p.severity == "error" and p.code != UNTRUSTED_CODE]
    step = choose_next_step(
        SetupState(
            servers=len(loaded.servers),
            never_queried=sum(name not in checked for name in cached.uncached),
            unusable_entries=len(errors),
            untrusted_files=len(untrusted),
            down_servers=tuple(name for name, cause in checked.items() if cause),
        )
    )
    rows = [_server_row(name, server, cached, checked.get(name, "")) for name, server in loaded.servers.items()]
    if output.as_json:
        output.print_json(
            {
                "file": str(loaded.file),
                "gateway": None,
                "servers": rows,
                "problems": [problem_to_json(p) for p in loaded.issues],
                "next": {"command": step.command, "why": step.why},
            }
        )
    else:
        _print_servers(output, rows)
        output.print_problems(loaded.issues)
        _print_step(output, step)
    return ExitCode.CONFIG if errors and not loaded.servers else ExitCode.PARTIAL if errors else ExitCode.OK


def _server_row(name: str, server: Server, cached: CachedLists, cause: str) -> dict[str, Any]:
    """Return a server's row when no gateway runs: it starts with the first command that needs it.

    `cause` is why it failed when `toolway doctor` last checked it.
    """
    cached_at = cached.cached_at.get(name)
    return {
        "server": name,
        "transport": server.transport,
        "state": "disabled" if not server.enabled else "down" if cause else "idle",
        "why": cause,
        "tools": len(cached.catalog.tools(name)) if cached_at is not None else None,
        "listed_at": round(cached_at) if cached_at is not None else None,
        "runs": server.location,
    }


def _print_servers(output: Output, rows: list[dict[str, Any]]) -> None:
    if rows:
        output.print_table(
            ("server", "tools", "state", "runs"),
            [(row["server"], _format_count(row["tools"]), row["state"], row["why"] or row["runs"]) for row in rows],
            right=("tools",),
            cut=True,
        )


def _format_count(tools: int | None) -> str:
    return "–" if tools is None else str(tools)


async def _gateway_overview(output: Output, gateway: Any) -> ExitCode:
    """Print the overview from a running gateway, which knows the live states."""
    from toolway.cli.remote_hub import RemoteHub

    remote = RemoteHub(gateway)
    await remote.list_tools(wait=0)
    statuses = list(remote.status().values())
    down = [s.server for s in statuses if s.state == "down"]
    step = choose_next_step(SetupState(servers=len(statuses), gateway_running=True, down_servers=tuple(down)))
    if output.as_json:
        keys = ("server", "transport", "state", "tools", "why", "hint", *owner_keys(statuses))
        servers = [{key: getattr(status, key) for key in keys} for status in statuses]
        document = {"file": gateway.config or None, "gateway": gateway.url, "servers": servers, "problems": []}
        output.print_json({**document, "next": {"command": step.command, "why": step.why}})
    else:
        if owner_keys(statuses):
            cluster_rows = [(s.server, str(s.tools), s.state, ", ".join(s.nodes) or "–", s.why) for s in statuses]
            output.print_table(("server", "tools", "state", "owner", "why"), cluster_rows, right=("tools",), cut=True)
        else:
            rows = [(s.server, str(s.tools), s.state, s.why) for s in statuses]
            output.print_table(("server", "tools", "state", "why"), rows, right=("tools",), cut=True)
        _print_step(output, step)
    return exit_code_for_statuses(statuses)


def _report_no_config(output: Output, error: ConfigError) -> ExitCode:
    is_untrusted = error.code == UNTRUSTED_CODE
    step = choose_next_step(
        SetupState(untrusted_files=int(is_untrusted), client_servers=0 if is_untrusted else _count_client_servers())
    )
    if output.as_json:
        document: dict[str, Any] = {"file": None, "gateway": None, "servers": [], "problems": []}
        output.print_json({**document, "next": {"command": step.command, "why": step.why}})
    else:
        output.info(f"{error.message}: {error.detail}." if is_untrusted else "No config file yet.")
        _print_step(output, step)
    return ExitCode.OK


def _count_client_servers() -> int:
    """Return the number of different servers in the config files of clients on this machine."""
    found, _ = discover_servers([], {}, project=False)
    return sum(each.status == "new" for each in found)


def _print_step(output: Output, step: NextStep) -> None:
    output.info("")
    output.info(f"{step.why}:")
    output.info(f"  {step.command}", "bold")
