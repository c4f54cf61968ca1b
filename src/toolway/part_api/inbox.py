"""What in a part is waiting for your decision, for `toolway approvals` (`Part.inbox`)."""

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
    """Where a command looks for waiting items: on a gateway and on this machine."""

    gateway: GatewayClient | None  # of --gateway, or the one that runs on this machine
    is_named: bool  # by --gateway: nothing else counts
    journal: str | None  # file of runs, of --journal: nothing else counts; None: the default one

    @property
    def flag(self) -> str:
        """Return the option that makes another command use the same gateway, with a leading space."""
        return f" -g {self.gateway.url}" if self.gateway is not None and self.is_named else ""


class InboxItem(Protocol):
    """One waiting item: a call, or a run with one or more questions."""

    @property
    def id(self) -> str: ...

    def to_json(self) -> Json: ...

    def list_rows(self) -> Sequence[tuple[str, ...]]:
        """Return the item's table rows: id, state, kind, what it is, caller, and time."""
        ...

    def print(self, output: Output) -> None:
        """Print the item, everything that approving it would send, and how to answer."""
        ...

    async def answer(self, context: CommandContext, step: str | None, body: Json) -> ExitCode:
        """Send the answer (`yes`, with an optional `note`), and print the result.

        `step` selects one of several questions.
        """
        ...


class Inbox(Protocol):
    """The waiting items of one part, created for one command with an `InboxPlace`."""

    async def list_waiting(self) -> Sequence[InboxItem]: ...

    async def find(self, id: str) -> InboxItem | None:
        """Return the item with this id, from the gateway or this machine, or None if there is none."""
        ...
