"""`/metrics`: counters and gauges in the Prometheus text format.

The path is authenticated like every other. Its content names all servers, so it is limited to administrators and to
API keys made for it: `toolway keys create prometheus --only /metrics`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from toolway.gateway.authenticator import json_error
from toolway.gateway.cluster_hooks import NO_CLUSTER, ClusterHooks
from toolway.gateway.principals import METRICS_ACCESS, Principal
from toolway.http.exchange import Exchange
from toolway.hub.core import HubCore
from toolway.middleware.circuit_breaker import BreakerState
from toolway.telemetry.metrics import Metrics
from toolway.types import Json

if TYPE_CHECKING:
    from toolway.part_api.part import Gauge
    from toolway.telemetry.prometheus import GaugeValue

MAX_BREAKERS: Final = 1000
_BREAKER_VALUES: Final = {BreakerState.CLOSED: 0.0, BreakerState.HALF_OPEN: 0.5, BreakerState.OPEN: 1.0}


class MetricsEndpoint:
    """Handles `/metrics`. `gateway_stats` returns the gateway counters that `/admin` shows."""

    def __init__(
        self,
        hub: HubCore,
        metrics: Metrics,
        gateway_stats: Callable[[], Json],
        gauges_of_parts: Callable[[], Awaitable[Sequence[Gauge]]],
        cluster: ClusterHooks = NO_CLUSTER,
    ) -> None:
        self._hub = hub
        self._metrics = metrics
        self._gateway_stats = gateway_stats
        self._cluster = cluster
        self._gauges_of_parts = gauges_of_parts

    async def handle(self, exchange: Exchange, principal: Principal) -> None:
        if exchange.request.method not in ("GET", "HEAD"):
            status, body, fields = json_error(405, "method not allowed: use GET")
            exchange.reply(status, body, (*fields, ("allow", "GET, HEAD")))
        elif not principal.admin and METRICS_ACCESS not in (principal.access or ()):
            hint = f"create a key for it: toolway keys create prometheus --only {METRICS_ACCESS}"
            message = "metrics require an administrator or a key made with --only /metrics"
            exchange.reply(*json_error(403, message, hint=hint))
        else:
            body, kind = await self.render(exchange.request.headers.get("accept", ""))
            exchange.reply(200, body, (("content-type", kind), ("cache-control", "no-store")))

    async def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the metrics in the Prometheus text format, and the content type.

        `accept` is the Accept header. The work is done in a thread, so it does not block the event loop.
        """
        from toolway.telemetry.prometheus import (  # lazy: loads a library that a gateway may never need
            GaugeValue,
            render_metrics,
        )

        self._metrics.store.prune(frozenset(self._hub.servers.entries))
        snapshot = self._metrics.snapshot()
        self._cluster.on_metrics_shown()
        gauges = list(self._gauges(GaugeValue))
        of_parts = await self._gauges_of_parts()
        return await asyncio.to_thread(render_metrics, snapshot, gauges, accept, of_parts)

    def _gauges(self, gauge: type[GaugeValue]) -> Iterator[GaugeValue]:
        running = Counter(call.server for call in self._hub.calls.running())
        sent, received = Counter[str](), Counter[str]()
        for report in self._cluster.worker_reports():
            running.update(report.running)
            sent.update({name: counts[0] for name, counts in report.messages.items()})
            received.update({name: counts[1] for name, counts in report.messages.items()})
        for name, status in self._hub.servers.status().items():
            labels = {"server": name}
            yield gauge("toolway_server_up", labels, status.is_up)
            yield gauge("toolway_server_state", {**labels, "transport": status.transport, "state": status.state}, 1)
            yield gauge("toolway_server_tools", labels, status.tools)
            yield gauge("toolway_server_restarts", labels, status.restarts)
            yield gauge("toolway_server_messages_sent", labels, status.messages_sent + sent[name])
            yield gauge("toolway_server_messages_received", labels, status.messages_received + received[name])
            yield gauge("toolway_server_uptime_seconds", labels, status.since if status.state == "ready" else 0.0)
            yield gauge("toolway_calls_running", labels, running[name])
            yield from self._load_gauges(gauge, name)
        for (server, tool), facts in list(self._hub.servers.breaker_status().items())[:MAX_BREAKERS]:
            yield gauge("toolway_breaker_open", {"server": server, "tool": tool}, _BREAKER_VALUES[facts.state])
        yield from self._gateway_gauges(gauge)

    def _load_gauges(self, gauge: type[GaugeValue], server: str) -> Iterator[GaugeValue]:
        labels, slots = {"server": server}, self._hub.servers.upstreams.limiters.get(server)
        waiting, retries, refused = self._hub.servers.load(server)
        if slots is not None:
            yield gauge("toolway_slots", labels, slots.capacity)
            yield gauge("toolway_slots_in_use", labels, slots.in_use)
            yield gauge("toolway_queue_limit", labels, slots.max_queue)
        yield gauge("toolway_queue_waiting", labels, waiting)
        yield gauge("toolway_retries_running", labels, retries)
        yield gauge("toolway_retry_budget_rejected", labels, refused)

    def _gateway_gauges(self, gauge: type[GaugeValue]) -> Iterator[GaugeValue]:
        facts = self._gateway_stats()
        for name, fact in (
            ("toolway_gateway_connections", "connections"),
            ("toolway_gateway_requests_running", "running"),
            ("toolway_gateway_listeners", "subscriptions"),
            ("toolway_gateway_pending_calls", "pending"),
            ("toolway_gateway_draining", "draining"),
        ):
            yield gauge(name, {}, float(facts[fact]))
        for name, value in self._cluster.gauges().items():
            yield gauge(f"toolway_cluster_{name}", {}, value)
