"""The demo: a gateway in a folder of its own, with servers of all characters and calls that never end."""

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

from toolway.cli.exits import Exit
from toolway.cli.output import Output
from toolway.config.editing.edit import Edit, read_bytes
from toolway.config.editing.write import apply
from toolway.config.formats import read
from toolway.errors import CallError
from toolway.gateway.serve import Serving
from toolway.gateway.state import State
from toolway.hub import Hub
from toolway.model import Call, Json

SERVER: Final = Path(__file__).with_name("server.py")
PEOPLE: Final = ("alice", "build-robot", "support-agent")
#: What is called, how often in comparison, and with what.
CALLS: Final[Sequence[tuple[str, int, Json]]] = (
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


def run(output: Output, port: int, *, browser: bool) -> int:
    """Until Ctrl-C; nothing is left behind."""
    with tempfile.TemporaryDirectory(prefix="toolway-demo-", ignore_cleanup_errors=True) as folder:
        os.environ["XDG_STATE_HOME"] = folder  # earlier versions of the demo's file are not among yours
        with suppress(KeyboardInterrupt):
            asyncio.run(_serve(output, Path(folder), port, browser))
    return Exit.OK


async def _serve(output: Output, folder: Path, port: int, browser: bool) -> None:
    from toolway.cli.serve import doctor_of
    from toolway.cli.ui import show

    file = _file(folder)
    loaded = read(file)
    state = State(folder / "state")
    os.environ["TOOLWAY_STATE"] = str(state.folder)
    keyring = state.keyring()
    for name in PEOPLE:
        keyring.create(name, None, False, time.time())
    serving = Serving(loaded, state, doctor=doctor_of(file))
    calling: set[asyncio.Task[None]] = set()

    def ready(url: str) -> None:
        callers = [key.principal().caller for key in keyring.all()]
        calling.add(asyncio.get_running_loop().create_task(_call_for_ever(serving.hub, callers)))
        link = f"{url}{serving.gateway.link()}"
        if output.as_json:
            output.json({"url": link})
        else:
            show(output, link, browser=browser)
            output.say("a demo: its servers are made up, and gone when it ends (Ctrl-C)", "dim")
        sys.stdout.flush()

    await serving.run("127.0.0.1", port, None, ready, 0.0)
    for task in calling:
        task.cancel()


def _file(folder: Path) -> Path:
    """A file of servers with a few earlier versions."""
    file = folder / "mcp.json"
    (folder / "python").symlink_to(sys.executable)  # what people are shown is the same everywhere
    (folder / "server.py").write_bytes(SERVER.read_bytes())
    servers: Json = {name: _entry(folder, name) for name in ("weather", "shop", "library", "payments", "pictures")}
    servers["crm"] = {**_entry(folder, "broken"), "env": {"CRM_API_KEY": ""}}
    groups: Json = {
        "reading": {"tools": ["weather.*", "library.*"]},
        "sales": {"tools": ["shop.*", "!shop.cancel_order"]},
    }
    last: Json = {"mcpServers": servers, "toolway": {"groups": groups}}
    first = {"mcpServers": {name: servers[name] for name in ("weather", "shop")}}
    second = {"mcpServers": {**first["mcpServers"], "library": servers["library"]}, "toolway": {"groups": groups}}
    for version in (first, second, last):
        apply(
            Edit(file, read_bytes(file), json.dumps(version, indent=2).encode() + b"\n"), folder / "toolway" / "backups"
        )
    return file


def _entry(folder: Path, character: str) -> Json:
    return {"command": str(folder / "python"), "args": [str(folder / "server.py"), character], "timeout": "5s"}


async def _call_for_ever(hub: Hub, callers: Sequence[str]) -> None:
    names = [(name, arguments) for name, weight, arguments in CALLS for _ in range(weight)]
    running: set[asyncio.Task[None]] = set()
    while True:
        await asyncio.sleep(random.expovariate(6.0))
        if len(running) < 20:
            name, arguments = random.choice(names)
            caller = random.choice(["", *callers])
            task = asyncio.get_running_loop().create_task(_call(hub, name, arguments, caller))
            running.add(task)
            task.add_done_callback(running.discard)


async def _call(hub: Hub, name: str, arguments: Json, caller: str) -> None:
    params: Json = {"name": name.partition(".")[2], "arguments": dict(arguments)}
    with suppress(CallError, RuntimeError):  # the hub may end before those who call
        await hub.request(Call(name, "tools/call", params, caller=caller))
