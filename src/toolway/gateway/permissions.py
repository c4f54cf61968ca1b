"""Access rules from a part, on top of groups and the access of keys: which items a principal may see and call.

One part may decide. An endpoint's view asks `PrincipalAccess` which items to show, and the dispatcher asks the same
object whether a call may be sent, so lists and calls agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from toolway.catalog.catalog import Item
from toolway.events import ListKind
from toolway.gateway.principals import Principal


class PrincipalAccess(Protocol):
    """Decisions about one principal, or about several that the rules treat alike."""

    @property
    def version(self) -> int:
        """A number that changes whenever decisions may have changed."""
        ...

    def shows(self, kind: ListKind, item: Item) -> bool:
        """Return True if lists may show an item: a call is allowed, at least with some arguments."""
        ...

    def may_include(self, server: str) -> bool:
        """Return False if no item of a server can ever be allowed."""
        ...

    def has_many_unknown(self, items: Iterable[tuple[ListKind, Item]]) -> bool:
        """Return True if so many items are undecided that you should call `prepare` to decide on them."""
        ...

    async def prepare(self, items: Iterable[tuple[ListKind, Item]]) -> None:
        """Decide on many items without blocking the event loop."""
        ...

    def needs_arguments(self, tool: Item) -> bool:
        """Return True if each call to a tool needs its own decision."""
        ...

    def allows_call(self, tool: Item, arguments: Mapping[str, Any]) -> bool:
        """Return True if a tool may be called with these arguments."""
        ...

    def allows_read(self, server: str, uri: str) -> bool:
        """Return True if a URI of a server may be read. It need not be in any list."""
        ...

    def report_call(self, principal: Principal, tool: Item, arguments: Mapping[str, Any]) -> None:
        """Report to the audit log that a call was denied. The client is not informed."""
        ...

    def report_hidden(self, principal: Principal, kind: ListKind, item: Item) -> None:
        """Report to the audit log that a client named an item that only this object hides."""
        ...

    def report_read(self, principal: Principal, server: str, uri: str) -> None:
        """Report to the audit log that a read was denied. The client is not informed."""
        ...

    def denial_hint(self, principal: Principal, name: str) -> str:
        """Return the hint for an administrator whose call to the tool `name` is denied."""
        ...


class AccessFilter(Protocol):
    """A part's rules as loaded. When the rules change, there is a new object."""

    def access_for(self, principal: Principal) -> PrincipalAccess:
        """Return the decisions about a principal."""
        ...


class Permissions:
    """The part of a gateway that decides on access, if there is one."""

    def __init__(self) -> None:
        self.source: Callable[[], AccessFilter | None] = _no_filter
        self.on_changed: Callable[[], None] = lambda: None  # gives every client a new view; set by the gateway

    def decide_by(self, source: Callable[[], AccessFilter | None]) -> None:
        """Let the rules from `source` decide. None means no rules.

        Raises `LookupError` if another part already decides.
        """
        if self.source is not _no_filter:
            raise LookupError("another part already decides about access")
        self.source = source

    def access_for(self, principal: Principal) -> PrincipalAccess | None:
        """Return the decisions about a principal, or None without rules."""
        rules = self.source()
        return rules.access_for(principal) if rules is not None else None


def _no_filter() -> None:
    return None
