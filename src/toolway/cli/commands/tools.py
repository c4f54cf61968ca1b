"""`toolway tools` and `call`: list and call tools.

Lists are read from the cache of earlier runs. Only servers without a cached list are started.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolway.cli import completion
from toolway.cli.cached_lists import CachedLists
from toolway.cli.commands.catalogs.server_questions import ServerQuestions
from toolway.cli.commands.catalogs.tool_details import check_names, find_named, find_shown, print_tool
from toolway.cli.commands.catalogs.url_hints import doctor_command, hint_for_url
from toolway.cli.exit_codes import ExitCode, UsageError
from toolway.cli.framework import CommandResult
from toolway.cli.options import CommandContext
from toolway.cli.output import Output, format_age, last_stderr_lines, problem_to_json
from toolway.cli.params import Headers, Refresh, Wait
from toolway.cli.targets import (
    DOWN_STATES,
    exit_code_for_statuses,
    file_without_gateway,
    find_target,
    is_server_url,
    print_missing,
    server_name_from_url,
    url_target,
    wait_for_tools,
)
from toolway.config.field_reader import parse_duration
from toolway.errors import CallError, ConfigError, InvalidArguments, ProtocolError
from toolway.middleware.resolve import find_by_bare_name
from toolway.protocol import tool_names
from toolway.protocol.constants import INVALID_PARAMS
from toolway.protocol.json_schema import SchemaValidator
from toolway.protocol.schema_violations import describe_violations, json_path
from toolway.search.tokens import TOKENS_LABEL, estimate_tool_tokens
from toolway.types import CallbackError

if TYPE_CHECKING:
    from toolway.catalog.catalog import Tool
    from toolway.cli.targets import HubApi, Target, TargetOptions
    from toolway.config.schema import ConfigIssue
    from toolway.events import CallFinished, Event
    from toolway.types import ProgressCallback, ToolResult
    from toolway.upstream.status import ServerStatus

_STALE_AFTER_S = 24 * 3600.0  # seconds after which the age of a cached list is shown
_NAMES_TIMEOUT_S = 30.0  # seconds to wait for the tool list before a call, to check the names of arguments
_PROGRESS_BAR_WIDTH = 20  # columns of the progress bar
_ARGUMENT = re.compile(r"([^=]*?)(:=|@=|=)(.*)", re.DOTALL)
_ARGUMENT_USAGE = "use name=text, name:=json, name@=file, or one JSON object"


def tools(
    context: CommandContext,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[URL] [WORD]…",
            help="Tools with all these words; the name of one tool shows its arguments. URL: ask the server there.",
            show_default=False,
            autocompletion=completion.complete_tools,
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            "--server", "-s", metavar="NAME", help="Show this server.", autocompletion=completion.complete_servers
        ),
    ] = None,
    refresh: Refresh = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="Show about how many tokens each tool costs.")] = False,
    header: Headers = None,
    wait: Wait = None,
) -> CommandResult:
    """List the tools of all servers from the lists that earlier runs cached on disk.

    Only servers without a cached list are started. With a URL, ask the server there; no config file is read.

    To find tools with the word cost or codegen, write: toolway tools -- cost
    """
    words = words or []
    if words and is_server_url(words[0]):
        target = url_target(context.output, words[0], header or ())
        return _fetch_and_print(context, target, " ".join(words[1:]), server, wait, True, tokens, words[0])
    _require_no_headers(header)
    return run_tools(context, words, server, wait=wait, refresh=refresh, tokens=tokens)


def call(
    context: CommandContext,
    tool: Annotated[
        str | None,
        typer.Argument(
            metavar="[SERVER.TOOL | URL TOOL]",
            help="Tool to call, or TOOL if one server has it; or a URL and a tool of the server there.",
            show_default=False,
            autocompletion=completion.complete_tools,
        ),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ARGUMENT]…",
            help="a=text, b:=json, c@=file, or one JSON object.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", "-t", metavar="TIME", help="Time limit of the whole call: 0.5s, 20s, 2m.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print the server's result as JSON, unchanged.")] = False,
    header: Headers = None,
) -> CommandResult:
    """Call a tool and print its result. Only the server of the tool is started.

    With a URL, call a tool of the server there; no config file is read. To make a recorded call again: toolway calls
    replay ID.
    """
    limit = parse_timeout(timeout) if timeout is not None else None
    if tool is None:
        raise UsageError("missing argument SERVER.TOOL", hint="show the usage: toolway call --help")
    context.output.as_json |= raw
    words = arguments or []
    if is_server_url(tool):
        if not words:
            raise UsageError("missing argument TOOL", hint=f"list its tools: toolway tools {tool}")
        target = url_target(context.output, tool, header or ())
        return run_call(context.output, context.target_options, words[0], words[1:], limit, raw, target)
    _require_no_headers(header)
    return run_call(context.output, context.target_options, tool, words, limit, raw)


def parse_timeout(text: str) -> float:
    """Parse a time such as `20`, `0.5s` or `2m` to seconds. Raises `UsageError` if invalid."""
    try:
        seconds = float(text) if text.replace(".", "", 1).isdecimal() else parse_duration("--timeout", text)
    except ConfigError:
        seconds = 0.0
    if seconds <= 0:
        raise UsageError("--timeout must be a duration such as 20s or 2m", detail=f"it is {text[:50]!r}")
    return seconds


def _require_no_headers(headers: Sequence[str] | None) -> None:
    if headers:
        raise UsageError(
            "--header only works with a URL", hint="set the headers of configured servers in the config file"
        )


# -- tools -------------------------------------------------------------------------------------------------------------


def run_tools(
    context: CommandContext,
    words: Sequence[str],
    server: str | None,
    *,
    wait: float | None,
    refresh: bool,
    tokens: bool,
) -> ExitCode | Coroutine[Any, Any, ExitCode]:
    """Print the tools whose name, title or description contains all words.

    Returns the exit code if all tool lists are cached, else a coroutine that starts servers.
    """
    query = " ".join(words)
    target = file_without_gateway(context.output, context.target_options)
    cached = target.cached(server) if target is not None and not refresh else None
    if target is not None and cached is not None and not tokens and _is_known(cached, query):
        return _output_tools(
            context.output, target, _filter_cached(cached, query, server), [], cached, server, tokens, query
        )
    if target is None or cached is None or cached.uncached:
        return _fetch_and_print(context, target, query, server, wait, refresh, tokens)
    return _output_tools(
        context.output, target, _filter_cached(cached, query, server), [], cached, server, tokens, query
    )


async def _fetch_and_print(
    context: CommandContext,
    target: Target | None,
    query: str,
    server: str | None,
    wait: float | None,
    refresh: bool,
    tokens: bool,
    url: str = "",
) -> ExitCode:
    output = context.output
    target = target if target is not None else await find_target(output, context.target_options)
    cached = target.cached(server)
    if cached is None or refresh:
        found, statuses = await _fetch_tools(output, target, query, server, wait)
        cached = CachedLists()
    else:
        statuses = await _fetch_uncached(output, target, cached, wait)
        found = _filter_cached(cached, query, server)
    return _output_tools(output, target, found, statuses, cached, server, tokens, query, url)


def _is_known(cached: CachedLists, query: str) -> bool:
    """Return True if `query` is the full name of a tool in a cached list: no other server is needed to show it."""
    named = find_named(cached.catalog.tools(), query) if "." in query else None
    return named is not None and named.qualified_name == query


def _filter_cached(cached: CachedLists, query: str, server: str | None) -> list[Tool]:
    return [tool for tool in cached.catalog.tools(server) if has_words(tool, query)]


def has_words(tool: Tool, query: str) -> bool:
    """Return True if the name, title or description of a tool contains all words of `query`."""
    text = f"{tool.qualified_name} {tool.title} {tool.description}".lower()
    return all(word in text for word in query.lower().split())


def _output_tools(
    output: Output,
    target: Target,
    found: list[Tool],
    statuses: list[ServerStatus],
    cached: CachedLists,
    server: str | None,
    tokens: bool,
    query: str,
    url: str = "",
) -> ExitCode:
    problems = target.problems(server)
    named = find_shown(found, query, one_server=bool(url)) if not tokens else None
    others: list[str] = []
    if named is not None and query == named.qualified_name:  # the state of other servers does not matter for it
        others = _missing_others(named, statuses, cached, problems)
        statuses = [status for status in statuses if status.server == named.server]
        problems = tuple(problem for problem in problems if problem.server in (named.server, ""))
    if output.as_json:
        document = {
            "tools": [_tool_to_json(tool) for tool in found],
            "down": [_down_to_json(s, url) for s in _down_servers(statuses)],
            "denied": _denied_counts(statuses, cached, server),
        }
        output.print_json({**document, "problems": [problem_to_json(p) for p in problems]})
    else:
        if named is not None:
            print_tool(output, named, f"{url} {named.ref.tool}" if url else named.qualified_name)
        elif found or not problems:
            _print_tools(output, found, tokens)
        output.print_problems(problems)
        _print_notes(output, statuses, cached, found, url)
        _print_denied(output, statuses, cached, server)
        if others:
            noun = "1 other server is" if len(others) == 1 else f"{len(others)} other servers are"
            output.info_wrapped(f"{noun} not listed: {', '.join(others)}; see why: toolway ls", "dim")
        if server in cached.disabled:
            output.info(f"{server} is disabled; enable it: toolway enable {server}", "yellow")
    return exit_code_for_statuses(statuses, problems)


def _missing_others(
    named: Tool, statuses: Sequence[ServerStatus], cached: CachedLists, problems: Sequence[ConfigIssue]
) -> list[str]:
    """Return other servers whose tools are unknown, because they are down or never answered."""
    broken = [problem.server for problem in problems if problem.severity == "error" and problem.server]
    unlisted = [name for name in cached.uncached if name not in {status.server for status in statuses}]
    names = {*broken, *unlisted, *(status.server for status in _down_servers(statuses))}
    return sorted(names - {named.server})


async def _fetch_tools(
    output: Output, target: Target, query: str, server: str | None, wait: float | None
) -> tuple[list[Tool], list[ServerStatus]]:
    """Start all servers, or only `server`. Return their tools that match `query`, and the statuses of the servers."""
    async with target.open(server) as servers:
        statuses = await wait_for_tools(servers, output, wait, server)
        return [tool for tool in servers.known_tools(server=server) if has_words(tool, query)], statuses


async def _fetch_uncached(
    output: Output, target: Target, cached: CachedLists, wait: float | None
) -> list[ServerStatus]:
    """Start the servers without a cached tool list, and add their tools to `cached`.

    Returns the statuses of these servers.
    """
    if not cached.uncached:
        return []
    async with target.open_some(cached.uncached) as servers:
        statuses = await wait_for_tools(servers, output, wait)
        for name in cached.uncached:
            cached.catalog.replace(name, "tools", [tool.raw for tool in servers.known_tools(server=name)])
    return statuses


def _print_tools(output: Output, found: Sequence[Tool], tokens: bool) -> None:
    if not found:
        output.info("no tool found")
    elif tokens:
        costs = [_token_cost(tool) for tool in found]
        rows = [(tool.qualified_name, f"{cost:,}", _first_line(tool)) for tool, cost in zip(found, costs, strict=True)]
        output.print_table(("tool", TOKENS_LABEL, "description"), rows, right=(TOKENS_LABEL,), cut=True)
        output.info(f"{len(found)} tools, about {estimate_tool_tokens(found):,} {TOKENS_LABEL}")
    else:
        output.print_table(
            ("tool", "description"), [(tool.qualified_name, _first_line(tool)) for tool in found], cut=True
        )


def _print_notes(
    output: Output, statuses: Sequence[ServerStatus], cached: CachedLists, found: Sequence[Tool], url: str
) -> None:
    if _down_servers(statuses):
        output.info("")
    print_missing(output, statuses)
    if _down_servers(statuses):
        output.info(f"find the cause and a fix: {doctor_command(_down_servers(statuses)[0].server, url)}")
    cache_times = [cached.cached_at[name] for name in {tool.server for tool in found} if name in cached.cached_at]
    age = time.time() - min(cache_times, default=time.time())
    if cache_times and (output.verbose or age > _STALE_AFTER_S):
        output.info(f"\ncached up to {format_age(age)}; --refresh updates the lists", "dim")


def _denied_counts(statuses: Sequence[ServerStatus], cached: CachedLists, server: str | None) -> dict[str, int]:
    """Return the number of tools that allow and deny lists hide, by server."""
    counts = {name: cached.catalog.count_denied(name) for name in cached.cached_at}
    counts |= {status.server: status.denied_tools for status in statuses}
    return {name: count for name, count in counts.items() if count and server in (None, name)}


def _print_denied(output: Output, statuses: Sequence[ServerStatus], cached: CachedLists, server: str | None) -> None:
    counts = _denied_counts(statuses, cached, server)
    total = sum(counts.values())
    if total:
        noun = "1 tool is" if total == 1 else f"{total} tools are"
        output.info(f"{noun} denied by the allow and deny lists of {', '.join(sorted(counts))}", "dim")


def _first_line(tool: Tool) -> str:
    lines = (tool.description or tool.title).strip().splitlines()
    return lines[0].strip() if lines else ""


def _token_cost(tool: Tool) -> int:
    return estimate_tool_tokens([tool])


def _tool_to_json(tool: Tool) -> dict[str, Any]:
    return {
        "name": tool.qualified_name,
        "server": tool.server,
        "tool": tool.ref.tool,
        "title": tool.title,
        "description": tool.description,
        "input_schema": tool.input_schema,
        "annotations": tool.annotations,
        "stale": tool.stale,
        "tokens": _token_cost(tool),
    }


def _down_to_json(status: ServerStatus, url: str) -> dict[str, str]:
    hint = hint_for_url(status.hint, status.server, url) if url else status.hint
    return {"server": status.server, "state": status.state, "why": status.why, "hint": hint}


def _down_servers(statuses: Sequence[ServerStatus]) -> list[ServerStatus]:
    return [status for status in statuses if status.state in DOWN_STATES]


# -- call --------------------------------------------------------------------------------------------------------------


async def run_call(
    output: Output,
    target_options: TargetOptions,
    tool: str,
    words: Sequence[str],
    timeout: float | None,
    raw: bool,
    url_target: Target | None = None,
) -> ExitCode:
    """Call one tool and print its result. Starts only the server of the tool, if that is known.

    `url_target` has the only server to use, if a URL was given.
    """
    tool_arguments = parse_arguments(words)
    server: str | None
    if url_target is not None:
        target, server = url_target, server_name_from_url(url_target.name)
        tool = f"{server}.{tool.removeprefix(f'{server}.')}"
    else:
        target = await find_target(output, target_options)
        ref = tool_names.parse_tool_name(tool)
        server = ref.server if ref else _find_cached_server(target, tool)
    questions, calls = ServerQuestions(output), _LastCall()
    async with target.open(server, questions) as servers:
        servers.add_sink(calls)
        if not output.as_json:
            output.print_problems(target.problems(server))
        note = ""
        with output.spinner(f"calling {tool}") as update:
            try:
                if words and not words[0].lstrip().startswith("{"):
                    tool_arguments, note = await _fit_to_schema(servers, tool, server, tool_arguments)
                on_progress = _call_progress(output, tool, update)
                result = await servers.call_tool(
                    tool, tool_arguments, timeout=timeout, progress_callback=on_progress, raise_on_error=False
                )
            except asyncio.CancelledError:  # Ctrl-C
                output.print_question(_describe_interrupted(tool, calls.last), "yellow")
                raise
            except CallError as exc:
                if note and (exc.executed != "no" or isinstance(exc, InvalidArguments)):
                    output.info(note, "dim")
                _add_hints(exc, tool, servers.status().get(server or exc.server))
                await _add_questions(exc, questions)
                if url_target is not None and server is not None:
                    exc.hint = hint_for_url(exc.hint, server, url_target.name)
                raise
    if note:
        output.info(note, "dim")
    _print_result(output, result, raw)
    for question in questions.unanswered:
        output.info_wrapped(f"{question}; call it in a terminal to answer", "yellow")
    if output.verbose:
        output.info(f"{tool}: {result.duration:.3f} s, attempts: {result.attempts}")
    return ExitCode.TOOL_FAILED if result.is_error else ExitCode.OK


async def _fit_to_schema(
    servers: HubApi, tool: str, server: str | None, arguments: dict[str, Any]
) -> tuple[dict[str, Any], str]:
    """Convert arguments to fit the tool's schema (`count=5` becomes a number), with a note for the user.

    This is done before the call: a first attempt with text would be recorded as a failed call. Raises
    `InvalidArguments` if the tool has no argument of a given name. Changes nothing if the schema is not known; the note
    says so if it matters.
    """
    found = await _find_definition(servers, tool, server)
    if found is None:
        words = [name for name, value in arguments.items() if isinstance(value, str)]
        if words and not servers.known_tools(server=server):
            return arguments, f"no schema for {tool} yet, so sent as text: {', '.join(words)}; for JSON use name:=json"
        return arguments, ""
    error = check_names(found, arguments)
    if error is not None:
        raise error
    return convert_texts(arguments, found.input_schema), ""


async def _find_definition(servers: HubApi, tool: str, server: str | None) -> Tool | None:
    """Return the definition of a tool, from the gateway, from known lists, or by waiting for its server to list it.

    None if it cannot be found.
    """
    from toolway.cli.remote_hub import RemoteHub

    if isinstance(servers, RemoteHub):
        ref = tool_names.parse_tool_name(tool)
        found = await servers.load_definition(ref) if ref is not None else None
        if found is None:  # a bare name, or a server that is still starting
            found = find_named(await servers.list_tools(server=server, wait=_NAMES_TIMEOUT_S), tool)
        return found
    if server is not None and not servers.known_tools(server=server):
        try:
            await servers.list_tools(server=server, wait=_NAMES_TIMEOUT_S)
        except CallError:
            return None  # the call reports it
    return find_named(servers.known_tools(server=server), tool)


def _find_cached_server(target: Target, name: str) -> str | None:
    """Return the server of a tool named without its server, so only this one is started.

    None if all servers must be available: a gateway is used, or the tools of a server are not cached yet. Raises
    `NotFound` if no cached list has the tool or several do, `AccessDenied` if it is denied.
    """
    cached = target.cached()
    if cached is None or cached.uncached:
        return None
    return find_by_bare_name(cached.catalog, cached.cached_at, name).server


def _add_hints(error: CallError, tool: str, status: ServerStatus | None) -> None:
    rejected = isinstance(error, ProtocolError) and error.rpc_code == INVALID_PARAMS and not error.hint
    if rejected or isinstance(error, InvalidArguments):
        error.hint = (
            error.hint
            if "one JSON object" in error.hint
            else f"show its arguments: toolway tools {tool}; use name:=json for a value that is not text"
        )
    if status is not None and status.state != "ready":
        for line in last_stderr_lines(status.stderr):
            error.add_note(line)


class _LastCall:
    """Event sink that remembers how the last call ended."""

    wants_attempts = False

    def __init__(self) -> None:
        self.last: CallFinished | None = None

    def on_call(self, event: CallFinished) -> None:
        if event.method == "tools/call":
            self.last = event

    def on_event(self, event: Event) -> None: ...


def _describe_interrupted(tool: str, call: CallFinished | None) -> str:
    """Print whether a call interrupted by Ctrl-C may have run."""
    if call is None or call.executed == "no":
        return f"interrupted: {tool} did not run"
    if call.effect == "read":
        return f"interrupted: {tool} may have run; it only reads, so you can call it again"
    return f"interrupted: {tool} may have run; check before you call it again"


async def _add_questions(error: CallError, questions: ServerQuestions) -> None:
    """Open the addresses that a call's error wants visited, and add what could not be asked."""
    if isinstance(error, ProtocolError):
        with suppress(CallbackError):
            if await questions.visit(error):
                error.hint = "finish in the browser window that opened, then call again"
    if error.code == "E-NO-ANSWER":
        error.hint = "call it in a terminal to answer, or pass everything the tool needs as arguments"
    if questions.unanswered:
        error.detail = "; ".join(questions.unanswered)


