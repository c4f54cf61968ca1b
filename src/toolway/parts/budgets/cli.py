"""`toolway keys budgets`: the budgets of keys, toolsets and groups, and how much of them is used."""

from __future__ import annotations

from toolway.cli.commands.keys import format_date
from toolway.cli.exit_codes import ExitCode
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.targets import require_gateway


def budgets(context: CommandContext) -> CommandResult:
    """Show the budgets of keys, toolsets, and groups, and their use."""
    return run_budgets(context)


async def run_budgets(context: CommandContext) -> ExitCode:
    """Print the budgets of the running gateway as a table."""
    output = context.output
    gateway = await require_gateway(
        output, context.target_options, "budgets are counted by a running gateway", "start it: toolway serve"
    )
    found = await gateway.request_admin("GET", "budgets")
    if output.as_json:
        output.print_json(found)
        return ExitCode.OK
    rows = [
        (
            " ".join(filter(None, (each["holder"], each["name"]))),
            each["tools"],
            each["budget"],
            str(each["used"]),
            f"{100 * each['used'] // each['amount']} %",
            format_date(each["resets_at"]),
        )
        for each in found["budgets"]
    ]
    rows += [
        (f"{each['holder']} {each['name']}", "*", f"{each['limit']} at once", "", "", "")
        for each in found["concurrent"]
    ]
    if rows:
        output.print_table(("of", "tools", "budget", "used", "", "begins again"), rows)
    else:
        output.info('no budgets yet: toolway keys create NAME --budget 5000/day, or "budgets" in the file')
    return ExitCode.OK
