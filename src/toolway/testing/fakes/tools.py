"""The well-behaved tools.

A tool is a function of the server and the call. It returns a result, or is a generator of steps that returns one.
"""

from __future__ import annotations

import json
import os

from toolway.testing.fakes import asks, children
from toolway.testing.fakes.call import Wait
from toolway.testing.fakes.catalog import UNKNOWN
from toolway.testing.fakes.wire import INVALID_PARAMS, RpcError, notification

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from toolway.testing.fakes.call import Call, Steps
    from toolway.testing.fakes.server import Server
    from toolway.testing.fakes.wire import Json

    Run: TypeAlias = Callable[[Server, Call], Json | Steps]

_READ = {"readOnlyHint": True, "idempotentHint": True, "destructiveHint": False}
_UNSAFE = {"readOnlyHint": False, "idempotentHint": False, "destructiveHint": True}


class Tool:
    """A tool's definition and what it does."""

    def __init__(self, name: str, run: Run, unsafe: bool, properties: dict[str, Any]) -> None:
        self.run = run
        self.definition: Json = {
            "name": name,
            "title": name.replace("_", " ").capitalize(),
            "description": run.__doc__ or name,
            "inputSchema": {"type": "object", "properties": properties, "x-vendor": None},
            "annotations": {**(_UNSAFE if unsafe else _READ), "category": "fake"},
            **UNKNOWN,
        }


TOOLS: dict[str, Tool] = {}


def tool(*names: str, unsafe: bool = False, **properties: str | Json) -> Callable[[Run], Run]:
    """Register a tool under `names`, its arguments given as name=type or name=schema."""

    def register(run: Run) -> Run:
        schemas = {key: {"type": value} if isinstance(value, str) else value for key, value in properties.items()}
        for name in names:
            TOOLS[name] = Tool(name, run, unsafe, schemas)
        return run

    return register


def definitions(server: Server) -> list[Json]:
    """All tools of a server, in a fixed order."""
    plain = [{**TOOLS["echo"].definition, "name": name, "title": name} for name in server.extra_tools]
    return [*(item.definition for item in TOOLS.values()), *server.malformed_tools, *plain]


def run(server: Server, call: Call) -> Json | Steps:
    name = call.params.get("name")
    if not isinstance(name, str) or (name not in TOOLS and name not in server.extra_tools):
        raise RpcError(INVALID_PARAMS, f"Unknown tool: {name}")
    server.stats.calls[name] = server.stats.calls.get(name, 0) + 1
    return TOOLS[name if name in TOOLS else "echo"].run(server, call)


@tool("echo", text="string", nonce="string", tag={"type": "string", "x-mcp-header": "Tag"})
def echo(server: Server, call: Call) -> Json:
    """Says back its text."""
    text = str(call.arguments.get("text", ""))
    return call.say(text, text=text)


@tool("add", a="number", b="number", nonce="string")
def add(server: Server, call: Call) -> Json:
    """Adds two numbers."""
    total = call.arguments["a"] + call.arguments["b"]
    return call.say(str(total), sum=total)


@tool("sleep", seconds="number", nonce="string")
def sleep(server: Server, call: Call) -> Steps:
    """Answers after so many seconds, and holds up nobody else."""
    seconds = float(call.arguments.get("seconds", 1))
    yield Wait(seconds)
    return call.say(f"slept {seconds} s")


@tool("fail", text="string", nonce="string")
def fail(server: Server, call: Call) -> Json:
    """Fails as tools fail: with a result that says so."""
    return {**call.say(str(call.arguments.get("text", "failed as asked"))), "isError": True}


@tool("progress", n="integer", seconds="number", nonce="string")
def progress(server: Server, call: Call) -> Steps:
    """Reports progress n times, so many seconds apart, then answers."""
    steps = int(call.arguments.get("n", 3))
    token = call.meta.get("progressToken")
    for step in range(1, steps + 1):
        if token is not None:
            params = {"progressToken": token, "progress": step, "total": steps, "message": f"step {step}"}
            call.send(notification("notifications/progress", params))
        yield Wait(float(call.arguments.get("seconds", 0)))
    return call.say(f"{steps} steps", steps=steps)


@tool("counter", unsafe=True, call="string", seconds="number", nonce="string")
def counter(server: Server, call: Call) -> Json | Steps:
    """Has an effect: a durable line of call and nonce in the effects file, so many seconds before it answers."""
    answer = call.say(str(count := server.effect(call)), count=count)
    seconds = float(call.arguments.get("seconds", 0))
    return _later(seconds, answer) if seconds else answer


def _later(seconds: float, answer: Json) -> Steps:
    yield Wait(seconds)
    return answer


@tool("bad", unsafe=True, mode="string", effect="boolean", nonce="string")
@tool("bad_read", mode="string", effect="boolean", nonce="string")
def bad(server: Server, call: Call) -> Json:
    """Misbehaves in the given mode, or in the one the server was started with; has an effect first if asked."""
    if call.arguments.get("effect"):
        server.effect(call)
    return call.say("well behaved")


@tool("pid")
def pid(server: Server, call: Call) -> Json:
    """Its process id, and those of the processes it started."""
    return call.say(str(os.getpid()), pid=os.getpid(), children=server.children)


@tool("env")
def env(server: Server, call: Call) -> Json:
    """Its environment, as JSON."""
    return call.say(json.dumps(dict(os.environ)))


@tool("stats")
def stats(server: Server, call: Call) -> Json:
    """What the server has seen so far, as JSON."""
    seen = server.stats.as_json()
    return call.say(json.dumps(seen), **seen)


@tool("change_tools", unsafe=True)
def change_tools(server: Server, call: Call) -> Json:
    """Adds a tool and says that the list changed."""
    name = f"extra_{len(server.extra_tools) + 1}"
    server.extra_tools.append(name)
    server.broadcast("notifications/tools/list_changed", "toolsListChanged")
    return call.say(name, added=name)


@tool("crash", unsafe=True, code="integer", nonce="string")
def crash(server: Server, call: Call) -> Json:
    """Ends the server with this code instead of answering."""
    server.exit(int(call.arguments.get("code", 1)))


@tool("big", n="integer", nonce="string")
def big(server: Server, call: Call) -> Json:
    """Answers with n bytes of text."""
    return call.say("x" * int(call.arguments["n"]))


@tool("unknown_fields", nonce="string")
def unknown_fields(server: Server, call: Call) -> Json:
    """Answers with fields and a kind of content that no specification knows."""
    known = call.say("known")
    video = {"type": "video", "data": "AAEC", "mimeType": "video/mp4", "frames": [1, None], **UNKNOWN}
    known["content"] = [{**known["content"][0], **UNKNOWN}, video]
    return {**known, **UNKNOWN, "futureField": [None, 1.5], "_meta": {"example.org/vendor": {"nothing": None}}}


@tool("spawn_children", unsafe=True, nonce="string")
def spawn_children(server: Server, call: Call) -> Json:
    """Starts a child, and a daemon in a session of its own that ignores SIGTERM; says their process ids."""
    plain, daemon = children.start_plain(), children.start_daemon()
    server.children += [plain, daemon]
    return call.say(f"{plain} {daemon}", child=plain, daemon=daemon)


tool("elicit", rounds="integer", nonce="string")(asks.elicit)
tool("sample", nonce="string")(asks.sample)
tool("roots", nonce="string")(asks.roots)
