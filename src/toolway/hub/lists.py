"""A hub's lists of tools, prompts, and resources, with their pinned definitions and subscriptions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolway.catalog.catalog import Item, Tool
from toolway.catalog.persister import LIST_KINDS
from toolway.events import ListKind
from toolway.hub.caller_lists import OwnLists, is_on_behalf
from toolway.hub.environment import HubEnvironment
from toolway.hub.list_waits import NAMED_LIST_WAIT_S, ListWaits
from toolway.hub.servers import HubServers
from toolway.middleware.resolve import find_tool, is_bare_name, require_tool, wait_for_bare_name
from toolway.secrets.replacer import Mask
from toolway.upstream.status import describe_missing
from toolway.upstream.subscriptions import SubscriptionKind

if TYPE_CHECKING:
    from toolway.catalog.pins import PinMode, Pins
    from toolway.upstream.upstream import Upstream

_log = logging.getLogger("toolway.hub")


class HubLists:
    """Lists what a hub's servers offer. `catalog` has what is known, and `waits` waits for the rest."""

    def __init__(self, servers: HubServers, environment: HubEnvironment, mask: Mask) -> None:
        self._servers = servers
        self._upstreams = servers.upstreams
        self._context = servers.upstreams.context
        self._environment = environment
        self._mask = mask
        self._own_lists_known = (-1, False)  # changes of servers so far, and True if one of them has a list per caller
        self.catalog = servers.upstreams.catalog
        self.waits = ListWaits(servers.upstreams)
        self.pins: Pins | None = None  # None: definitions are not compared

    async def find_tool(self, name: str, timeout: float) -> Tool:
        """Find a tool by `server.tool`, `server__tool`, or its name alone if only one server has it.

        Waits up to `timeout` seconds for the server's tools, or for those of all servers if the name has no server
        part. Raises `NotFound`, `AccessDenied` if the tool is denied, `ServerUnavailable`, and `CallTimeout`.
        """
        self._upstreams.require_open()
        if is_bare_name(self.catalog, self._servers.entries, name):
            return await wait_for_bare_name(self.catalog, self.waits.wait_all_tools_known, name, timeout)
        ref, tool = find_tool(self.catalog, self._servers.entries, name)
        if tool is None:
            await self.waits.wait_fetched("tools", ref.server, timeout)
            tool = require_tool(self.catalog, ref)
        return tool

    async def list_items(self, kind: ListKind, server: str | None, wait: float | None) -> list[Item]:
        """Return the tools, prompts, resources or templates of `server`, or of all servers.

        Waits up to `wait` seconds for lists that have not been sent yet, and logs which servers are missing. None
        waits 30 s for one server, 2 s for all, and much less for a server that was late before. If `server` is given,
        raises `NotFound` if it is unknown, `ServerUnavailable` if it fails, and `CallTimeout` when time runs out.
        """
        self._upstreams.require_open()
        if server is not None:
            await self.waits.wait_fetched(kind, server, NAMED_LIST_WAIT_S if wait is None else wait)
        else:
            was_late = {name for name in self._servers.entries if self.waits.is_late(name)}
            for name in await self.waits.wait_sent(kind, list(self._upstreams.upstreams), wait):
                level = logging.DEBUG if name in was_late else logging.WARNING
                _log.log(level, "%s", self._mask(describe_missing(self._upstreams.status(name))))
        return list(self.catalog.items(kind, server))

    def share_late_servers(self) -> None:
        """Let other programs know which servers were late with a list. Call this before opening the hub."""
        self._upstreams.persister.shares_late = True

    def import_lists(self, name: str, lists: Mapping[str, list[Any]]) -> None:
        """Replace a server's known tools, prompts and resources with lists that another node fetched."""
        if name not in self._servers.entries:
            return
        for kind in LIST_KINDS:
            changed = self.catalog.replace(name, kind, lists.get(kind, ()))
            if changed is not None:
                self._context.emit(changed)

    # -- pins ---------------------------------------------------------------------------------------------------------

    def use_pins(
        self,
        folder: Path,
        mode_of: Callable[[str], PinMode],
        ignored_of: Callable[[str, str], Sequence[str]] | None = None,
    ) -> None:
        """From now on, compare the definitions that servers send with the pins in `folder`.

        `mode_of` returns a server's `pins` setting, and `ignored_of` the parts of an item that are not compared. Call
        this method before any server starts.
        """
        from toolway.catalog.pin_keeper import PIN_FILE_NAME, PinFile, PinKeeper

        self.set_pins(
            PinKeeper(
                PinFile(folder / PIN_FILE_NAME),
                mode_of,
                self._environment.wall_clock,
                self.review_again,
                self._context.emit,
                lambda seconds, poll: asyncio.get_running_loop().call_later(seconds, poll),
                ignored_of,
                lambda work, on_done: asyncio.get_running_loop().run_in_executor(None, work).add_done_callback(on_done),
            )
        )

    def set_pins(self, pins: Pins) -> None:
        """From now on, compare the definitions that servers send with these pins.

        Call this method before any server starts.
        """
        self.catalog.pins = self.pins = pins
        self._context.on_ready = self._servers.instructions  # reviews them

    def apply_pin_mode(self) -> None:
        """Compare all lists with the pins again, because the `pins` setting changed."""
        for server in self.catalog.servers():
            self.review_again(server)

    def review_again(self, server: str) -> None:
        """Compare a server's items with its pins again, because the pins changed."""
        for change in self.catalog.review_again(server):
            self._context.emit(change)

    # -- lists and subscriptions of single callers --------------------------------------------------------------------

    def own_lists(self, caller: str) -> OwnLists | None:
        """Return the filter for what a caller sees of servers that are called on the caller's behalf.

        Return None if no server is called on behalf of callers.
        """
        if self._own_lists_known[0] != self._upstreams.changes:
            found = any(is_on_behalf(each) for each in self._servers.entries.values())
            self._own_lists_known = (self._upstreams.changes, found)
        if not self._own_lists_known[1]:
            return None
        lists, subjects = self._context.caller_lists, self._upstreams.auth.subject_tokens

        def has_token() -> bool:
            return subjects is not None and subjects.find_subject_token(caller) is not None

        entries = self._servers.entries
        return OwnLists(caller, lists, entries, self.catalog.has_list, has_token, self._start_for_caller)

    def _start_for_caller(self, name: str, caller: str) -> Upstream:
        return self._upstreams.per_caller.get_or_start(name, self._servers.entries[name], caller)

    def subscription_owner(self, server: str, caller: str) -> str:
        """Return the caller id if the caller's subscriptions use the caller's own connection, or else ""."""
        upstreams = self._upstreams
        if upstreams.uses_per_caller_connections(server, upstreams.require_upstream(server)):
            return caller
        in_cluster = self._environment.per_caller_in_cluster
        is_per_caller = (
            in_cluster is not None and in_cluster(server) and not self._servers.entries[server].share_connection
        )
        return caller if is_per_caller else ""

    async def subscribe(self, server: str, kind: SubscriptionKind, name: str, owner: str) -> None:
        """Subscribe to changes of a server's resource or task.

        They arrive as `ResourceUpdated` and `TaskChanged` events. `owner` selects the connection; see
        `subscription_owner`. Raises `CallError` if the server is unknown, unavailable or rejects the subscription.
        """
        upstream = self._upstreams.require_upstream(server)
        if owner:
            upstream = self._start_for_caller(server, owner)
        await upstream.subscribe(kind, name)

    def unsubscribe(self, server: str, kind: SubscriptionKind, name: str, owner: str) -> None:
        """Undo one `subscribe` with the same arguments."""
        upstreams = self._upstreams
        upstream = upstreams.per_caller.get(server, owner) if owner else upstreams.upstreams.get(server)
        if upstream is not None:
            upstream.subscriptions.remove(kind, name)
