"""A gateway's pins: what its hub compares definitions with, and how many differ."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from toolway.part_api.part import Gauge, Part, PartContext, PartRuntime

if TYPE_CHECKING:
    from toolway.catalog.pins import Pins


class PinsRuntime(PartRuntime):
    """The pins of a gateway's hub, for the admin API and metrics."""

    def __init__(self, part: Part, context: PartContext) -> None:
        self._hub = context.hub
        self.mask = context.hub.mask

    @property
    def pins(self) -> Pins | None:
        """The hub's pins, or None if it doesn't compare definitions."""
        return self._hub.lists.pins

    def gauges(self) -> Iterable[Gauge]:
        for server in self.pins.list_servers() if self.pins is not None else ():
            held = sum(each.held for each in server.deviations.values())
            for state, count in (("on_hold", held), ("in_use", len(server.deviations) - held)):
                yield Gauge("toolway_definitions_deviating", count, {"server": server.name, "state": state})
