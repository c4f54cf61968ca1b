"""`toolway search-servers` and `toolway outdated`: what the configured registries have."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Annotated

import typer

from toolway.cli.exit_codes import ExitCode
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.errors import ToolwayError
from toolway.parts.registry.api import RegistryClient, describe_age
from toolway.parts.registry.cache import AnswerCache
from toolway.parts.registry.configured import ConfiguredRegistries, EntryOrigin, read_configuration
from toolway.parts.registry.publisher import describe_publisher

if TYPE_CHECKING:
    from toolway.parts.registry.records import ServerRecord
    from toolway.types import Json

_MAX_SEARCH_CHARS = 200
#: States of `toolway outdated` that need something from the user.
_NEWS = ("outdated", "deprecated", "deleted", "gone", "changed")


async def search_servers(
    context: CommandContext,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Part of a server's name.", show_default=False)],
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000, help="Show at most N servers.")] = 50,
    refresh: Annotated[bool, typer.Option("--refresh", help="Ask again, even if the last answer is fresh.")] = False,
) -> ExitCode:
    """Search the registries in toolway.registries, or the public MCP registry, for a part of a server's name.

    A name with * is configured already. Add a server: toolway add NAME.
    """
    output, configured = context.output, read_configuration(context)
    cache = AnswerCache.open(os.environ)
    found: dict[str, tuple[str, ServerRecord]] = {}
    asked: list[Json] = []
    problems: list[ToolwayError] = []
    has_more = False
    for url in configured.urls:
        async with RegistryClient(url, configured.network_policy, cache) as client:
            try:
                with output.spinner(f"asking {url}"):
                    result = await client.search(text[:_MAX_SEARCH_CHARS], limit, refresh=refresh)
            except ToolwayError as exc:
                problems.append(exc)
                continue
        asked.append({"url": url, "ageSeconds": int(result.age)})
        has_more = has_more or result.has_more
        for record in result.records:
            found.setdefault(record.name, (url, record))
    if problems and not asked:
        raise problems[0]
    shown = list(found.values())[:limit]
    has_more = has_more or len(found) > limit
    added = {each.name for each in configured.entries.values()}
    rows = [_row(url, record, record.name in added) for url, record in shown]
    if output.as_json:
        messages = [str(each) for each in problems]
        output.print_json({"servers": rows, "hasMore": has_more, "registries": asked, "problems": messages})
    else:
        _print_found(context, rows, asked, text, has_more=has_more)
        for problem in problems:
            output.print_error(problem)
    return ExitCode.PARTIAL if problems else ExitCode.OK


def _print_found(context: CommandContext, rows: list[Json], asked: list[Json], text: str, *, has_more: bool) -> None:
    output = context.output
    if rows:
        columns = ("name", "version", "publisher", "runs", "description")
        cells = [
            [
                f"{'* ' if row['configured'] else ''}{row['name']}",
                str(row["version"]) + (f" ({row['status']})" if row["status"] != "active" else ""),
                str(row["publisher"]),
                ", ".join(row["runs"]),
                str(row["description"]),
            ]
            for row in rows
        ]
        output.print_table(columns, cells, cut=True, drop=("publisher", "runs"))
    else:
        output.info(f"no server has {text!r} in its name")
    for each in asked:
        if each["ageSeconds"]:
            output.info(f"{each['url']}: this answer is {describe_age(each['ageSeconds'])}", "dim")
    if has_more:
        output.info("there are more: search for a longer part of the name, or raise --limit")


def _row(url: str, record: ServerRecord, is_configured: bool) -> Json:
    return {
        "name": record.name,
        "version": record.version,
        "status": record.status,
        "description": record.description,
        "publisher": describe_publisher(record.name, url),
        "runs": record.kinds,
        "published": record.published,
        "registry": url,
        "configured": is_configured,
    }


async def outdated(context: CommandContext) -> CommandResult:
    """Compare the servers that you added from a registry with the registry.

    Exit code 9 if one has a newer version, is deprecated or deleted, or is not what you added; 8 if a registry did not
    answer.
    """
    output, configured = context.output, read_configuration(context)
    cache = AnswerCache.open(os.environ)
    rows: list[Json] = []
    with output.spinner("asking the registries"):
        for server, entry in configured.entries.items():
            rows.append({"server": server, "name": entry.name, "version": entry.version})
            rows[-1] |= await _compare(entry, configured, cache)
    if output.as_json:
        output.print_json({"servers": rows})
    elif not rows:
        output.info("no server was added from a registry: toolway add io.github.OWNER/SERVER")
    else:
        columns = ("server", "version", "latest", "state", "note")
        output.print_table(columns, [[str(row[column]) for column in columns] for row in rows], cut=True)
    states = {row["state"] for row in rows}
    if states.intersection(_NEWS):
        return ExitCode.LINT
    return ExitCode.PARTIAL if "unknown" in states or any(row["ageSeconds"] for row in rows) else ExitCode.OK


async def _compare(entry: EntryOrigin, configured: ConfiguredRegistries, cache: AnswerCache) -> Json:
    """Return the newest version of an entry's server, its state, and a note."""
    if entry.url not in configured.urls:
        return {"latest": "", "state": "unknown", "note": f"{entry.url} is not in toolway.registries", "ageSeconds": 0}
    async with RegistryClient(entry.url, configured.network_policy, cache) as client:
        try:
            own = await client.fetch(entry.name, entry.version)
            newest = await client.fetch(entry.name, "latest")
        except ToolwayError as exc:
            return {"latest": "", "state": "unknown", "note": f"{exc.message}: {exc.detail}", "ageSeconds": 0}
    latest = newest.record.version if newest is not None and newest.record.status != "deleted" else ""
    state, note = "current", ""
    if own is None:
        state, note = "gone", "the registry no longer has this version"
    elif own.record.digest != entry.digest:
        state, note = "changed", "the registry has something else under this version"
    elif own.record.status != "active":
        state, note = own.record.status, own.record.message
    elif latest not in ("", entry.version):
        state, note = "outdated", f"toolway add --replace {entry.name}"
    age = max((each.age for each in (own, newest) if each is not None), default=0.0)
    if age:
        stale = f"the registry did not answer, its last answer is {describe_age(age)}"
        note = f"{note}; {stale}" if note else stale
    return {"latest": latest, "state": state, "note": note, "ageSeconds": math.ceil(age)}
