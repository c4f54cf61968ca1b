"""Creates the embedding search from the settings. Imports numpy and a model only if they are configured."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from toolway.catalog.catalog import Tool
from toolway.network import NetworkPolicy
from toolway.parts.search.settings import SearchSettings

if TYPE_CHECKING:
    from toolway.parts.search.vector_store import VectorStore
    from toolway.parts.search.vectors import Embedder


class Vectors(Protocol):
    """Interface of an embedding search: a `VectorSource` that also reports its progress and can be closed."""

    async def prepare(self, queries: Sequence[str], tools: Sequence[Tool]) -> None: ...

    def score(self, query: str, tools: Sequence[Tool]) -> Sequence[float | None] | None: ...

    @property
    def problem(self) -> str: ...

    @property
    def embedded(self) -> tuple[int, int]: ...

    async def close(self) -> None: ...


class UnavailableVectors:
    """An embedding search that cannot be used: tools are ranked by words, and `problem` says why."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        self.embedded = (0, 0)

    async def prepare(self, queries: Sequence[str], tools: Sequence[Tool]) -> None: ...

    def score(self, query: str, tools: Sequence[Tool]) -> None:
        return None

    async def close(self) -> None: ...


def open_vectors(
    settings: SearchSettings,
    network_policy: NetworkPolicy,
    get_key: Callable[[], Awaitable[str]],
    open_store: Callable[[str], VectorStore],
) -> Vectors | None:
    """Return the configured embedding search, or None.

    Args:
        settings: Settings of the tool search.
        network_policy: Addresses that an endpoint may have.
        get_key: Returns the API key of the endpoint.
        open_store: Opens the store of a model's vectors, by the identity of the model.
    """
    if not settings.model:
        return None
    try:
        from toolway.parts.search.vectors import ModelVectors
    except ImportError:
        return UnavailableVectors("numpy is not installed: install toolway[search]")
    try:
        embedder = _create_embedder(settings, network_policy, get_key)
    except ValueError as exc:
        return UnavailableVectors(f"the endpoint is {exc}")
    return ModelVectors(embedder, open_store(embedder.identity))


def _create_embedder(
    settings: SearchSettings, network_policy: NetworkPolicy, get_key: Callable[[], Awaitable[str]]
) -> Embedder:
    if settings.endpoint:
        from toolway.parts.search.endpoint import EmbeddingEndpoint

        return EmbeddingEndpoint(settings.endpoint, settings.model, get_key, settings.dimensions, network_policy)
    from toolway.parts.search.minilm import MiniLm

    return MiniLm()
