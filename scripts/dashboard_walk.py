"""Browser test of a real gateway's dashboard in headless Chromium, during good and failing calls.

python scripts/dashboard_walk.py                       a few test servers
python scripts/dashboard_walk.py --installed DIR       also every real server of the corpus
python scripts/dashboard_walk.py --many                also 200 servers with 5,000 tools in total
python scripts/dashboard_walk.py --cluster             with a gateway that is the only node of a cluster
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from toolway.config.editing.document import Edit, apply_edit, read_file_bytes
from toolway.errors import CallError
from toolway.hub.hub import Hub

ROOT = Path(__file__).resolve().parent.parent
WALK = ROOT / "dashboard" / "walk"
DEMO = ROOT / "src" / "toolway" / "cli" / "demo" / "server.py"
CANARY = "sk-canary-4f1d9e0b77c24a53"
AGENT_PROMPT = "Cancel the orders that are late"
SERVERS, TOOLS = 200, 25
Json = dict[str, Any]


def main() -> int:
    options = _options()
    missing = _missing()
    if missing:
        print(f"skipped: {missing}")
        return 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        servers = _own()
        if options.many:
            servers |= _many(stack)
        if options.installed is not None:
            servers |= _corpus(options.installed, folder)
        proxy, extra = _free_port(), _free_port()
        stack.enter_context(_Process([sys.executable, str(WALK / "bad_servers.py"), "many", str(extra), "1", "2"]))
        file = _file(folder, servers, proxy)
        url, token = _gateway(stack, folder, file, _cluster(folder) if options.cluster else ())
        _wait(url, token, len(servers), 180)
        print(f"{len(servers)} servers behind {url}", flush=True)
        load = stack.enter_context(_load(url, token))
        agent = "" if _lacks_agents() else AGENT_PROMPT
        if agent:
            stack.enter_context(_Process([sys.executable, __file__, "--agent", str(folder / "state" / "runs.db")]))
        ports = {"proxy": proxy, "extra": extra}
        code = _walk(url, token, agent, options.only, ports, many=options.many, cluster=options.cluster)
        load.terminate()
        return code


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--installed", type=Path, metavar="DIR", help="folder of the corpus that interop/install.py installed"
    )
    parser.add_argument("--many", action="store_true", help=f"{SERVERS} servers with {TOOLS} tools each")
    parser.add_argument(
        "--cluster", action="store_true", help="start the gateway as node of a cluster, with a SQLite database"
    )
    parser.add_argument("--only", default="", metavar="PATTERN", help="only steps whose names match")
    parser.add_argument("--load", nargs=2, metavar=("URL", "TOKEN"), help=argparse.SUPPRESS)
    parser.add_argument("--agent", metavar="JOURNAL", help=argparse.SUPPRESS)
    return parser.parse_args()


def _missing() -> str:
    if shutil.which("node") is None or not (ROOT / "dashboard" / "node_modules" / "playwright-core").is_dir():
        return "Node or dashboard/node_modules is missing (cd dashboard && npm install)"
    named = os.environ.get("CHROMIUM")
    known = (named, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")
    return "" if any(path and Path(path).exists() for path in known) else "Chromium not found"


# -- servers ----------------------------------------------------------------------------------------------------------


def _own() -> Json:
    demo = {name: {"command": sys.executable, "args": [str(DEMO), name]} for name in ("weather", "shop", "payments")}
    bad = str(WALK / "bad_servers.py")
    hostile = {"command": sys.executable, "args": [bad, "hostile"]}
    leaky = {"command": sys.executable, "args": [bad, "leaky"], "env": {"CRM_API_KEY": CANARY}}
    return {**demo, "hostile": hostile, "crm": leaky}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _many(stack: ExitStack) -> Json:
    port = _free_port()
    command = [sys.executable, str(WALK / "bad_servers.py"), "many", str(port), str(SERVERS), str(TOOLS)]
    stack.enter_context(_Process(command))
    return {f"many-{number}": {"url": f"http://127.0.0.1:{port}/{number}"} for number in range(SERVERS)}


def _corpus(installed: Path, folder: Path) -> Json:
    sys.path.insert(0, str(ROOT / "interop"))
    import corpus
    from one_endpoint import entry_of

    if not corpus.DEFAULT_SERVERS.exists():
        print("skipped: the list of real servers is missing")
        return {}
    found = corpus.load(corpus.read_packages(corpus.DEFAULT_SERVERS), installed=installed.resolve(), work=folder)
    for server in found:
        corpus.make_work(server.work)
    return {server.name: entry_of(server) for server in found}


def _file(folder: Path, servers: Json, proxy: int) -> Path:
    """Write the config file, with an earlier version for the rollback test."""
    file = folder / "mcp.json"
    (folder / "flows").mkdir(exist_ok=True)
    steps = [{"name": "ok", "approve": "Walk on?"}, {"name": "note", "set": {"walked": True}}]
    (folder / "flows" / "walk.yaml").write_text(json.dumps({"name": "walk", "steps": steps}))
    flows: Json = {"workflows": [str(folder / "flows" / "*.yaml")]}
    listed = [f"{sys.executable} {DEMO}"]  # a command that may be added in the dashboard
    flows["gateway"] = {"origins": [f"http://127.0.0.1:{proxy}"], "allowedCommands": listed}
    flows["addresses"] = {"allow": ["127.0.0.1"]}
    for block in (flows, {**flows, "toolsets": {"reading": {"tools": ["weather.*"]}}}):
        text = json.dumps({"mcpServers": servers, "toolway": block}, indent=2)
        apply_edit(Edit(file, read_file_bytes(file), text.encode()), folder / "toolway" / "backups")
    return file


# -- gateway ----------------------------------------------------------------------------------------------------------


def _cluster(folder: Path) -> tuple[str, ...]:
    """Return the cluster options. A single node works without NATS."""
    (folder / "cluster.key").write_text("5f" * 32)
    names = ("--node", "walk", "--labels", "gpu,region=eu")
    key = ("--cluster-key-file", str(folder / "cluster.key"))
    return ("--cluster", "nats://127.0.0.1:1", "--database", f"sqlite:///{folder}/cluster.db", *key, *names)


def _gateway(stack: ExitStack, folder: Path, file: Path, more: tuple[str, ...]) -> tuple[str, str]:
    os.environ |= {"TOOLWAY_STATE": str(folder / "state"), "XDG_STATE_HOME": str(folder)}
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    words = ["serve", "-c", str(file), "--port", "0", "--json", "--quiet", "--drain-delay", "0", *more]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = stack.enter_context(_Process([sys.executable, "-m", "toolway.cli", *words], **quiet))
    assert process.stdout is not None
    started = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
    return started["url"].removesuffix("/mcp"), (folder / "state" / "token").read_text().strip()


class _Process:
    """Process that is stopped with the test, and killed if it does not stop."""

    def __init__(self, command: list[str], **more: Any) -> None:
        self._made: subprocess.Popen[str] = subprocess.Popen(command, text=True, **more)

    def __enter__(self) -> subprocess.Popen[str]:
        return self._made

    def __exit__(self, *_: object) -> None:
        self._made.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._made.wait(30)
        self._made.kill()
        self._made.wait()
        if self._made.stdout is not None:
            self._made.stdout.close()


def _ask(url: str, token: str, method: str, path: str) -> Json:
    from urllib.request import Request, urlopen

    request = Request(f"{url}/admin/{path}", method=method, headers={"Authorization": f"Bearer {token}"})
    with urlopen(request, timeout=30) as response:
        found: Json = json.load(response)
        return found


def _wait(url: str, token: str, count: int, seconds: float) -> None:
    """Wait until all servers but the failing one are ready, or until the timeout."""
    end = time.monotonic() + seconds
    states: list[str] = []
    while time.monotonic() < end:
        states = [server["state"] for server in _ask(url, token, "GET", "servers")["servers"]]
        if states.count("ready") >= count - 1 and "starting" not in states:
            return
        time.sleep(1)
    print(
        f"not all servers are ready after {seconds:.0f} s: { ({state: states.count(state) for state in set(states)}) }"
    )


# -- calls and browser ------------------------------------------------------------------------------------------------


def _load(url: str, token: str) -> _Process:
    return _Process([sys.executable, __file__, "--load", url, token])


async def call_forever(url: str, token: str) -> None:
    """Make good and failing calls through MCP, about ten per second."""
    names = ["weather.forecast", "weather.stations", "shop.find_order", "hostile.speak", "hostile.fail", "crm.find"]
    headers = {"Authorization": f"Bearer {token}"}
    servers = {name.partition(".")[0] for name in names}
    endpoints = {name: {"url": f"{url}/mcp/server/{name}", "headers": headers} for name in servers}
    async with Hub(endpoints, catalog_storage=None) as hub:
        while True:
            for name in names:
                with suppress(CallError):
                    await hub.call_tool(name, {}, timeout=5)
                await asyncio.sleep(0.1)


def _lacks_agents() -> bool:
    from importlib.util import find_spec

    return find_spec("pydantic_ai") is None


async def run_agent(journal: str) -> None:
    """Let a fake model read an order with a long answer, and cancel two: both cancellations need approval."""
    from toolway.agents import Agent, Budget
    from toolway.testing.fake_llm import FakeLLM, ToolUse, Turn

    os.environ["OPENAI_API_KEY"] = CANARY
    turns: list[Turn | str] = [
        Turn(text="I look at the order.", calls=[ToolUse("shop__find_order", {"number": 7})]),
        Turn(
            text=f"<img src=x onerror=window.__owned=8> {CANARY} {'All of it is late. ' * 100}",
            calls=[ToolUse("shop__cancel_order", {"number": 7}), ToolUse("shop__cancel_order", {"number": 8})],
        ),
        "One order is cancelled.",
    ]
    server = {"command": sys.executable, "args": [str(DEMO), "shop"]}
    with FakeLLM(turns) as llm:
        async with Hub({"shop": server}, catalog_storage=None) as hub:
            options: Json = {"base_url": llm.openai_url, "budget": Budget(usd=0.5, calls=10), "journal": journal}
            async with Agent("openai-chat:gpt-4o", hub, tools=["shop.*"], **options) as agent:
                run = await agent.start(AGENT_PROMPT, caller="walk")
                await run.result()


def _walk(url: str, token: str, agent: str, only: str, ports: dict[str, int], *, many: bool, cluster: bool) -> int:
    link = url + _ask(url, token, "POST", "dashboard-links")["path"]
    given = {
        "link": link,
        "failing": "crm",
        "reason": "exit code 1",
        "tool": "weather.forecast",
        "sentence": "will it rain in the city tomorrow",
        "arguments": {"city": "Porto", "days": 2},
        "canary": CANARY,
        "hostile": "hostile",
        "agent": agent,
        "only": only,
        "proxy": ports["proxy"],
        "added": f"http://127.0.0.1:{ports['extra']}/0",
        "listed": [sys.executable, str(DEMO), "other"],
        "many": many,
        "cluster": cluster,
    }
    return subprocess.run(["node", str(WALK / "walk.mjs"), json.dumps(given)], check=False).returncode


if __name__ == "__main__":
    chosen = _options()
    if chosen.agent:
        with suppress(KeyboardInterrupt):
            asyncio.run(run_agent(chosen.agent))
    elif chosen.load:
        with suppress(KeyboardInterrupt):
            asyncio.run(call_forever(*chosen.load))
    else:
        sys.exit(main())
