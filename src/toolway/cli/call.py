"""`toolway call`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mcp_types.jsonrpc import INVALID_PARAMS

from toolway.cli import arguments
from toolway.cli.exits import Exit
from toolway.cli.output import Output, last_lines
from toolway.cli.places import Where, find
from toolway.errors import CallError, ProtocolError
from toolway.model import OnProgress, Reply
from toolway.protocol import names
from toolway.upstream.status import Status

_BAR = 20  # columns


async def call(output: Output, where: Where, tool: str, words: Sequence[str], timeout: float | None, raw: bool) -> Exit:
    """Call one tool; of all servers only its own is started."""
    given = arguments.parse(words)
    place = await find(output, where)
    ref = names.parse(tool)
    server = ref.server if ref else ""
    async with place.asking(server) as servers:
        if not output.as_json:
            output.problems(place.problems(server))
        with output.spinner(f"calling {tool}") as update:
            try:
                on_progress = _progress(output, tool, update)
                reply = await servers.call_tool(tool, given, timeout=timeout, on_progress=on_progress)
            except CallError as exc:
                _explain(exc, tool, servers.status().get(server))
                raise
    _print(output, reply, raw)
    if output.verbose:
        output.say(f"{tool}: {reply.seconds:.3f} s, attempts: {reply.attempts}")
    return Exit.TOOL_FAILED if reply.is_error else Exit.OK


def _explain(error: CallError, tool: str, status: Status | None) -> None:
    if isinstance(error, ProtocolError) and error.rpc_code == INVALID_PARAMS and not error.fix:
        error.fix = f"see its arguments: toolway tools {tool} --json; what is not text is written name:=json"
    if status is not None and status.state != "ready":
        for line in last_lines(status.stderr):
            error.add_note(line)


def _progress(output: Output, tool: str, update: Callable[[str], None]) -> OnProgress:
    def on_progress(progress: float, total: float | None, message: str | None) -> None:
        share = f"{progress:g}/{total:g}" if total else f"{progress:g}"
        text = f"{tool}: {share} {message or ''}".rstrip()
        update(f"{_bar(progress / total)} {text}" if total else text)
        if output.verbose:
            output.say(text)

    return on_progress


def _bar(share: float) -> str:
    done = round(max(0.0, min(1.0, share)) * _BAR)
    return "━" * done + "─" * (_BAR - done)


def _print(output: Output, reply: Reply, raw: bool) -> None:
    if raw:
        output.json(reply.raw)
    elif output.as_json:
        output.json(_facts(reply))
    else:
        if reply.is_error:
            output.say(f"✗ {reply.server}.{reply.name} says that it failed:", "red")
        output.text_of_tool("\n".join(_blocks(reply)))


def _facts(reply: Reply) -> dict[str, Any]:
    return {
        "server": reply.server,
        "tool": reply.name,
        "is_error": reply.is_error,
        "text": reply.text,
        "data": reply.data,
        "content": reply.content,
        "seconds": round(reply.seconds, 6),
        "attempts": reply.attempts,
        "from_cache": reply.from_cache,
    }


def _blocks(reply: Reply) -> Iterator[str]:
    """The answer for a person: text as it is, the rest by what it is."""
    if not reply.content and reply.data is not None:
        yield json.dumps(reply.data, ensure_ascii=False, indent=2)
    for block in reply.content:
        yield _block(block)


def _block(block: dict[str, Any]) -> str:
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