def _call_progress(output: Output, tool: str, update: Callable[[str], None]) -> ProgressCallback:
    def on_progress(progress: float, total: float | None, message: str | None) -> None:
        share = f"{progress:g}/{total:g}" if total else f"{progress:g}"
        text = f"{tool}: {share} {message or ''}".rstrip()
        update(f"{_progress_bar(progress / total)} {text}" if total else text)
        if output.verbose:
            output.info(text)

    return on_progress


def _progress_bar(share: float) -> str:
    done = round(max(0.0, min(1.0, share)) * _PROGRESS_BAR_WIDTH)
    return "━" * done + "─" * (_PROGRESS_BAR_WIDTH - done)


def _print_result(output: Output, result: ToolResult, raw: bool) -> None:
    if raw:
        output.print_raw_json(result.raw)
    elif output.as_json:
        output.print_raw_json(_result_to_json(result))
    else:
        if result.is_error:
            output.info(f"✗ {result.server}.{result.name} reported a failure:", "red")
        output.print_tool_text("\n".join(_content_texts(result)))


def _result_to_json(result: ToolResult) -> dict[str, Any]:
    return {
        "server": result.server,
        "tool": result.name,
        "is_error": result.is_error,
        "text": result.text,
        "data": result.data,
        "content": result.content,
        "seconds": round(result.duration, 6),
        "attempts": result.attempts,
        "from_cache": result.from_cache,
    }


