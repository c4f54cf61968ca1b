"""`/metrics`: what was counted, and how everything stands, as Prometheus reads it.

The rules of the door hold here as everywhere. It names all servers, so it is for administrators, and for keys that were
made for it: `toolway keys create prometheus --scope /metrics`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from toolway.gateway.door import problem
from toolway.gateway.http.exchange import Exchange
from toolway.gateway.principals import Principal
from toolway.hub import Hub
from toolway.model import Json
from toolway.resilience.breaker import Position
from toolway.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from toolway.telemetry.exposition import Gauge

SCOPE: Final = "/metrics"  # of a key; no group can be called so
MOST_BREAKERS: Final = 1000
_OPENNESS: Final = {Position.CLOSED: 0.0, Position.HALF_OPEN: 0.5, Position.OPEN: 1.0}


class MetricsPage:
    """`facts` are those of the gateway, as `/admin` shows them."""

    def __init__(self, hub: Hub, metrics: Metrics, facts: Callable[[], Json]) -> None:
        self._hub = hub
        self._metrics = metrics
        self._facts = facts
        self.cluster: Callable[[], Mapping[str, float]] | None = None  # how one of several gateways stands

    async def handle(self, exchange: Exchange, principal: Principal) -> None:
        if exchange.request.method not in ("GET", "HEAD"):
            status, body, fields = problem(405, "metrics are only read")
            exchange.reply(status, body, (*fields, ("allow", "GET, HEAD")))
        elif not principal.admin and SCOPE not in (principal.scopes or ()):
            fix = f"make a key for it: toolway keys create prometheus --scope {SCOPE}"
            exchange.reply(*problem(403, "metrics are for administrators, and for keys made for them", fix=fix))
        else:
            body, kind = await self.text(exchange.request.headers.get("accept", ""))
            exchange.reply(200, body, (("content-type", kind), ("cache-control", "no-store")))

    async def text(self, accept: str = "") -> tuple[bytes, str]:
        """Many series take a while to write: whoever calls meanwhile does not wait for that."""
        from toolway.telemetry.exposition import Gauge, text  # with its library, which a gateway may never need

        self._metrics.book.forget(frozenset(self._hub.servers))
        taken, gauges = self._metrics.snapshot(), list(self._gauges(Gauge))
        return await asyncio.to_thread(text, taken, gauges, accept)

    def _gauges(self, gauge: type[Gauge]) -> Iterator[Gauge]:
        running = Counter(call.server for call in self._hub.running())
        for name, status in self._hub.status().items():
            labels = {"server": name}
            yield gauge("toolway_server_up", labels, status.state == "ready")
            yield gauge("toolway_server_state", {**labels, "transport": status.transport, "state": status.state}, 1)
            yield gauge("toolway_server_tools", labels, status.tools)
            yield gauge("toolway_server_restarts", labels, status.restarts)
            yield gauge("toolway_calls_running", labels, running[name])
            yield from self._load(gauge, name)
        for (server, tool), facts in list(self._hub.breakers().items())[:MOST_BREAKERS]:
            yield gauge("toolway_breaker_open", {"server": server, "tool": tool}, _OPENNESS[facts.position])
        yield from self._of_gateway(gauge)

    def _load(self, gauge: type[Gauge], server: str) -> Iterator[Gauge]:
        labels, slots = {"server": server}, self._hub.slots(server)
        waiting, retries, refused = self._hub.crowd(server)
        if slots is not None:
            yield gauge("toolway_slots", labels, slots.all)
            yield gauge("toolway_slots_taken", labels, slots.taken)
            yield gauge("toolway_queue_limit", labels, slots.longest)
        yield gauge("toolway_queue_waiting", labels, waiting)
        yield gauge("toolway_retries_running", labels, retries)
        yield gauge("toolway_retry_budget_refused", labels, refused)

    def _of_gateway(self, gauge: type[Gauge]) -> Iterator[Gauge]:
        facts = self._facts()
        for name, fact in (
            ("toolway_gateway_connections", "connections"),
            ("toolway_gateway_requests_running", "under_way"),
            ("toolway_gateway_listeners", "listening"),
            ("toolway_gateway_parked", "parked"),
            ("toolway_gateway_draining", "draining"),
        ):
            yield gauge(name, {}, float(facts[fact]))
        for name, value in self.cluster().items() if self.cluster is not None else ():
            yield gauge(f"toolway_cluster_{name}", {}, value)
        audit = self._hub.audit
        if audit is not None:
            yield gauge("toolway_audit_failing", {}, audit.trouble is not None)
            yield gauge("toolway_audit_waiting", {}, audit.waiting)
            yield gauge("toolway_audit_lost", {}, audit.lost_ever)
