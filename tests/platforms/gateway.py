"""`toolway serve`, and the commands that ask a gateway."""

from __future__ import annotations

import gzip
import json
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from typing import Any

from tests.platforms.checks import Message, check
from tests.platforms.home import FAKE, IS_WINDOWS, Gateway, Home, wait_until

ASK = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "check", "version": "1"}}
POLICY = """permit (principal, action, resource);
forbid (principal, action == Action::"call", resource == Tool::"fake.add");
"""


@check("Gateway", "`toolway serve`, and commands through it", quick=True)
def serve(home: Home) -> str:
    home.serve_these()
    gateway = home.start_gateway()
    assert gateway.get("/healthz")[0] == 200
    said = home.toolway("call", "fake.echo", "text=ü")
    assert "using the gateway" in said and "ü" in said
    home.toolway("ls")
    home.toolway("whoami")
    home.toolway("top")
    home.toolway("approvals", "ls")
    return "healthy"


@check("Gateway", "API keys: create, list, use, limit to a server, revoke")
def keys(home: Home) -> str:
    home.serve_these({"fake": FAKE, "other": FAKE})
    gateway = home.start_gateway()
    assert gateway.get("/mcp/servers", token="tw_wrong")[0] == 401
    key = home.json("keys", "create", "ann", "--only", "server/fake")["token"]
    assert home.toolway("call", "fake.echo", "text=x", "-q", "--gateway", gateway.url, "--token", key).strip() == "x"
    home.toolway("call", "other.echo", "text=x", "--gateway", gateway.url, "--token", key, code=1)
    (row,) = [each for each in home.json("keys", "ls")["keys"] if each["name"] == "ann"]
    home.toolway("keys", "budgets")
    home.toolway("keys", "revoke", row["id"])
    home.toolway("call", "fake.echo", "text=x", "--gateway", gateway.url, "--token", key, code=6)
    return "a revoked key is rejected"


@check("Gateway", "a changed config file is applied while the gateway runs, and by `POST /admin/reload`")
def reload(home: Home) -> str:
    home.serve_these()
    gateway = home.start_gateway()
    home.toolway("add", "other", "--yes", "--", str(FAKE["command"]), *FAKE["args"])
    wait_until(lambda: "other" in gateway.servers(), "the gateway has the new server")
    home.toolway("rm", "other")
    assert gateway.get("/admin/reload", method="POST")[0] == 200
    assert "other" not in gateway.servers()
    return "added by the watch of the file, removed by a reload"


@check("Gateway", "a gateway that is asked to stop finishes its calls first")
def drain(home: Home) -> str:
    home.serve_these({"fake": {**FAKE, "args": [*FAKE["args"], "--effects", str(home.folder / "effects")]}})
    # On Windows, the program sends itself what a console would send for Ctrl-Break.
    words = ("serve", "--port", "0", "--json", "--drain-delay", "0")
    gateway = Gateway(home, home.start(*words, name="tests.platforms.programs.stoppable", stdin=subprocess.PIPE))
    home.toolway("call", "fake.echo", "text=x")
    answers: list[str] = []
    calling = threading.Thread(
        target=lambda: answers.append(home.toolway("call", "fake.sleep", "seconds:=4", "-q", "--timeout", "60"))
    )
    calling.start()
    wait_until(lambda: gateway.servers()["fake"]["in_flight"], "the call is running")
    if IS_WINDOWS:
        assert gateway.process.stdin is not None
        gateway.process.stdin.write(b"stop\n")
        gateway.process.stdin.flush()
    else:
        gateway.process.send_signal(signal.SIGTERM)
    assert gateway.process.wait(60) == 0
    calling.join()
    assert len(answers) == 1, "the call failed"
    return "the call got its result, exit code 0"