def _content_texts(result: ToolResult) -> Iterator[str]:
    """Yield the content blocks of a tool result as text; describe blocks that are not text."""
    if not result.content and result.data is not None:
        yield json.dumps(result.data, ensure_ascii=False, indent=2)
    for block in result.content:
        yield _content_text(block)


def _content_text(block: dict[str, Any]) -> str:
    kind = block.get("type")
    if isinstance(block.get("text"), str):
        return str(block["text"])
    if kind in ("image", "audio"):
        size = len(str(block.get("data", ""))) * 3 // 4
        return f"[{kind} {block.get('mimeType', '')}, {size} bytes; --json shows it]"
    if kind == "resource_link":
        return f"[{block.get('name', 'resource')}: {block.get('uri', '')}]"
    resource = block.get("resource")
    if isinstance(resource, dict):
        return str(resource["text"]) if "text" in resource else f"[resource {resource.get('uri', '')}]"
    return json.dumps(block, ensure_ascii=False)


# -- arguments of a call -----------------------------------------------------------------------------------------------


def convert_texts(arguments: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Parse arguments as JSON where the schema expects another type than a string.

    A string that is not valid JSON stays: the call then names it.
    """
    validator = SchemaValidator(dict(schema))
    if validator.is_valid(arguments):
        return arguments
    violations, _ = describe_violations(validator, arguments)
    rejected = {each.path for each in violations if each.problem.startswith("is a string")}
    converted = dict(arguments)
    for name, text in arguments.items():
        if isinstance(text, str) and json_path((name,)) in rejected:
            with suppress(ValueError):
                converted[name] = json.loads(text)
    return converted


def parse_arguments(words: Sequence[str]) -> dict[str, Any]:
    """Parse tool arguments from command line words: `a=text`, `b:=json`, `c@=file` or JSON.

    Raises `UsageError` if a word is invalid, a name is given twice or a file cannot be read.
    """
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        value = _parse_json("the JSON object", words[0])
        if not isinstance(value, dict):
            raise UsageError("the arguments are not a JSON object", hint=_ARGUMENT_USAGE)
        return value
    arguments: dict[str, Any] = {}
    for word in words:
        name, value = _parse_argument(word)
        if name in arguments:
            raise UsageError(f"argument {name} is given twice", hint="pass it once")
        arguments[name] = value
    return arguments


def _parse_argument(word: str) -> tuple[str, Any]:
    found = _ARGUMENT.fullmatch(word)
    if found is None or not found[1]:
        raise UsageError(f"invalid argument {word!r}", hint=_ARGUMENT_USAGE)
    name, operator, text = found.groups()
    if operator == ":=":
        return name, _parse_json(name, text)
    return name, _read_file(name, text) if operator == "@=" else text


def _parse_json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as exc:
        raise UsageError(
            f"{name} is not valid JSON", detail=str(exc), hint="quote it for the shell: name:='{\"a\": 1}'"
        ) from None


def _read_file(name: str, path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as exc:
        raise UsageError(f"the file for {name} cannot be read", detail=str(exc)) from None
