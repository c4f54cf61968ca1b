"""Demo gateway in a temporary folder, with simulated servers and endless calls."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from toolway.cli.dashboard_link import open_dashboard
from toolway.cli.exit_codes import ExitCode
from toolway.cli.gateway_process import build_doctor
from toolway.cli.output import Output
from toolway.config.editing.document import Edit, apply_edit, read_file_bytes
from toolway.config.loader import load_file
from toolway.errors import ToolwayError
from toolway.gateway.state_dir import StateDir
from toolway.hub.calls import HubCalls
from toolway.serve.process import GatewayProcess
from toolway.types import Call, Json

SERVER_SCRIPT: Final = Path(__file__).with_name("server.py")
KEY_HOLDERS: Final = ("alice", "build-robot", "support-agent")
#: (tool, relative frequency, arguments)
DEMO_CALLS: Final[Sequence[tuple[str, int, Json]]] = (
    ("weather.forecast", 9, {"city": "Lisbon", "days": 3}),
    ("weather.stations", 4, {"near": "Porto"}),
    ("shop.find_order", 8, {"number": 1042}),
    ("shop.place_order", 3, {"item": "lamp", "count": 1}),
    ("library.search_books", 8, {"query": "night", "limit": 3}),
    ("library.read_page", 5, {"book": "Night, volume 1", "page": 7}),
    ("payments.charge", 3, {"card": "demo", "amount": 12.5}),
    ("payments.refund", 1, {"payment": "p-1", "amount": 5}),
    ("pictures.sunset", 1, {"width": 120, "height": 60}),
    ("crm.find_contact", 1, {"name": "Ann"}),
)


def run_demo(output: Output, port: int, *, browser: bool) -> int:
    """Run the demo gateway until Ctrl-C. Its temporary folder is deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="toolway-demo-", ignore_cleanup_errors=True) as folder:
        os.environ["XDG_STATE_HOME"] = folder  # keeps the backups of the demo's config file out of the user's state
        with suppress(KeyboardInterrupt):
            asyncio.run(_run_gateway(output, Path(folder), port, browser))
    return ExitCode.OK


async def _run_gateway(output: Output, folder: Path, port: int, browser: bool) -> None:
    file = _write_config(folder)
    loaded = load_file(file)
    state = StateDir(folder / "state")
    os.environ["TOOLWAY_STATE"] = str(state.folder)
    keyring = state.open_key_store()
    for name in KEY_HOLDERS:
        keyring.create_key_sync(name, None, False, time.time())
    serving = GatewayProcess(loaded, state, doctor=build_doctor(file))
    call_tasks: set[asyncio.Task[None]] = set()

    def on_ready(url: str) -> None:
        callers = [key.to_principal().caller_id for key in keyring.list_keys()]
        call_tasks.add(asyncio.get_running_loop().create_task(_call_forever(serving.hub.calls, callers)))
        link = f"{url}{serving.gateway.dashboard_url()}"
        if output.as_json:
            output.print_raw_json({"url": link})
        else:
            open_dashboard(output, link, browser=browser)
            output.info("this is a demo; its servers are simulated and stop with it (Ctrl-C)", "dim")
        sys.stdout.flush()

    await serving.run("127.0.0.1", port, None, on_ready, 0.0)
    for task in call_tasks:
        task.cancel()


def _write_config(folder: Path) -> Path:
    """Write the demo's config file with a few earlier versions, and return its path."""
    file = folder / "mcp.json"
    (folder / "python").symlink_to(sys.executable)  # so the displayed command is the same on every machine
    (folder / "server.py").write_bytes(SERVER_SCRIPT.read_bytes())
    servers: Json = {
        name: _server_entry(folder, name) for name in ("weather", "shop", "library", "payments", "pictures")
    }
    servers["crm"] = {**_server_entry(folder, "broken"), "env": {"CRM_API_KEY": ""}}
    toolsets: Json = {
        "reading": {"tools": ["weather.*", "library.*"]},
        "sales": {"tools": ["shop.*", "!shop.cancel_order"]},
    }
    last: Json = {"mcpServers": servers, "toolway": {"toolsets": toolsets}}
    first = {"mcpServers": {name: servers[name] for name in ("weather", "shop")}}
    second = {"mcpServers": {**first["mcpServers"], "library": servers["library"]}, "toolway": {"toolsets": toolsets}}
    for version in (first, second, last):
        apply_edit(
            Edit(file, read_file_bytes(file), json.dumps(version, indent=2).encode() + b"\n"),
            folder / "toolway" / "backups",
        )
    return file


def _server_entry(folder: Path, behavior: str) -> Json:
    return {"command": str(folder / "python"), "args": [str(folder / "server.py"), behavior], "timeout": "5s"}


async def _call_forever(calls: HubCalls, callers: Sequence[str]) -> None:
    names = [(name, arguments) for name, weight, arguments in DEMO_CALLS for _ in range(weight)]
    running: set[asyncio.Task[None]] = set()
    while True:
        await asyncio.sleep(random.expovariate(6.0))
        if len(running) < 20:
            name, arguments = random.choice(names)
            caller = random.choice(["", *callers])
            task = asyncio.get_running_loop().create_task(_call(calls, name, arguments, caller))
            running.add(task)
            task.add_done_callback(running.discard)


async def _call(calls: HubCalls, name: str, arguments: Json, caller: str) -> None:
    params: Json = {"name": name.partition(".")[2], "arguments": dict(arguments)}
    with suppress(ToolwayError):  # the hub may close before its callers
        await calls.request(Call(name, "tools/call", params, caller=caller))
