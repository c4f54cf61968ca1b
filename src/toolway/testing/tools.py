"""Tools of the fake server that behave well.

A tool is a function of the server and the call. It returns a result, or it is a generator of steps that returns one.
The docstring of the function is the description of the tool.

The tools `elicit`, `sample` and `roots` need input from the client. In the legacy era, the server sends a request in
the middle of the call. In the modern era, the server returns `input_required`, and the client repeats the call with the
input. The server keeps no state between rounds: all of it is in `requestState`.
"""

from __future__ import annotations

import binascii
import json
import os
import zlib

from toolway.testing import stdio_faults
from toolway.testing.server import UNKNOWN_FIELDS, ServerRequest, Wait
from toolway.testing.wire import INVALID_PARAMS, MISSING_CAPABILITY, RpcError, as_object, make_notification

TYPE_CHECKING = False  # importing typing would take a third of the start

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from toolway.testing.server import FakeCall, FakeServer, Steps
    from toolway.testing.wire import Json

    ToolFunction: TypeAlias = Callable[[FakeServer, FakeCall], Json | Steps]

_READ_ONLY_HINTS = {"readOnlyHint": True, "idempotentHint": True, "destructiveHint": False}
_UNSAFE_HINTS = {"readOnlyHint": False, "idempotentHint": False, "destructiveHint": True}


class FakeTool:
    """Tool of the fake server: its MCP definition and the function that runs it."""

    def __init__(self, name: str, run: ToolFunction, unsafe: bool, properties: dict[str, Any]) -> None:
        self.run = run
        self.definition: Json = {
            "name": name,
            "title": name.replace("_", " ").capitalize(),
            "description": run.__doc__ or name,
            "inputSchema": {"type": "object", "properties": properties, "x-vendor": None},
            "annotations": {**(_UNSAFE_HINTS if unsafe else _READ_ONLY_HINTS), "category": "fake"},
            **UNKNOWN_FIELDS,
        }


TOOLS: dict[str, FakeTool] = {}


def register_tool(
    *names: str, unsafe: bool = False, **properties: str | Json
) -> Callable[[ToolFunction], ToolFunction]:
    """Return a decorator that registers a function as a tool of the fake server, under `names`.

    The tool's arguments are given as name=type or name=schema.
    """

    def register(run: ToolFunction) -> ToolFunction:
        schemas = {key: {"type": value} if isinstance(value, str) else value for key, value in properties.items()}
        for name in names:
            TOOLS[name] = FakeTool(name, run, unsafe, schemas)
        return run

    return register


def definitions(server: FakeServer) -> list[Json]:
    """Return the MCP definitions of all tools that a fake server offers, in a fixed order."""
    extra = [{**TOOLS["echo"].definition, "name": name, "title": name} for name in server.extra_tools]
    return [*(item.definition for item in TOOLS.values()), *server.malformed_tools, *extra]


def run(server: FakeServer, call: FakeCall) -> Json | Steps:
    name = call.params.get("name")
    if not isinstance(name, str) or (name not in TOOLS and name not in server.extra_tools):
        raise RpcError(INVALID_PARAMS, f"Unknown tool: {name}")
    server.stats.calls[name] = server.stats.calls.get(name, 0) + 1
    return TOOLS[name if name in TOOLS else "echo"].run(server, call)


@register_tool("echo", text="string", nonce="string", tag={"type": "string", "x-mcp-header": "Tag"})
def echo(server: FakeServer, call: FakeCall) -> Json:
    """Return the given text."""
    text = str(call.arguments.get("text", ""))
    return call.text_result(text, text=text)


@register_tool("add", a="number", b="number", nonce="string")
def add(server: FakeServer, call: FakeCall) -> Json:
    """Return the sum of two numbers."""
    total = call.arguments["a"] + call.arguments["b"]
    return call.text_result(str(total), sum=total)


@register_tool("sleep", seconds="number", nonce="string")
def sleep(server: FakeServer, call: FakeCall) -> Steps:
    """Respond after `seconds`, without blocking other calls."""
    seconds = float(call.arguments.get("seconds", 1))
    yield Wait(seconds)
    return call.text_result(f"slept {seconds} s")


