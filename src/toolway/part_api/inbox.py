"""What of a part waits for a yes or a no of the user, for `toolway approvals` (`Part.inbox`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from toolway.cli.exit_codes import ExitCode
    from toolway.cli.gateway_client import GatewayClient
    from toolway.cli.options import CommandContext
    from toolway.cli.output import Output
    from toolway.types import Json


class InboxPlace(NamedTuple):
    """Where a command looks: at a gateway, and on this machine."""

    gateway: GatewayClient | None  # of --gateway, or the one that runs on this machine
    is_named: bool  # by --gateway: nothing else counts
    journal: str | None  # file of runs, of --journal: nothing else counts; None: the default one

    @property
    def flag(self) -> str:
        """Option that names the same gateway in another command, with a space before it."""
        return f" -g {self.gateway.url}" if self.gateway is not None and self.is_named else ""


class InboxItem(Protocol):
    """One thing that waits: a call, or a run with one or more questions."""

    @property
    def id(self) -> str: ...

    def to_json(self) -> Json: ...

    def list_rows(self) -> Sequence[tuple[str, ...]]:
        """Return its rows in the table of what waits: id, state, kind, what, caller, time."""
        ...

    def print(self, output: Output) -> None:
        """Print it with everything that a yes would send, and how to answer it."""
        ...

    async def answer(self, context: CommandContext, step: str | None, body: Json) -> ExitCode:
        """Send a yes or a no (`yes`, `note`), and print what it causes. `step` picks one of several questions."""
        ...


class Inbox(Protocol):
    """Items of one part. It is created for one command with an `InboxPlace`."""

    async def list_waiting(self) -> Sequence[InboxItem]: ...

    async def find(self, id: str) -> InboxItem | None:
        """Return the item with this id, which the gateway or this machine knows; None if there is none."""
        ...
