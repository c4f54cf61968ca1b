"""The other gateways of a cluster, as the sessions of one see them. A gateway that is alone has none.

A client may come to another gateway with every request. What it brings back says by a tag where it belongs: the answer
to a question, the id of the last event that it saw, a message for its stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from toolway.model import Json
from toolway.protocol.wire import Message

if TYPE_CHECKING:
    from toolway.gateway.answers import Stream
    from toolway.gateway.client_session import ClientSession
    from toolway.gateway.visit import Tell


class Others(Protocol):
    @property
    def tag(self) -> str:
        """Ours: letters and digits."""
        ...

    # -- what a session settled ---------------------------------------------------------------------------------------

    def began(self, id_: str) -> None:
        """A session begins here, and nobody knows more of it."""
        ...

    def lives(self, session: ClientSession) -> None:
        """Something of a session is here from now on."""
        ...

    def is_current(self, session: ClientSession) -> bool:
        """Whether what it settled elsewhere is known here."""
        ...

    async def recall(self, session: ClientSession) -> None:
        """Learn what it settled elsewhere; that it has ended, too."""
        ...

    async def settle(
        self, session: ClientSession, *, level: str | None = None, add: str = "", drop: str = "", ended: bool = False
    ) -> None:
        """Let the others know what it settles here: a level of logs, a resource more or less, that it is over."""
        ...

    def streams(self, session: ClientSession) -> None:
        """Its client listens here now, and nowhere else."""
        ...

    # -- what belongs to another gateway ------------------------------------------------------------------------------

    async def bring(self, session: ClientSession, message: Message) -> None:
        """An answer, or a cancellation, that belongs to nothing here."""
        ...

    async def resume(self, session: ClientSession, last: str, stream: Stream) -> bool:
        """The rest of a stream that began elsewhere; False where there is none."""
        ...

    async def post(self, tag: str, id_: str, principal: str, message: Message) -> int:
        """A message for a stream of `/sse` that is elsewhere; the HTTP status that its client is told."""
        ...

    async def take(self, params: Json, tell: Tell) -> Json:
        """What another gateway brings us. Raises `Failure`."""
        ...
