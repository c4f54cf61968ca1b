"""An issuer and its guarded server in their own process, so their work for many calls at once is not felt as
the hub's.

    async with apart(era="modern", effects=path) as pair:
        hub = Hub({"guarded": pair.url}, login=pair.login)
        await pair.command("expire")
        (await pair.facts()).made["refresh_token"]

It reads one command per line and answers with the facts so far.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.auth.oauth_lab import Guarded, Issuer


@dataclass(frozen=True)
class Facts:
    url: str
    made: Counter[str]  # by the issuer: registrations and tokens by grant
    sent: int  # calls of tools that reached the server


class Pair:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.url = ""
        self.logins = 0

    async def command(self, *words: str) -> Facts:
        """`expire`, `lifetime SECONDS`, or nothing; and what was seen by then."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{' '.join(words)}\n".encode())
        said = json.loads(await self._process.stdout.readline())
        return Facts(said["url"], Counter(said["made"]), said["sent"])

    facts = command

    async def login(self, server: str, url: str) -> str:
        """A browser whose user agrees to everything."""
        self.logins += 1
        return await asyncio.to_thread(_redirected_to, url)


@asynccontextmanager
async def apart(*, era: str, effects: Path) -> AsyncIterator[Pair]:
    command = [sys.executable, "-m", "tests.auth.separate_process", "--era", era, "--effects", str(effects)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        pair = Pair(process)
        pair.url = (await pair.facts()).url
        yield pair
    finally:
        assert process.stdin is not None
        process.stdin.close()  # it ends with its input
        async with asyncio.timeout(10):
            await process.wait()


def _redirected_to(url: str) -> str:
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.netloc, timeout=10)
    connection.request("GET", f"{where.path}?{where.query}")
    location = connection.getresponse().headers["Location"]
    connection.close()
    assert location is not None
    return location


async def _serve(era: str, effects: str) -> None:
    async with Issuer() as issuer, Guarded(issuer, era=era, effects=effects) as guarded:
        while words := (await asyncio.to_thread(sys.stdin.readline)):
            match words.split():
                case ["expire"]:
                    issuer.expire()
                case ["lifetime", seconds]:
                    issuer.lifetime = float(seconds)
            print(json.dumps({"url": guarded.url, "made": issuer.made, "sent": len(guarded.sent)}), flush=True)


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--era", required=True)
    options.add_argument("--effects", required=True)
    chosen = options.parse_args()
    asyncio.run(_serve(chosen.era, chosen.effects))
