"""What an upstream needs from its hub."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from toolway.config.spec import Server
from toolway.events import CatalogChanged, Event, Kind
from toolway.model import Asks, Era
from toolway.upstream.gate import StartGate
from toolway.upstream.link import Link


class Surroundings(Protocol):
    def open_link(self, name: str, server: Server, caller: str = "") -> Link:
        """A link to the server; `caller` is whose, where it is one caller's alone."""
        ...

    def emit(self, fact: Event) -> None: ...

    def on_list(
        self, server: str, kind: Kind, items: list[Any], problems: list[str], era: Era
    ) -> CatalogChanged | None:
        """Take a list as the server sent it; say what changed."""
        ...

    def lacks_list(self, server: str, kind: Kind) -> bool:
        """Whether the link that everybody shares has no list, because only callers have logins."""
        ...

    @property
    def asks(self) -> Asks: ...

    @property
    def gate(self) -> StartGate: ...

    @property
    def dice(self) -> Callable[[], float]: ...
