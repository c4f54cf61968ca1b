"""`toolway prompts`, `toolway resources` and `toolway tools codegen`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolway._version import __version__
from toolway.cli import completion
from toolway.cli.commands.catalogs.client_module import client_source
from toolway.cli.commands.catalogs.url_hints import doctor_command
from toolway.cli.commands.tools import parse_arguments
from toolway.cli.exit_codes import ExitCode, UsageError
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.params import Headers, Wait
from toolway.cli.targets import (
    failure_cause,
    find_target,
    is_server_url,
    print_missing,
    server_name_from_url,
    url_target,
    wait_for_tools,
)
from toolway.errors import NotFound, ToolwayError

if TYPE_CHECKING:
    from toolway.cli.output import Output
    from toolway.cli.targets import Target
    from toolway.types import PromptResult, ResourceResult

_ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server", "-s", metavar="NAME", help="Only this server.", autocompletion=completion.complete_servers
    ),
]


def prompts(
    context: CommandContext,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SERVER.PROMPT] [NAME=TEXT]…", help="Show the messages of this prompt.", show_default=False
        ),
    ] = None,
    server: _ServerOption = None,
    wait: Wait = None,
) -> CommandResult:
    """Without a name, list all prompts and their arguments. With a name, show the messages of the prompt."""
    return run_prompts(context, words or [], server, wait)


def resources(
    context: CommandContext,
    uri: Annotated[
        str | None, typer.Argument(metavar="[URI]", help="Show the contents of this resource.", show_default=False)
    ] = None,
    server: _ServerOption = None,
    wait: Wait = None,
) -> CommandResult:
    """Without a URI, list all resources and templates. With a URI, read the resource."""
    return run_resources(context, uri, server, wait)


def codegen(
    context: CommandContext,
    language: Annotated[str, typer.Argument(metavar="LANGUAGE", help="python", show_default=False)],
    server: Annotated[
        str,
        typer.Argument(
            metavar="SERVER",
            help="Name or URL of the server.",
            show_default=False,
            autocompletion=completion.complete_servers,
        ),
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write to this file.")] = None,
    header: Headers = None,
    wait: Wait = None,
) -> CommandResult:
    """Write a Python module with a typed method for each tool of a server. mypy and editors check the arguments."""
    if language != "python":
        raise UsageError(f"unknown language {language!r}", hint="toolway tools codegen python SERVER")
    return run_codegen(context, server, out, header or (), wait)


async def run_prompts(
    context: CommandContext, words: Sequence[str], server: str | None, wait: float | None
) -> ExitCode:
    """List the prompts of all servers or of `server`, or get the one that `words` name."""
    output = context.output
    target = await _find_target(context)
    given = {name: _as_text(value) for name, value in parse_arguments(words[1:]).items()}
    async with target.open(server) as servers:
        if words:
            if "." not in words[0]:
                raise UsageError(f"invalid prompt name {words[0]!r}", hint="use SERVER.PROMPT: toolway prompts")
            with output.spinner(f"getting {words[0]}"):
                await servers.list_prompts(server=words[0].partition(".")[0], wait=wait)
                _print_prompt(output, await servers.get_prompt(words[0], given))
            return ExitCode.OK
        with output.spinner("starting"):
            found = await servers.list_prompts(server=server, wait=wait)
        statuses = [each for each in servers.status().values() if server in (None, each.server)]
    print_missing(output, statuses)
    if output.as_json:
        output.print_json({"prompts": [{"name": each.qualified_name, **_fields(each.raw)} for each in found]})
    elif not found:
        output.info("no server offers a prompt")
    else:
        rows = [(each.qualified_name, _prompt_arguments(each.raw), _first_line(each.description)) for each in found]
        output.print_table(("prompt", "arguments", "description"), rows, cut=True)
    return ExitCode.OK


async def run_resources(context: CommandContext, uri: str | None, server: str | None, wait: float | None) -> ExitCode:
    """List the resources of all servers or of `server`, or read the one at `uri`."""
    output = context.output
    target = await _find_target(context)
    async with target.open(server) as servers:
        with output.spinner("starting"):
            found = await servers.list_resources(server=server, wait=wait)
            templates = await servers.list_resource_templates(server=server, wait=wait)
        statuses = [each for each in servers.status().values() if server in (None, each.server)]
        if uri is not None:
            owner = server or next((each.server for each in found if each.uri == uri), None)
            if owner is None:
                raise NotFound(
                    f"no server lists the resource {uri!r}",
                    hint="list all: toolway resources; or add -s SERVER",
                )
            _print_resource(output, await servers.read_resource(uri, server=owner))
            return ExitCode.OK
    print_missing(output, statuses)
    if output.as_json:
        rows_of = {"resources": found, "templates": templates}
        output.print_json({key: [{"server": e.server, **e.raw} for e in items] for key, items in rows_of.items()})
    elif not found and not templates:
        output.info("no server offers a resource")
    else:
        rows = [(each.server, each.uri, each.title) for each in (*found, *templates)]
        output.print_table(("server", "uri", "title"), rows, cut=True)
    return ExitCode.OK


async def run_codegen(
    context: CommandContext, server: str, out: Path | None, headers: Sequence[str], wait: float | None
) -> ExitCode:
    """Write the typed client of a server to `out`, or print it."""
    output = context.output
    url = server if is_server_url(server) else ""
    if url:
        target: Target = url_target(output, url, headers)
        server = server_name_from_url(url)
    else:
        target = await _find_target(context)
    async with target.open(server) as servers:
        statuses = await wait_for_tools(servers, output, wait, server)
        tools = servers.known_tools(server=server)
    if not tools:
        why = failure_cause(statuses[0]) if statuses else ""
        raise ToolwayError(f"{server} lists no tools", detail=why, hint=doctor_command(server, url))
    source = client_source(server, [tool.raw for tool in tools], __version__)
    if out is not None:
        out.write_text(source, encoding="utf-8", newline="\n")
        output.info(f"{out}: a typed client with {len(tools)} methods", "green")
    if output.as_json:
        output.print_json({"server": server, "file": str(out) if out else None, "tools": len(tools), "source": source})
    elif out is None:
        output.print_tool_text(source.rstrip("\n"))
    return ExitCode.OK


async def _find_target(context: CommandContext) -> Target:
    return await find_target(context.output, context.target_options)


def _print_prompt(output: Output, result: PromptResult) -> None:
    if output.as_json:
        output.print_raw_json(result.raw)
        return
    for message in result.messages:
        content = message.get("content")
        text = content.get("text") if isinstance(content, dict) else None
        shown = text if isinstance(text, str) else json.dumps(content, ensure_ascii=False)
        output.print_tool_text(f"{message.get('role', '')}: {shown}")


def _print_resource(output: Output, result: ResourceResult) -> None:
    if output.as_json:
        output.print_raw_json(result.raw)
        return
    for part in result.contents:
        if isinstance(part.get("text"), str):
            output.print_tool_text(part["text"])
        else:
            size = len(str(part.get("blob", ""))) * 3 // 4
            output.print_tool_text(f"[{part.get('mimeType', 'binary')}, {size} bytes; --json shows it]")


def _prompt_arguments(raw: dict[str, Any]) -> str:
    found = raw.get("arguments")
    listed = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    return " ".join(f"{each.get('name')}{'' if each.get('required') else '?'}" for each in listed) or "–"


def _fields(raw: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key != "name"}


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")
