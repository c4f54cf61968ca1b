"""`toolway search` and `toolway tools cost`: find tools for a task, and count the tokens that tool definitions cost.

`toolway search` also lists earlier searches after which no tool was called.

With a running gateway, its own ranking and endpoints are shown. Else the lists are read from the cache of earlier runs,
and only servers without a cached list are started.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlencode

import typer

from toolway.catalog.catalog import Catalog
from toolway.cli import completion
from toolway.cli.exit_codes import ExitCode, UsageError
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.output import Output, format_age
from toolway.cli.params import Refresh, Wait
from toolway.cli.targets import (
    file_without_gateway,
    find_gateway,
    find_target,
    print_missing,
    require_gateway,
    wait_for_tools,
)
from toolway.parts.search.meta_tools import META_TOOLS, first_sentence
from toolway.search.tokens import TOKENIZER, TOKENS_LABEL, estimate_tokens, estimate_tool_tokens, search_advice
from toolway.search.tool_search import ToolSearch
from toolway.types import Json

if TYPE_CHECKING:
    from toolway.catalog.catalog import Tool
    from toolway.cli.targets import Target
    from toolway.search.results import SearchAnswer

MISSED_FOUND: Final = 3  # tools that are shown of a search without a call


def search(
    context: CommandContext,
    task: Annotated[
        list[str] | None, typer.Argument(metavar="[TASK…]", help="The task in a few words.", show_default=False)
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            "--server", "-s", metavar="NAME", help="Search this server.", autocompletion=completion.complete_servers
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=50, help="Number of results.")] = 5,
    why: Annotated[
        int | None, typer.Option("--why", metavar="N", min=1, max=50, help="Explain the score of result N.")
    ] = None,
    missed: Annotated[
        bool, typer.Option("--missed", help="List what models searched for, if they called none of the found tools.")
    ] = False,
    refresh: Refresh = False,
    wait: Wait = None,
) -> CommandResult:
    """Find the tools that fit a task, with the ranking that models get at /mcp/search."""
    if missed:
        return run_missed(context)
    return run_search(context, " ".join(task or ()), server, limit=limit, why=why, refresh=refresh, wait=wait)


def cost(context: CommandContext, refresh: Refresh = False, wait: Wait = None) -> CommandResult:
    """Show what the tools of each endpoint and each server cost a model, in tokens of OpenAI (o200k_base)."""
    return run_cost(context, refresh=refresh, wait=wait)


async def run_search(
    context: CommandContext,
    query: str,
    server: str | None,
    *,
    limit: int,
    why: int | None,
    refresh: bool,
    wait: float | None,
) -> ExitCode:
    """Print the best tools for a task, or why result number `why` got its score."""
    if not query.strip():
        raise UsageError("the task is empty", hint='toolway search "make an issue"')
    if why is not None:
        limit = max(limit, why)
    gateway = await find_gateway(context.output, context.target_options)
    if gateway is not None:
        fields = {"query": query, "limit": str(limit)} | ({"server": server} if server else {})
        document = await gateway.request_admin("GET", f"search?{urlencode(fields)}")
        found = [_with_name(each) for each in document["tools"]]
        facts = {key: document[key] for key in ("fits", "total_tools", "total_servers")}
        return _print_search(context.output, query, found, facts, why)
    catalog = await _load_catalog(context, server, wait, refresh)

    answer = ToolSearch(catalog).search(query, limit=limit, server=server)
    facts = {"fits": answer.fits, "total_tools": answer.total_tools, "total_servers": answer.total_servers}
    return _print_search(context.output, query, _matches_to_json(answer), facts, why)


async def _load_catalog(context: CommandContext, server: str | None, wait: float | None, refresh: bool) -> Catalog:
    """Return the configured servers' tools from cached lists. Start the servers without a cached list."""
    output, options = context.output, context.target_options
    target: Target = file_without_gateway(output, options) or await find_target(output, options)
    cached = target.cached(server) if not refresh else None
    if cached is not None and not cached.uncached:
        return cached.catalog
    catalog = cached.catalog if cached is not None else Catalog()
    async with target.open_some(cached.uncached) if cached is not None else target.open(server) as servers:
        statuses = await wait_for_tools(servers, output, wait, server if cached is None else None)
        for name, tools in _by_server(servers.known_tools()).items():
            if cached is None:
                catalog.add_server(name)
            catalog.replace(name, "tools", [tool.raw for tool in tools])
    print_missing(output, statuses)
    return catalog


def _by_server(tools: Sequence[Tool]) -> dict[str, list[Tool]]:
    found: dict[str, list[Tool]] = {}
    for tool in tools:
        found.setdefault(tool.server, []).append(tool)
    return found


def _matches_to_json(answer: SearchAnswer) -> list[Json]:
    return [
        {
            "name": match.tool.qualified_name,
            "server": match.tool.server,
            "tool": match.tool.name,
            "description": first_sentence(match.tool.description),
            "score": round(match.score, 3),
            "reasons": [
                {"kind": each.kind, "text": each.text, "fields": list(each.fields), "weight": round(each.weight, 3)}
                for each in match.reasons
            ],
        }
        for match in answer.matches
    ]


