"""Flows in a running gateway."""

from __future__ import annotations

from typing import Any, cast

from toolway.hub.core import HubCore
from toolway.part_api.part import Part, PartContext, PartRuntime
from toolway.parts.flows.call_flows import CallFlows
from toolway.parts.flows.labels import FlowMode
from toolway.parts.flows.settings import FlowSettings
from toolway.parts.flows.store import FlowStore


class FlowsRuntime(PartRuntime):
    """A gateway's flow check. Without a gate or store, `flows` is None, and no call is checked."""

    def __init__(self, hub: HubCore, flows: CallFlows | None) -> None:
        self.hub = hub
        self.flows = flows
        self._mode: FlowMode | None = None

    @staticmethod
    def open(part: Part, context: PartContext) -> FlowsRuntime:
        """Add the flow check to a gateway's gate."""
        hub, database = context.hub, context.open_database(part)
        if context.gate is None or database is None:
            return FlowsRuntime(hub, None)
        flows = CallFlows(FlowStore(database), lambda: hub.servers.entries, hub.emit)
        context.gate.add_check(flows)
        return FlowsRuntime(hub, flows)

    def apply(self, settings: Any) -> None:
        found: FlowSettings | None = settings
        self._mode = cast("FlowMode | None", (found.flows if found is not None else "") or None)
        self.on_servers_changed()

    def on_servers_changed(self) -> None:
        """Update the mode: if it is not set, it depends on the labels in the server entries."""
        if self.flows is not None and self.flows.set_mode(self._mode):
            self.hub.calls.on_approval_rules_changed()

    async def close(self) -> None:
        if self.flows is not None:
            await self.flows.close()