@register_tool("fail", text="string", nonce="string")
def fail(server: FakeServer, call: FakeCall) -> Json:
    """Return a tool error with the given text."""
    return {**call.text_result(str(call.arguments.get("text", "failed as asked"))), "isError": True}


@register_tool("progress", n="integer", seconds="number", nonce="string")
def progress(server: FakeServer, call: FakeCall) -> Steps:
    """Report progress n times, `seconds` apart, then respond."""
    steps = int(call.arguments.get("n", 3))
    token = call.meta.get("progressToken")
    for step in range(1, steps + 1):
        if token is not None:
            params = {"progressToken": token, "progress": step, "total": steps, "message": f"step {step}"}
            call.send(make_notification("notifications/progress", params))
        yield Wait(float(call.arguments.get("seconds", 0)))
    return call.text_result(f"{steps} steps", steps=steps)


@register_tool("counter", unsafe=True, call="string", seconds="number", nonce="string")
def counter(server: FakeServer, call: FakeCall) -> Json | Steps:
    """Append call and nonce to the effects file durably, wait `seconds`, then return the count."""
    result = call.text_result(str(count := server.record_effect(call)), count=count)
    seconds = float(call.arguments.get("seconds", 0))
    return _respond_after(seconds, result) if seconds else result


def _respond_after(seconds: float, result: Json) -> Steps:
    yield Wait(seconds)
    return result


@register_tool("bad", unsafe=True, mode="string", effect="boolean", nonce="string")
@register_tool("bad_read", mode="string", effect="boolean", nonce="string")
def bad(server: FakeServer, call: FakeCall) -> Json:
    """Misbehave by fault mode `mode` or the server's mode; with `effect`, have an effect first."""
    if call.arguments.get("effect"):
        server.record_effect(call)
    return call.text_result("well behaved")


@register_tool("pid")
def pid(server: FakeServer, call: FakeCall) -> Json:
    """Return the process ids of the server and of the processes it started."""
    return call.text_result(str(os.getpid()), pid=os.getpid(), children=server.child_pids)


@register_tool("env")
def env(server: FakeServer, call: FakeCall) -> Json:
    """Return the environment of the server as JSON."""
    return call.text_result(json.dumps(dict(os.environ)))


@register_tool("stats")
def stats(server: FakeServer, call: FakeCall) -> Json:
    """Return the counters of the server as JSON: requests, calls, connections, effects."""
    counters = server.stats.to_json()
    return call.text_result(json.dumps(counters), **counters)


@register_tool("change_tools", unsafe=True)
def change_tools(server: FakeServer, call: FakeCall) -> Json:
    """Add a tool and notify clients that the list changed."""
    name = f"extra_{len(server.extra_tools) + 1}"
    server.extra_tools.append(name)
    server.broadcast("notifications/tools/list_changed", "toolsListChanged")
    return call.text_result(name, added=name)


@register_tool("crash", unsafe=True, code="integer", nonce="string")
def crash(server: FakeServer, call: FakeCall) -> Json:
    """End the server with this exit code instead of responding."""
    server.exit(int(call.arguments.get("code", 1)))


@register_tool("big", n="integer", nonce="string")
def big(server: FakeServer, call: FakeCall) -> Json:
    """Return a text of n bytes."""
    return call.text_result("x" * int(call.arguments["n"]))


@register_tool("unknown_fields", nonce="string")
def unknown_fields(server: FakeServer, call: FakeCall) -> Json:
    """Return fields and a content type that no specification defines."""
    known = call.text_result("known")
    video = {"type": "video", "data": "AAEC", "mimeType": "video/mp4", "frames": [1, None], **UNKNOWN_FIELDS}
    known["content"] = [{**known["content"][0], **UNKNOWN_FIELDS}, video]
    return {**known, **UNKNOWN_FIELDS, "futureField": [None, 1.5], "_meta": {"example.org/vendor": {"nothing": None}}}


@register_tool("spawn_children", unsafe=True, nonce="string")
def spawn_children(server: FakeServer, call: FakeCall) -> Json:
    """Start a child and a daemon (own session, ignores SIGTERM); return their process ids."""
    plain, daemon = stdio_faults.spawn_child(), stdio_faults.spawn_daemon()
    server.child_pids += [plain, daemon]
    return call.text_result(f"{plain} {daemon}", child=plain, daemon=daemon)


