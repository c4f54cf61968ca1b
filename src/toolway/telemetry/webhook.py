"""A word to a webhook for each matter that a person must see to. Loaded where one is configured.

One POST of a JSON object, whose `text` is what chat programs show. Tried again a few times, with longer and longer
pauses, unless the answer says that it is useless; no redirect is followed, and the address is checked as any other.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

import httpx2
import msgspec

from toolway.addresses.pinned import PinnedTransport
from toolway.addresses.policy import Addresses
from toolway.addresses.resolving import AddressError
from toolway.telemetry.escalations import Matter

TRIES: Final = 5
FIRST_PAUSE: Final = 1.0  # seconds; twice as long each time
LIMIT: Final = 10.0  # seconds for one request
BACKLOG: Final = 100
_AGAIN: Final = frozenset({408, 425, 429})
_log = logging.getLogger("toolway.escalations")


class Webhook:
    def __init__(self, url: str, headers: Mapping[str, str], addresses: Addresses, pause: float = FIRST_PAUSE) -> None:
        self._url = url
        self._host = urlsplit(url).hostname or ""  # all that is ever shown of it: its path may be a secret
        self._headers = {"content-type": "application/json", **headers}
        self._addresses = addresses.naming(url)
        self._pause = pause
        self._waiting: deque[Matter] = deque(maxlen=BACKLOG)
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.lost = 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._work())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def tell(self, matter: Matter) -> None:
        """Soon. The oldest gives way where too many wait."""
        self.lost += len(self._waiting) == BACKLOG
        self._waiting.append(matter)
        self._news.set()

    async def _work(self) -> None:
        trust = await asyncio.to_thread(ssl.create_default_context)
        while True:
            await self._news.wait()
            while self._waiting:
                await self._deliver(self._waiting.popleft(), trust)
            self._news.clear()

    async def _deliver(self, matter: Matter, trust: ssl.SSLContext) -> None:
        why = ""
        for number in range(TRIES):
            if number:
                await asyncio.sleep(self._pause * 2 ** (number - 1) * random.uniform(0.8, 1.2))
            why, again = await self._post(matter, trust)
            if not why:
                return
            if not again:
                break
        self.lost += 1
        _log.error("the webhook at %s did not take a matter (%s): %s", self._host, matter.name, why)

    async def _post(self, matter: Matter, trust: ssl.SSLContext) -> tuple[str, bool]:
        """Why it did not work, or nothing; and whether another try may."""
        try:
            async with (
                asyncio.timeout(LIMIT),
                httpx2.AsyncClient(transport=PinnedTransport(self._addresses, trust), timeout=LIMIT) as client,
            ):
                request = httpx2.Request("POST", self._url, headers=self._headers, content=body_of(matter))
                answer = await client.send(request, stream=True, follow_redirects=False)
                await answer.aclose()
        except AddressError as exc:
            return exc.reason, False
        except httpx2.InvalidURL:
            return "it is no URL", False
        except (httpx2.HTTPError, TimeoutError, OSError) as exc:
            return type(exc).__name__, True
        status = answer.status_code
        if 200 <= status < 300:
            return "", False
        return f"HTTP {status}", status >= 500 or status in _AGAIN


def body_of(matter: Matter) -> bytes:
    parts = [matter.what, matter.evidence, f"→ {matter.fix}" if matter.fix else ""]
    return msgspec.json.encode({**msgspec.structs.asdict(matter), "text": "\n".join(part for part in parts if part)})
