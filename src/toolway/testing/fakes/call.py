"""One call: who asks, and the steps that lead to the answer.

Most answers are there at once. A call that must wait or ask its client is a generator of steps (`Wait`, `Ask`); the
transport does the waiting in its own way, sends back what the step gave, and closes the generator of a cancelled call.
"""

from __future__ import annotations

from toolway.testing.fakes.wire import CAPABILITIES_KEY, VERSION_KEY, object_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, TypeAlias

    from toolway.testing.fakes.wire import Id, Json

    Steps: TypeAlias = Generator["Wait | Ask", Any, Json]


class Wait:
    """Wait so long; without seconds, until the call is cancelled."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds


class Ask:
    """Ask the client (handshake era), and get back its whole response."""

    def __init__(self, method: str, params: Json) -> None:
        self.method = method
        self.params = params


class Peer:
    """One client as the server knows it: a pipe or a session. Transports say how to reach it."""

    def __init__(self) -> None:
        self.version: str | None = None  # set by `initialize`
        self.capabilities: Json = {}

    def send(self, message: Json) -> None:
        """Send what belongs to no call."""


class Call:
    """One request, and the way to its caller."""

    def __init__(self, message: Json, peer: Peer, send: Callable[[Json], None]) -> None:
        self.id: Id = message["id"]
        self.method: str = message["method"]
        self.params = object_of(message.get("params"))
        self.meta = object_of(self.params.get("_meta"))
        self.arguments = object_of(self.params.get("arguments"))
        self.peer = peer
        self.send = send  # messages on this call's own stream
        self.modern = VERSION_KEY in self.meta

    @property
    def capabilities(self) -> Json:
        """What the caller says it can do."""
        return object_of(self.meta.get(CAPABILITIES_KEY)) if self.modern else self.peer.capabilities

    def say(self, text: str, /, **data: Any) -> Json:
        """A tool's result with this text; whoever called with a nonce gets it back."""
        if "nonce" in self.arguments:
            data["nonce"] = self.arguments["nonce"]
        return {"content": [{"type": "text", "text": text}], "structuredContent": data, "isError": False}
