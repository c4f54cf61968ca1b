"""`toolway quiet`: asks the running gateway whether calls are rejected."""

from __future__ import annotations

from toolway.part_api import CommandContext, CommandResult, ExitCode, require_gateway


def quiet(context: CommandContext) -> CommandResult:
    """Show whether calls are rejected now, and how many were."""
    return run_quiet(context)


async def run_quiet(context: CommandContext) -> ExitCode:
    """Print whether calls are rejected now, and how often each tool was."""
    output = context.output
    gateway = await require_gateway(
        output, context.target_options, "quiet hours need a running gateway", "start it: toolway serve"
    )
    found = await gateway.request_admin("GET", "quiet-hours")
    if output.as_json:
        output.print_json(found)
        return ExitCode.OK
    output.info("quiet: calls are rejected" if found["quiet"] else "not quiet: calls pass")
    for target, times in found["rejected"].items():
        output.print_line(f"{target}: rejected {times} times")
    return ExitCode.OK
