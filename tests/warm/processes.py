"""The same comparison with processes: one warm gateway, and a process started for each request that is compared."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from pathlib import Path
from typing import Any, Final

from tests.gateway.edge_lab import HELLO, TOKEN, TYPES, handshake
from tests.gateway.program import program
from tests.http.raw_client import connected
from tests.warm.lab import Answer, read_answer
from tests.warm.requests import Generator, Request
from tests.warm.run import Difference
from tests.warm.settings import Settings
from toolway.testing import FakeHttp

TOOLSETS: Final = {"both": {"tools": ["*"]}, "few": {"tools": ["b.echo"]}}
REQUESTS_BETWEEN: Final = 25  # requests that only the warm gateway gets, before one that is compared


async def compare_processes(seed: int, samples: int, folder: Path) -> list[Difference]:
    """Compare `samples` requests to a warm `toolway serve` with those to one that was started for the request."""
    rnd = random.Random(seed)
    found: list[Difference] = []
    warm_folder = folder / "warm"
    state = warm_folder / "state"
    state.mkdir(parents=True)
    (state / "token").write_text(TOKEN)
    (state / "token").chmod(0o600)
    async with FakeHttp(name="a") as a, FakeHttp(name="b") as b:
        servers: dict[str, Any] = {"a": {"url": a.url}, "b": {"url": b.url}}
        settings = Settings(state, rnd, 0.0)
        async with program(warm_folder, servers, toolsets=TOOLSETS) as warm:
            sessions = {
                role: await _open_session(warm.port, token)
                for role, token in {"local": TOKEN, "all": settings.tokens["all"]}.items()
            }
            generator = Generator(rnd, settings, sessions)
            for number in range(samples):
                history = [generator.next() for _ in range(REQUESTS_BETWEEN)]
                await _send_all(warm.port, history)
                request = generator.next()
                answer = await ask(warm.port, request)
                copy = folder / f"cold-{number}"
                shutil.copytree(warm_folder, copy)
                async with program(copy, servers, toolsets=TOOLSETS) as cold:
                    expected = await ask(cold.port, request)
                shutil.rmtree(copy)
                if not request.compares_body:
                    answer, expected = answer._replace(body=""), expected._replace(body="")
                if answer != expected:
                    labels = tuple(each.label for each in history[-6:])
                    found.append(Difference(seed, number, request.label, answer, expected, request.data, labels))
    return found


async def ask(port: int, request: Request) -> Answer:
    """Send a request on its own connection, and return its answer."""
    async with connected(port) as client, asyncio.timeout(60):
        await client.send(request.first)
        data, closed = b"", False
        while (found := read_answer(data, closed=closed)) is None:
            if closed:
                return Answer(0, challenge=False)
            part = await client.reader.read(65536)
            data, closed = data + part, not part
    return found[0]


async def _send_all(port: int, requests: list[Request]) -> None:
    """Send requests on one connection, as long as it stays open, and then on others."""
    left = list(requests)
    while left:
        async with connected(port) as client:
            while left:
                request = left.pop(0)
                await client.send(request.data)
                try:
                    answer = await client.answer()
                except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
                    break
                if request.ends_connection or answer.headers.get("connection") == "close":
                    break


async def _open_session(port: int, token: str) -> str:
    body = json.dumps(handshake("initialize", HELLO)).encode()
    headers = {
        "Host": f"127.0.0.1:{port}",
        **TYPES,
        "Authorization": f"Bearer {token}",
        "Content-Length": str(len(body)),
    }
    lines = ["POST /mcp HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    async with connected(port) as client:
        answer = await client.ask("\r\n".join(lines).encode() + body)
    return answer.headers["mcp-session-id"]