@check("Gateway", "the dashboard: its page, scripts and styles, and `toolway ui`", quick=True)
def dashboard(home: Home) -> str:
    home.serve_these()
    gateway = home.start_gateway()
    status, page = gateway.get("/dashboard/")
    assert status == 200
    files = re.findall(rb'(?:src|href)="([^"]+\.(?:js|css|svg|png|ico))"', page)
    types = set()
    for file in files:
        request = urllib.request.Request(f"{gateway.url}/dashboard/{file.decode().removeprefix('/dashboard/')}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            data = answer.read()
            types.add(answer.headers["Content-Type"].partition(";")[0])
            assert len(gzip.decompress(data) if answer.headers["Content-Encoding"] == "gzip" else data) > 100
    assert {"text/css", "text/javascript"} <= types, types
    assert home.json("ui")["url"].startswith(gateway.url)
    return f"{len(files)} files"


@check("Gateway", "`toolway serve --stdio`: a client that starts Toolway as its server", quick=True)
def serve_stdio(home: Home) -> str:
    home.serve_these()
    lines: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": ASK},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "fake__echo", "arguments": {"text": "ü"}}},
        {"id": 3, "method": "tools/list"},
    ]
    process = home.start("serve", "--stdio", stdin=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    answers = {}
    # The call comes first: it waits for the server, which a list does only for a moment.
    for line in lines:
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **line}).encode() + b"\n")
        process.stdin.flush()
        while "id" in line and line["id"] not in answers:
            answer = json.loads(process.stdout.readline())
            answers[answer.get("id")] = answer
    assert answers[2]["result"]["content"][0]["text"] == "ü"
    tools = answers[3]["result"]["tools"]
    assert tools
    process.stdin.close()
    assert process.wait(60) == 0
    return f"{len(tools)} tools; it ends with its client"


@check("Gateway", "`toolway serve --workers 2`", quick=True)
def workers(home: Home) -> str | Message:
    home.serve_these()
    if sys.platform != "linux":
        said, *_ = home.toolway("serve", "--workers", "2", code=3).splitlines()
        return Message(said.removeprefix("✗ "))
    gateway = home.start_gateway("--workers", "2")
    home.toolway("call", "fake.echo", "text=x")
    assert gateway.get("/readyz")[0] == 200
    return "ready"


@check("Gateway", "`toolway calls`: list, show and replay what was called")
def calls(home: Home) -> str:
    home.serve_these()
    home.start_gateway()
    home.toolway("call", "fake.echo", "text=once more")
    (call,) = home.json("calls")["calls"]
    home.toolway("calls", "show", call["id"])
    assert "once more" in home.toolway("calls", "replay", call["id"], "--yes")
    return "repeated with the same arguments"


@check("Gateway", "a call needs an approval, and `toolway approvals` gives it")
def approvals(home: Home) -> str:
    home.serve_these(approve={"fake.echo": "admin"})
    home.start_gateway()
    assert "E-APPROVAL" in home.toolway("call", "fake.echo", "text=ü", code=1)
    (waiting,) = home.json("approvals", "ls")["requests"]
    home.toolway("approvals", "show", waiting["id"])
    home.toolway("approvals", "approve", waiting["id"])
    assert home.toolway("call", "fake.echo", "text=ü", "-q").strip() == "ü"
    home.toolway("call", "fake.echo", "text=other", code=1)
    other = next(each["id"] for each in home.json("approvals", "ls")["requests"] if each["id"] != waiting["id"])
    home.toolway("approvals", "deny", other, "not this one")
    return "one approved, one denied"


@check("Gateway", "a Cedar policy: check it, ask why, and a gateway that obeys it")
def policy(home: Home) -> str:
    home.write("policy.cedar", POLICY)
    home.serve_these(policy=str(home.folder / "policy.cedar"))
    home.toolway("policy", "check")
    home.toolway("policy", "why", "local", "fake.add")
    home.start_gateway()
    home.toolway("call", "fake.echo", "text=x")
    home.toolway("call", "fake.add", "a:=1", "b:=2", code=1)
    return "the forbidden call is rejected"
