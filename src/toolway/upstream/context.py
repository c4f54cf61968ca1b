"""What a hub offers to each of its upstreams, which are the objects that each run one server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from toolway.config.schema import Server
from toolway.events import CatalogChanged, Event, ListKind
from toolway.types import ClientCallbacks, Era
from toolway.upstream.start_policy import StartLimiter
from toolway.upstream.transport import Transport


class UpstreamContext(Protocol):
    """Services of a hub for one upstream: transports, callbacks, events, and list storage."""

    def open_transport(self, name: str, server: Server, caller: str = "") -> Transport:
        """Create an unopened transport to the server.

        `caller` is "" unless the connection serves only that caller.
        """
        ...

    def emit(self, event: Event) -> None: ...

    def update_list(
        self, server: str, kind: ListKind, items: list[Any], problems: list[str], era: Era
    ) -> CatalogChanged | None:
        """Store a list (such as the tools) as the server sent it. Return the changes, or None."""
        ...

    def is_list_missing(self, server: str, kind: ListKind) -> bool:
        """Return True if the shared connection cannot fetch this list because it has no login.

        In that case, only the connections of logged-in callers can fetch the list.
        """
        ...

    def update_caller_list(
        self, server: str, caller: str, kind: ListKind, items: list[Any], problems: list[str], era: Era
    ) -> CatalogChanged | None:
        """Store a list that a caller's own connection fetched, for this caller only.

        Nothing is stored unless each caller has its own lists (`has_caller_lists`).
        """
        ...

    def has_caller_lists(self, server: str) -> bool:
        """Return True if each caller sees only what its own connection has fetched."""
        ...

    def pinned_digests(self, server: str, tools: list[Any]) -> dict[str, str]:
        """Return these tools' definition digests by name, to compare them with the pins.

        Return an empty mapping if no definitions are pinned.
        """
        ...

    def is_pinned(self, server: str, tool: str, digest: str) -> bool:
        """Return False if `digest` does not match the tool's pin, so the tool must not be used."""
        ...

    @property
    def callbacks(self) -> ClientCallbacks: ...

    @property
    def start_limiter(self) -> StartLimiter: ...

    @property
    def random(self) -> Callable[[], float]: ...