# -- tools that need input from the client -----------------------------------------------------------------------------


@register_tool("elicit", rounds="integer", nonce="string")
def elicit(server: FakeServer, call: FakeCall) -> Json | Steps:
    """Ask the user for a name, `rounds` times in a row, and return the answers."""
    rounds = int(call.arguments.get("rounds", 1))
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    requests = [{"message": f"Round {round}: your name?", "requestedSchema": schema} for round in range(1, rounds + 1)]
    if call.modern:
        requests = [{"mode": "form", **request} for request in requests]
    return _request_input(call, "elicitation", "elicitation/create", requests)


@register_tool("sample", nonce="string")
def sample(server: FakeServer, call: FakeCall) -> Json | Steps:
    """Ask the client's model for a completion and return it."""
    message = {"role": "user", "content": {"type": "text", "text": "Say something."}}
    return _request_input(call, "sampling", "sampling/createMessage", [{"messages": [message], "maxTokens": 100}])


@register_tool("roots", nonce="string")
def roots(server: FakeServer, call: FakeCall) -> Json | Steps:
    """Ask the client for its MCP roots and return them."""
    return _request_input(call, "roots", "roots/list", [{}])


def _request_input(call: FakeCall, capability: str, method: str, requests: list[Json]) -> Json | Steps:
    if capability not in call.capabilities:
        if call.modern:
            needed: Json = {capability: {}}
            raise RpcError(MISSING_CAPABILITY, f"client lacks {capability}", {"requiredCapabilities": needed})
        return {**call.text_result(f"client lacks {capability}"), "isError": True}
    return (
        _request_input_modern(call, method, requests) if call.modern else _request_input_legacy(call, method, requests)
    )


def _request_input_legacy(call: FakeCall, method: str, requests: list[Json]) -> Steps:
    answers = []
    for request in requests:
        response = yield ServerRequest(method, request)
        answers.append(response["result"] if "result" in response else {"error": response.get("error")})
    return _answers_result(call, answers)


def _request_input_modern(call: FakeCall, method: str, requests: list[Json]) -> Json:
    answers = _read_answers(call)
    key = f"ask-{len(answers) + 1}"
    responses = as_object(call.params.get("inputResponses"))
    has_state = call.params.get("requestState") is not None
    if has_state and key in responses:
        answers.append(responses[key])
        key = f"ask-{len(answers) + 1}"
    if len(answers) >= len(requests):
        return _answers_result(call, answers)
    return {
        "resultType": "input_required",
        "inputRequests": {key: {"method": method, "params": requests[len(answers)]}},
        "requestState": _encode_state({"answers": answers, "arguments": _arguments_digest(call.arguments)}),
    }


def _read_answers(call: FakeCall) -> list[Any]:
    state = call.params.get("requestState")
    if state is None:
        if "inputResponses" in call.params:
            raise RpcError(INVALID_PARAMS, "inputResponses without requestState")
        return []
    decoded = _decode_state(state)
    if decoded["arguments"] != _arguments_digest(call.arguments):
        raise RpcError(INVALID_PARAMS, "arguments of the retry differ")
    answers: list[Any] = decoded["answers"]
    return answers


def _answers_result(call: FakeCall, answers: list[Any]) -> Json:
    text = json.dumps(answers[0] if len(answers) == 1 else answers)
    return call.text_result(text, answers=answers)


def _arguments_digest(value: Any) -> int:
    return zlib.crc32(json.dumps(value, sort_keys=True).encode())


def _encode_state(state: Json) -> str:
    text = binascii.b2a_base64(json.dumps(state).encode(), newline=False).decode()
    return f"{text}.{zlib.crc32(text.encode())}"


def _decode_state(encoded: Any) -> Json:
    text, _, checksum = str(encoded).rpartition(".")
    if checksum != str(zlib.crc32(text.encode())):
        raise RpcError(INVALID_PARAMS, "requestState was altered")
    state: Json = json.loads(binascii.a2b_base64(text))
    return state
