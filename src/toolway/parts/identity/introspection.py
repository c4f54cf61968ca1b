"""Opaque access tokens: asks the identity provider about each one (RFC 7662) and caches the answers briefly.

A token is accepted only if the answer clearly says that it is active. An error, a timeout, anything but a JSON object,
or an `active` that is not exactly true or false does not count as an answer: the client gets a 503 and may try again.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple
from urllib.parse import quote

from toolway.network import NetworkPolicy
from toolway.parts.identity.settings import IntrospectionSettings
from toolway.protocol.jsonrpc import decode_json
from toolway.types import AuthError, Json

ACTIVE_S: Final = 30.0  # seconds for which an answer about an active token is kept
INACTIVE_S: Final = 10.0  # seconds for which a token that is not active is refused without another request
FAILED_S: Final = 2.0  # seconds after which the provider may be asked again about a token
MAX_CONCURRENT: Final = 64  # requests to the provider at a time: every client can invent tokens
MAX_ANSWERS: Final = 10_000  # answers that are kept; the oldest is dropped
MAX_OPAQUE_CHARS: Final = 4096
REQUEST_TIMEOUT_S: Final = 5.0
_log = logging.getLogger("toolway.gateway")

#: Asks the provider about a token; returns the HTTP status and the body. Raises `AuthError` if it gets no answer.
Ask = Callable[[str], Awaitable[tuple[int, bytes]]]


class TokenAnswer(NamedTuple):
    """The identity provider's answer about one opaque token: its claims if it is active, or a failure."""

    claims: Json | None  # of an active token; None if it is not active, or if there was no answer
    has_failed: bool
    until: float  # wall time until which the answer is used


class Introspection:
    """The identity provider's cached answers about opaque tokens, and the requests that are running.

    `ask` sends a request. `now` returns the wall-clock time, which tokens use.
    """

    def __init__(self, ask: Ask, now: Callable[[], float] = time.time) -> None:
        self._ask = ask
        self._now = now
        self._answers: dict[bytes, TokenAnswer] = {}  # by the hash of the token; the oldest first
        self._running: dict[bytes, asyncio.Task[None]] = {}
        self.request_count = 0

    def find(self, digest: bytes) -> TokenAnswer | None:
        """Return the cached answer about the token with the hash `digest`, or None if the provider must be asked."""
        found = self._answers.get(digest)
        return found if found is not None and self._now() < found.until else None

    def start(self, token: str, digest: bytes) -> asyncio.Task[None] | None:
        """Return the task of the request to the provider about a token, starting one if none is running.

        Return None if too many requests are running.
        """
        running = self._running.get(digest)
        if running is not None:
            return running
        if len(self._running) >= MAX_CONCURRENT:
            return None
        task = self._running[digest] = asyncio.get_running_loop().create_task(self._request(token, digest))
        task.add_done_callback(lambda _: self._running.pop(digest, None))
        return task

    async def close(self) -> None:
        """Cancel all running requests to the identity provider."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _request(self, token: str, digest: bytes) -> None:
        self.request_count += 1
        try:
            claims = _read_answer(*await self._ask(token))
        except (AuthError, ValueError) as exc:
            _log.warning("the identity provider did not answer about a token: %s", exc)
            answer = TokenAnswer(None, True, self._now() + FAILED_S)
        else:
            answer = TokenAnswer(claims, False, self._now() + (ACTIVE_S if claims is not None else INACTIVE_S))
        self._answers.pop(digest, None)
        if len(self._answers) >= MAX_ANSWERS:
            del self._answers[next(iter(self._answers))]
        self._answers[digest] = answer


def _read_answer(status: int, body: bytes) -> Json | None:
    """Return the claims in the provider's response about an active token, or None if the token is not active.

    Raises `ValueError` for any other response.
    """
    if status != 200:
        raise ValueError(f"it answered with HTTP {status}")
    answer = decode_json(body)
    active = answer.get("active") if isinstance(answer, dict) else None
    if active is True:
        return dict(answer)
    if active is False:
        return None
    raise ValueError('its response has no valid "active" field')


def create_ask(settings: IntrospectionSettings, secret: str, network_policy: Callable[[], NetworkPolicy]) -> Ask:
    """Return the function that asks the provider about a token, using the gateway's credentials."""
    credentials = f"{quote(settings.client_id, safe='')}:{quote(secret, safe='')}".encode()
    headers = {"Authorization": f"Basic {base64.b64encode(credentials).decode()}", "Accept": "application/json"}

    async def ask(token: str) -> tuple[int, bytes]:
        from toolway.auth.oauth_http import post

        form = {"token": token, "token_type_hint": "access_token"}
        return await post(settings.url, form, headers, network_policy().allowing(settings.url), REQUEST_TIMEOUT_S)

    return ask
