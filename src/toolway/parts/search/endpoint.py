"""Embeds strings over HTTP with OpenAI's API: POST {"model": …, "input": […]} to …/embeddings.

The embedding service sees the names and descriptions of tools, and users' queries. So it is only used if you
configure it. The network policy applies, and redirects are not followed. After three failures in a row, requests pause
for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from toolway.errors import ToolwayError
from toolway.http.client import ClientLimits, HttpClient, HttpError, HttpTarget, encode_headers
from toolway.http.request import HeaderBlock
from toolway.network import NetworkPolicy
from toolway.parts.search.vector_store import EmbeddingError
from toolway.parts.search.vectors import Vector, to_unit_length

MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
MAX_DIMENSIONS: Final = 4096
FAILURES_TO_OPEN: Final = 3
PAUSES_S: Final = (30.0, 120.0, 600.0)  # the last one repeats
_UNAUTHORIZED: Final = frozenset({401, 403})


class _Item(msgspec.Struct):
    embedding: list[float]
    index: int = -1


class _Answer(msgspec.Struct):
    data: list[_Item]


class Breaker:
    """Counts the embedding service's consecutive failures, to decide whether to pause requests.

    No I/O: the time is an argument.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._until = 0.0

    def pause_left(self, now: float) -> float:
        """Return the seconds until the next request may be sent to the service; 0 if it may be sent now."""
        return max(0.0, self._until - now)

    def on_success(self) -> None:
        self._failures, self._until = 0, 0.0

    def on_failure(self, now: float) -> None:
        """Count a failed request to the embedding service. From the third failure in a row on, each one starts a pause.

        From the third consecutive failure on, each one starts a pause before the next request.
        """
        self._failures += 1
        if self._failures >= FAILURES_TO_OPEN:
            self._until = now + PAUSES_S[min(self._failures - FAILURES_TO_OPEN, len(PAUSES_S) - 1)]


class EmbeddingEndpoint:
    """Embedder that sends strings to an HTTP embedding service and receives their vectors.

    Args:
        url: URL of the service's embeddings endpoint.
        model: Name of the model.
        get_key: Returns the API key, "" for none. Called before the first request, and again if the key is rejected.
        dimensions: Length of the vectors that is asked for; None leaves it to the service.
        network_policy: Addresses that may be connected to.
    """

    def __init__(
        self,
        url: str,
        model: str,
        get_key: Callable[[], Awaitable[str]],
        dimensions: int | None,
        network_policy: NetworkPolicy,
    ) -> None:
        self._url = url
        self._target = HttpTarget.parse(url)
        self._model = model
        self._get_key = get_key
        self._dimensions = dimensions
        self._headers: HeaderBlock | None = None
        self._client = HttpClient(ClientLimits(accept_compression=True), network_policy.allowing(url))
        self._breaker = Breaker()

    @property
    def identity(self) -> str:
        return f"endpoint {self._url} {self._model} {self._dimensions}"

    async def embed(self, texts: Sequence[str], timeout: float) -> list[Vector]:
        loop = asyncio.get_running_loop()
        if pause := self._breaker.pause_left(loop.time()):
            raise EmbeddingError(f"{self._target.origin} failed repeatedly; it is tried again in {pause:.0f} s")
        try:
            async with asyncio.timeout(timeout):
                vectors = await self._request(texts)
        except TimeoutError:
            self._breaker.on_failure(loop.time())
            raise EmbeddingError(f"{self._target.origin} did not answer within {timeout:g} s") from None
        except EmbeddingError:
            self._breaker.on_failure(loop.time())
            raise
        self._breaker.on_success()
        return vectors

    async def close(self) -> None:
        self._client.close()

    async def _request(self, texts: Sequence[str]) -> list[Vector]:
        body: dict[str, Any] = {"model": self._model, "input": list(texts), "encoding_format": "float"}
        if self._dimensions is not None:
            body["dimensions"] = self._dimensions
        headers = self._headers = self._headers or await self._encode_headers()
        try:
            async with self._client.send("POST", self._target, [headers], msgspec.json.encode(body)) as response:
                if response.status in _UNAUTHORIZED:
                    self._headers = None
                    raise EmbeddingError(f"{self._target.origin} rejected the key: HTTP {response.status}")
                if response.status != 200:
                    raise EmbeddingError(f"{self._target.origin} answered HTTP {response.status}")
                answer = await response.read(MAX_ANSWER_BYTES)
        except HttpError as exc:
            raise EmbeddingError(f"{self._target.origin}: {exc.reason}") from exc
        if len(texts) == 1:
            return self._decode(answer, 1)
        return await asyncio.to_thread(self._decode, answer, len(texts))

    async def _encode_headers(self) -> HeaderBlock:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        try:
            key = await self._get_key()
        except ToolwayError as exc:
            raise EmbeddingError(f"the key is not available: {exc.message}") from None
        if key:
            headers["Authorization"] = f"Bearer {key}"
        try:
            return encode_headers(headers)
        except ValueError:
            raise EmbeddingError("the key has characters that a header cannot have") from None

    def _decode(self, answer: bytes, count: int) -> list[Vector]:
        """Return a response's vectors in the order of the strings.

        Raises `EmbeddingError` if the response does not contain one valid vector per string.
        """
        origin = self._target.origin
        try:
            items = msgspec.json.decode(answer, type=_Answer).data
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise EmbeddingError(f"{origin} answered something that is not a list of vectors") from None
        if len(items) != count:
            raise EmbeddingError(f"{origin} answered {len(items)} vectors for {count} strings")
        if any(item.index >= 0 for item in items):
            items.sort(key=lambda item: item.index)
            if [item.index for item in items] != list(range(count)):
                raise EmbeddingError(f"{origin} answered vectors whose numbers do not match the strings")
        width = self._dimensions or len(items[0].embedding)
        if any(len(item.embedding) != width for item in items) or width > MAX_DIMENSIONS:
            found = next((len(item.embedding) for item in items if len(item.embedding) != width), width)
            raise EmbeddingError(f"{origin} answered a vector of {found} numbers, not {width}")
        return [to_unit_length(item.embedding) for item in items]
