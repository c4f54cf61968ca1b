"""Sends a webhook message for each alert and each audit log checkpoint. Imported only if configured.

Each message is one POST of a JSON object, whose `text` chat programs display. Failed requests are retried a few times
with exponential backoff, unless the response status says that a retry is useless. Redirects are not followed, and the
network policy applies to the address.
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

from toolway.events import Alert
from toolway.network.httpx_transport import PinnedTransport
from toolway.network.policy import NetworkPolicy
from toolway.network.resolver import AddressError

MAX_ATTEMPTS: Final = 5
INITIAL_BACKOFF_S: Final = 1.0  # doubled with each retry
REQUEST_TIMEOUT_S: Final = 10.0
MAX_QUEUED: Final = 100
_RETRYABLE_STATUSES: Final = frozenset({408, 425, 429})
_log = logging.getLogger("toolway.alerts")


class Webhook:
    """Sends messages to a webhook URL, one POST each, from a bounded queue and with retries."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        network_policy: NetworkPolicy,
        initial_backoff: float = INITIAL_BACKOFF_S,
    ) -> None:
        self._url = url
        self._host = urlsplit(url).hostname or ""  # only the host is ever logged: the path may be a secret
        self._headers = {"content-type": "application/json", **headers}
        self._network_policy = network_policy.allowing(url)
        self._initial_backoff = initial_backoff
        self._queue: deque[tuple[str, bytes]] = deque(maxlen=MAX_QUEUED)  # name and body
        self._wakeup = asyncio.Event()
        self._idle = asyncio.Event()  # set while no message is queued or being sent
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self.dropped = 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def enqueue(self, alert: Alert, link: str = "") -> None:
        """Queue an alert for delivery, with the URL of a page about it. A full queue drops its oldest message."""
        self.enqueue_body(f"the alert {alert.key}", encode_alert(alert, link))

    def enqueue_body(self, name: str, body: bytes) -> None:
        """Queue a JSON body for delivery. `name` describes it in the log if the webhook does not accept it."""
        self.dropped += len(self._queue) == MAX_QUEUED
        self._queue.append((name, body))
        self._idle.clear()
        self._wakeup.set()

    async def drained(self) -> None:
        """Wait until every queued webhook message has been sent or dropped."""
        await self._idle.wait()

    async def _run(self) -> None:
        ssl_context = await asyncio.to_thread(ssl.create_default_context)
        while True:
            await self._wakeup.wait()
            while self._queue:
                await self._deliver(*self._queue.popleft(), ssl_context)
            self._wakeup.clear()
            self._idle.set()

    async def _deliver(self, name: str, body: bytes, ssl_context: ssl.SSLContext) -> None:
        error = ""
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                await asyncio.sleep(self._initial_backoff * 2 ** (attempt - 1) * random.uniform(0.8, 1.2))
            error, retryable = await self._post(body, ssl_context)
            if not error:
                return
            if not retryable:
                break
        self.dropped += 1
        _log.error("webhook at %s did not accept %s: %s", self._host, name, error)

    async def _post(self, body: bytes, ssl_context: ssl.SSLContext) -> tuple[str, bool]:
        """Send a body to the webhook in one POST. Return the error ("" on success), and True if a retry may help."""
        try:
            async with (
                asyncio.timeout(REQUEST_TIMEOUT_S),
                httpx2.AsyncClient(
                    transport=PinnedTransport(self._network_policy, ssl_context), timeout=REQUEST_TIMEOUT_S
                ) as client,
            ):
                request = httpx2.Request("POST", self._url, headers=self._headers, content=body)
                response = await client.send(request, stream=True, follow_redirects=False)
                await response.aclose()
        except AddressError as exc:
            return exc.reason, False
        except httpx2.InvalidURL:
            return "invalid URL", False
        except (httpx2.HTTPError, TimeoutError, OSError) as exc:
            return type(exc).__name__, True
        status = response.status_code
        if 200 <= status < 300:
            return "", False
        return f"HTTP {status}", status >= 500 or status in _RETRYABLE_STATUSES


def encode_alert(alert: Alert, link: str = "") -> bytes:
    parts = [alert.message, alert.detail, f"→ {alert.hint}" if alert.hint else "", link]
    fields = {**msgspec.structs.asdict(alert), "text": "\n".join(part for part in parts if part)}
    return msgspec.json.encode({**fields, "link": link} if link else fields)
