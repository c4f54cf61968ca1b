"""What a node shows the owner of a server when it brings a call: who asks, for which server, under which fence. Pure.

A pass is sealed with the key of the cluster, so that it says nothing to others and cannot be made up or changed. It is
for one node and one call, lasts seconds, and is taken once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec

KIND: Final = "pass"
LASTS: Final = 15.0  # seconds: clocks of nodes may differ by a few
NONCE: Final = 16  # characters by which a seal begins, and which no other begins by
REMEMBERED: Final = 200_000  # passes that were taken, in LASTS seconds; whoever brings more is refused

Refusal: TypeAlias = Literal["forged", "elsewhere", "replayed", "busy", "moved"]


class Pass(msgspec.Struct, frozen=True, array_like=True):
    """Fields are only ever added at the end, with a usual value: nodes of two versions work side by side."""

    to: str  # the node that may take it
    tenant: str
    server: str
    instance: int
    fence: int  # under which the sender believes that the node owns the server
    principal: str  # who asks; empty for the sender itself
    caller: str  # the authorization context of the call
    call: str  # its id
    key: str | None = None  # its idempotency key
    sender: str = ""
    name: str = ""  # of the principal, for people
    endpoint: str = ""  # where the client asked


class Sealer(Protocol):
    def seal(self, kind: str, value: Any, seconds: float) -> str: ...

    def open(self, kind: str, text: str) -> Any: ...


def issue(sealer: Sealer, what: Pass) -> str:
    return sealer.seal(KIND, what, LASTS)


class Inspector:
    """The owner's side. `fence_of` says under which fence this node owns an instance of a server, if it does."""

    def __init__(
        self,
        node: str,
        sealer: Sealer,
        fence_of: Callable[[str, str, int], int | None],
        now: Callable[[], float],
        remembered: int = REMEMBERED,
    ) -> None:
        self._node = node
        self._sealer = sealer
        self._fence_of = fence_of
        self._now = now
        self._most = remembered
        # Two generations of LASTS seconds each: what is in neither cannot be valid any more.
        self._taken: set[str] = set()
        self._before: set[str] = set()
        self._turned = now()

    def take(self, text: str) -> Pass | Refusal:
        """The pass, which is of no use from now on; or why the call must not be made here. It was not executed then."""
        try:
            found = msgspec.convert(self._sealer.open(KIND, text), Pass)
        except msgspec.ValidationError:
            return "forged"  # or over
        if found.to != self._node:
            return "elsewhere"
        refused = self._remember(text[:NONCE])
        if refused is not None:
            return refused
        if self._fence_of(found.tenant, found.server, found.instance) != found.fence:
            return "moved"
        return found

    def _remember(self, once: str) -> Refusal | None:
        if self._now() - self._turned >= LASTS:
            old = self._now() - self._turned >= 2 * LASTS
            self._before, self._taken = (set() if old else self._taken), set()
            self._turned = self._now()
        if once in self._taken or once in self._before:
            return "replayed"
        if len(self._taken) >= self._most:
            return "busy"
        self._taken.add(once)
        return None
