"""`toolway trust sandbox`: start a server in the sandbox `strict`, and show what it needs."""

from __future__ import annotations

import asyncio
import json
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from toolway import Hub
from toolway._os import support
from toolway.cli.exit_codes import ExitCode
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.targets import load_masked_config
from toolway.errors import CallError, ConfigError, NotFound, platform_error
from toolway.upstream.process.confinement import SandboxError
from toolway.upstream.process.sandboxes import describe
from toolway.upstream.process.shown_paths import ALWAYS_SHOWN

if TYPE_CHECKING:
    from toolway.config.schema import Server
    from toolway.types import Json

START_TIMEOUT_S: Final = 60.0
_PATH: Final = re.compile(r"/[\w.@+~/-]{2,300}")


def sandbox_try(
    context: CommandContext,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the server.", show_default=False)],
) -> CommandResult:
    """Start a server in the sandbox strict, list its tools, and print the entry that it needs.

    The server has only the folders and hosts that its entry grants. The limits of memory and processes are those
    that this machine can apply.
    """
    return run_sandbox_try(context, name)


async def run_sandbox_try(context: CommandContext, name: str) -> ExitCode:
    """Start the server, and print its tools or why it does not start."""
    if lacked := support.missing("sandbox"):
        raise platform_error(*lacked)
    output = context.output
    servers = load_masked_config(output, context.target_options).servers
    server = servers.get(name)
    if server is None:
        raise NotFound(f"unknown server {name!r}", hint=f"configured: {', '.join(servers) or 'none'}"[:300])
    if server.command is None:
        raise ConfigError(
            f"{name} does not run a process", detail="a sandbox is for servers with a command", code="E-SANDBOX"
        )
    trial = replace(server, sandbox="strict", enabled=True)
    problem = ""
    async with Hub({name: trial}, token_store=None, catalog_storage=None) as hub:
        try:
            tools = [tool.name for tool in await hub.list_tools(server=name, wait=START_TIMEOUT_S)]
        except CallError as exc:
            tools, problem = [], f"{exc.message}: {exc.detail}" if exc.detail else exc.message
        status = hub.status()[name]
        if status.state != "ready":
            problem = problem or status.why
    missing = find_missing(f"{problem}\n{status.stderr}", server)
    entry = suggest_entry(server, missing)
    applied = await _describe_limits(server)
    if output.as_json:
        report = {"server": name, "ready": not problem, "tools": tools, "problem": problem, "missing": missing}
        output.print_json({**report, "sandbox": entry, "limits": applied})
        return ExitCode.UNREACHABLE if problem else ExitCode.OK
    if problem:
        output.print_line(f"{name} does not start in the strict sandbox: {problem}", "red")
        for path in missing:
            output.print_line(f"  it cannot see {path}")
    else:
        output.print_line(f"{name} is ready in the strict sandbox, with {len(tools)} tools", "green")
    for line in applied:
        output.print_line(f"  {line}")
    output.print_line(f'"sandbox": {json.dumps(entry)}')
    output.info("a tool may need more folders and hosts than the start does: call it, and read its error", "dim")
    return ExitCode.UNREACHABLE if problem else ExitCode.OK


async def _describe_limits(server: Server) -> list[str]:
    """Return how the sandbox works on this machine and its limits, or why a limit cannot be applied."""
    try:
        return await asyncio.to_thread(describe, "strict", server.grants)
    except SandboxError as exc:
        return [str(exc)]


def find_missing(text: str, server: Server) -> list[str]:
    """Return the paths in a server's messages that exist on this machine, but not in the sandbox of the server."""
    shown = (*ALWAYS_SHOWN, *server.grants.read, *server.grants.write)
    found = dict.fromkeys(path.rstrip("./") for path in _PATH.findall(text))
    return [
        path
        for path in found
        if os.path.exists(path) and not any(path == each or path.startswith(f"{each}/") for each in shown)
    ][:20]


def suggest_entry(server: Server, missing: list[str]) -> Json | str:
    """Return a value for the key `sandbox`: current grants, plus the `missing` paths as readable."""
    grants = server.grants
    read = [*grants.read, *missing]
    network = True if grants.all_hosts else list(grants.hosts)
    entry: Json = {"read": read, "write": list(grants.write), "network": network}
    entry |= {"maxMemoryBytes": grants.max_memory_bytes, "maxProcesses": grants.max_processes}
    return {key: value for key, value in entry.items() if value} or "strict"
