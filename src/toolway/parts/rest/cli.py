"""`toolway tools openapi`: the OpenAPI document of the tools at a running gateway."""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer

from toolway.cli.exit_codes import ExitCode, UsageError
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.targets import require_gateway

_TOOLSET_NAME: Final = re.compile(r"(?:server/)?[a-z0-9-]{1,64}")


def openapi(
    context: CommandContext,
    toolset: Annotated[
        str | None, typer.Option("--toolset", metavar="NAME", help="This toolset, or server/NAME.", show_default=False)
    ] = None,
) -> CommandResult:
    """Write the OpenAPI document of your tools to stdout: toolway tools openapi > openapi.json

    It has the tools that your token may use. Programs call them with POST /api/tools/NAME.
    """
    if toolset is not None and _TOOLSET_NAME.fullmatch(toolset) is None:
        raise UsageError(f"invalid toolset {toolset!r}", hint="see your toolsets: toolway config")
    return run_openapi(context, f"/api/{toolset}" if toolset is not None else "/api")


async def run_openapi(context: CommandContext, path: str) -> ExitCode:
    """Print the document of the running gateway, with the address at which it was found."""
    output = context.output
    gateway = await require_gateway(
        output, context.target_options, "the document comes from a running gateway", "start it: toolway serve"
    )
    document = await gateway.request_document(f"{path}/openapi.json")
    document["servers"] = [{"url": f"{gateway.url}{path}"}]
    output.print_raw_json(document)
    return ExitCode.OK
