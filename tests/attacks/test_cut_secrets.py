"""Attacks with a secret across the place where Toolway cuts a text of a server: no part of it may be seen."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolway import CallError, Hub
from toolway.config.masking import build_masker
from toolway.config.schema import Server
from toolway.errors import ToolError
from toolway.events import CallFinished
from toolway.gateway.mcp.pending_input import missing_capability_failure
from toolway.parts.agents.admin import AgentsAdmin
from toolway.parts.openapi import responses as api_responses
from toolway.parts.workflows.admin import RunsAdmin
from toolway.protocol.jsonrpc import parse_error
from toolway.telemetry.call_batch import limit_size
from toolway.types import ToolResult
from toolway.upstream.error_mapping import mask_error
from toolway.upstream.lists import fetch_all_pages
from toolway.upstream.status import _describe_failure
from toolway.upstream.transport import Disconnect
from toolway.upstream.transports import http_responses
from toolway.upstream.transports.stdio import StderrTail
from toolway.upstream.transports.websocket_connection import _describe_close

SECRET = "Tq7v/Lm2Xk9Zp4Rw8Yb6Nc1Vd"
MASK = build_masker([Server(command="x", env={"API_TOKEN": SECRET})])
_HTML = {"content-type": "text/html"}


def noise(text: str) -> str:
    tail = StderrTail(64 * 1024)
    tail.add_line(text.encode())
    return tail.text()


def end_of_stderr(text: str) -> str:
    tail = StderrTail(len(text) // 2)
    for start in range(0, len(text), 7):
        tail.feed(text[start : start + 7].encode())
    return tail.text()


def tool_error(text: str) -> str:
    error = ToolError("failed", server="x", tool="t", result=ToolResult("x", "t", {"content": [{"text": text}]}))
    mask_error(error, MASK)
    return error.detail


def call_row(text: str) -> str:
    event = limit_size(CallFinished("x", "resources/read", text, "ok", "yes", 0.1, detail=text))
    return f"{event.name}, {event.detail}"


def repeated_cursor(text: str) -> str:
    async def send(method: str, params: Any) -> Any:
        return {"tools": [], "nextCursor": text}

    async def fetch() -> str:
        return "".join((await fetch_all_pages(send, "tools"))[1])

    return anyio.run(fetch)


def rpc_error(text: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": text}}).encode()


def json_error(text: str) -> str:
    kind = {"content-type": "application/json"}
    return str(http_responses.error_for_status(500, kind, rpc_error(text), 1, in_session=False))


#: What shows the beginning or the end of a text of a server.
PLACES: dict[str, Callable[[str], str]] = {
    "a line of stdout": noise,
    "the end of stderr": end_of_stderr,
    "the last line of stderr": lambda text: _describe_failure(Disconnect("ended", "E-X", exit_code=1), "", MASK(text)),
    "a response that is not MCP": lambda text: str(
        http_responses.error_for_missing_response(200, _HTML, text.encode())
    ),
    "its content type": lambda text: str(http_responses.error_for_missing_response(200, {"content-type": text}, b"")),
    "the body of an error": lambda text: str(
        http_responses.error_for_status(500, _HTML, text.encode(), 1, in_session=False)
    ),
    "the body of an error, with invisible characters": lambda text: str(
        http_responses.error_for_status(500, _HTML, re.sub(r"(\.+)", "\u200b\\1", text).encode(), 1, in_session=False)
    ),
    "the body of an error with JSON": json_error,
    "a JSON-RPC error": lambda text: parse_error({"code": -1, "message": text})[1],
    "the error of an API": lambda text: str(api_responses.error_for_status(500, _HTML, text.encode(), [])),
    "a closed WebSocket": lambda text: _describe_close(1011, text),
    "the error of a tool": tool_error,
    "a row of calls": call_row,
    "a cursor": repeated_cursor,
    "a step of a run": lambda text: RunsAdmin(lambda: None, dict, MASK)._shown(text),
    "a text of an agent": lambda text: AgentsAdmin(None, None, dict, MASK, None, {})._text(text),  # type: ignore[arg-type]
    "a question that cannot be asked": lambda text: str(missing_capability_failure({"sampling"}, text).data["said"]),
}


def cut_of(show: Callable[[str], str], fill: str) -> int:
    """Return how many characters of a text are shown: where it is cut."""
    return show(fill * 70_000).count(fill)


@pytest.mark.attack("A2-F7")
@pytest.mark.parametrize("place", PLACES)
def test_cut_string_shows_no_part_of_a_secret(place: str) -> None:
    show = PLACES[place]
    size = cut_of(show, "~")
    assert 0 < size < 70_000 or place == "the end of stderr", "the text is not cut: this test tests nothing"
    total = 2000 if place == "the end of stderr" else 70_000
    middle = total // 2 if place == "the end of stderr" else size
    for start in range(max(0, middle - len(SECRET) - 2), middle + 3):
        text = "~" * start + SECRET + "~" * (total - start - len(SECRET))
        shown = MASK(f"failed: {show(text)}; next attempt in 2 s")
        found = [SECRET[at : at + 4] for at in range(len(SECRET) - 3) if SECRET[at : at + 4] in shown]
        assert not found, (start, shown[-200:])


PROGRAM = """
import os, sys, time
secret = os.environ["API_TOKEN"]
for place in range(1000 - len(secret) - 3, 1003):
    print("~" * place + secret + "~" * 2000, flush=True)
sys.stderr.write("at start: " + secret[:12]); sys.stderr.flush()
time.sleep(0.1)
print("this is not a message", flush=True)
time.sleep(0.1)
sys.stderr.write(secret[12:] + "\\n"); sys.stderr.flush()
sys.exit(3)
"""


@pytest.mark.anyio
@pytest.mark.attack("A2-F7")
async def test_process_output_shows_no_part_of_a_secret(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(PROGRAM)
    entry = {"command": sys.executable, "args": [str(tmp_path / "server.py")], "env": {"API_TOKEN": SECRET}}
    async with Hub({"x": entry}) as hub:
        with pytest.raises(CallError) as failed:
            await hub.call_tool("x.t", timeout=20)
        shown = f"{failed.value} {failed.value.detail} {hub.status()['x']}"
    assert "at start: ***" in shown
    assert not [SECRET[at : at + 4] for at in range(len(SECRET) - 3) if SECRET[at : at + 4] in shown], shown