def _with_name(found: Json) -> Json:
    return {"name": f"{found['server']}.{found['tool']}", **found}


def _print_search(output: Output, query: str, found: list[Json], facts: Json, why: int | None) -> ExitCode:
    if why is not None and why > len(found):
        raise UsageError(f"no result {why}: {len(found)} tools were found", hint="use a smaller number")
    if output.as_json:
        output.print_json({"query": query, **facts, "tools": found if why is None else [found[why - 1]]})
        return ExitCode.OK
    if why is not None:
        _print_reasons(output, found[why - 1])
        return ExitCode.OK
    if not found:
        output.info("no tool is known: add a server with `toolway add`")
        return ExitCode.OK
    if not facts["fits"]:
        output.info("nothing fits well; the nearest tools:", "yellow")
    rows = [
        (str(number), f"{each['score']:.2f}", each["name"], each["description"]) for number, each in enumerate(found, 1)
    ]
    output.print_table(("", "score", "tool", "description"), rows, right=("", "score"), cut=True)
    matches = dict.fromkeys(
        reason["text"] for each in found for reason in each["reasons"] if reason["kind"] in ("word", "related")
    )
    words = f"found by: {', '.join(list(matches)[:8])} · " if matches else ""
    servers = f"{facts['total_servers']} server{'' if facts['total_servers'] == 1 else 's'}"
    totals = f"{facts['total_tools']} tools of {servers}"
    output.info(f"{words}{totals} · --why 1 explains a score", "dim")
    return ExitCode.OK


def _print_reasons(output: Output, found: Json) -> None:
    rows: list[Sequence[str]] = [
        (f"{each['weight']:.2f}", each["kind"], each["text"], ", ".join(each["fields"])) for each in found["reasons"]
    ]
    output.info(f"{found['name']}  {found['score']:.2f}  {found['description']}")
    output.print_table(("weight", "kind", "word", "found in"), rows, right=("weight",))


# -- searches of clients -----------------------------------------------------------------------------------------------


async def run_missed(context: CommandContext) -> ExitCode:
    """Print the recent searches by a gateway's clients that led to no call."""
    gateway = await require_gateway(
        context.output,
        context.target_options,
        "no gateway is running, so no client has searched",
        "start one with: toolway serve",
    )
    document: Json = await gateway.request_admin("GET", "searches")
    output, missed = context.output, document["unmet"]
    if output.as_json:
        output.print_json(document)
        return ExitCode.OK
    now = time.time()
    rows = [
        (
            f"{each['times']:,}",
            format_age(now - each["at"]),
            each["query"],
            ", ".join(each["found"][:MISSED_FOUND]) if each["fits"] else "nothing fits well",
        )
        for each in missed
    ]
    if rows:
        output.print_table(("times", "last", "query", "found"), rows, right=("times", "last"), cut=True)
    total = document["fits"] + document["nothing"]
    output.info(f"{total:,} searches since the start, {len(missed):,} queries without a call of a found tool", "dim")
    return ExitCode.OK


# -- tokens ------------------------------------------------------------------------------------------------------------


async def run_cost(context: CommandContext, *, refresh: bool, wait: float | None) -> ExitCode:
    """Print how many tokens the tools of each endpoint and each server cost a model."""
    gateway = await find_gateway(context.output, context.target_options)
    if gateway is not None:
        document: Json = await gateway.request_admin("GET", "tokens")
    else:
        document = _count_tokens((await _load_catalog(context, None, wait, refresh)).tools())
    if context.output.as_json:
        context.output.print_json(document)
        return ExitCode.OK
    _print_tokens(context.output, "endpoint", "path", document["endpoints"])
    if document["servers"]:
        context.output.info("")
        _print_tokens(context.output, "server", "server", document["servers"])
    context.output.info(document["advice"] or "listing all tools costs little: no search is needed", "dim")
    return ExitCode.OK


def _count_tokens(tools: Sequence[Tool]) -> Json:
    """Return token costs: at the endpoints /mcp and /mcp/search, and per server."""
    servers = [
        {"server": name, "tools": len(found), "tokens": estimate_tool_tokens(found)}
        for name, found in _by_server(tools).items()
    ]
    total = estimate_tool_tokens(tools)
    return {
        "endpoints": [
            {"path": "/mcp", "tools": len(tools), "tokens": total, "search": False},
            {
                "path": "/mcp/search",
                "tools": len(META_TOOLS),
                "tokens": estimate_tokens(META_TOOLS.values()),
                "search": True,
            },
        ],
        "servers": sorted(servers, key=lambda each: -int(str(each["tokens"]))),
        "advice": search_advice(len(tools), total),
        "tokenizer": TOKENIZER,
    }


def _print_tokens(output: Output, head: str, key: str, entries: Sequence[Any]) -> None:
    rows = [(each[key], f"{each['tools']:,}", f"{each['tokens']:,}") for each in entries]
    output.print_table((head, "tools", TOKENS_LABEL), rows, right=("tools", TOKENS_LABEL))
