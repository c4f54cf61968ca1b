"""The names of our metrics, and their text as Prometheus reads it. Loaded when somebody asks for it.

`docs/reference/metrics.md` is made from the table below.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.samples import Exemplar

from toolway._version import __version__
from toolway.telemetry.metrics import Metrics
from toolway.telemetry.series import BOUNDS, Tally


class Gauge(msgspec.Struct, frozen=True):
    """One number as it is now, which somebody else knows."""

    name: str
    labels: Mapping[str, str]
    value: float


#: name → (kind, labels, what it says)
TABLE: Final[dict[str, tuple[str, tuple[str, ...], str]]] = {
    "toolway_calls": ("counter", ("server", "method", "tool", "outcome"), "Calls that ended, by what they came to"),
    "toolway_call_duration_seconds": (
        "histogram",
        ("server", "method", "tool"),
        "How long calls took, from when they came to their end, all tries included",
    ),
    "toolway_call_retries": ("counter", ("server", "method", "tool"), "Tries after the first"),
    "toolway_calls_unknown": (
        "counter",
        ("server", "method", "tool"),
        "Calls that failed and may have been executed all the same: somebody has to look",
    ),
    "toolway_call_phase_seconds": ("counter", ("server", "phase"), "What calls waited for, in seconds"),
    "toolway_calls_answered_by_another": (
        "counter",
        ("server", "source"),
        "Calls that were not sent: answered from the cache, a replay, or a call under way",
    ),
    "toolway_calls_running": ("gauge", ("server",), "Calls under way"),
    "toolway_server_state": ("gauge", ("server", "transport", "state"), "1 for the state that a server is in"),
    "toolway_server_up": ("gauge", ("server",), "1 where calls go through"),
    "toolway_server_tools": ("gauge", ("server",), "Tools that a server lists"),
    "toolway_server_restarts": ("counter", ("server",), "Starts after the first, since the last by hand"),
    "toolway_server_connects": ("counter", ("server",), "Links that came up"),
    "toolway_server_losses": ("counter", ("server",), "Links that were up and were lost"),
    "toolway_slots": ("gauge", ("server",), "Calls that a server may have at once"),
    "toolway_slots_taken": ("gauge", ("server",), "Calls that it has"),
    "toolway_queue_waiting": ("gauge", ("server",), "Calls that wait for a slot"),
    "toolway_queue_limit": ("gauge", ("server",), "Calls that may wait for a slot; one more is refused"),
    "toolway_retries_running": ("gauge", ("server",), "Retries under way"),
    "toolway_retry_budget_refused": ("counter", ("server",), "Retries that were not made, for there were too many"),
    "toolway_breaker_open": (
        "gauge",
        ("server", "tool"),
        "1 where a breaker is open, 0.5 where it is being tried; `tool` is empty for that of the server itself",
    ),
    "toolway_gateway_connections": ("gauge", (), "Connections of clients"),
    "toolway_gateway_requests_running": ("gauge", (), "Requests of clients under way"),
    "toolway_gateway_listeners": ("gauge", (), "Clients that listen for changes"),
    "toolway_gateway_parked": ("gauge", (), "Calls that wait for an answer of their client"),
    "toolway_audit_failing": ("gauge", (), "1 while the audit log cannot be written, and calls are refused"),
    "toolway_audit_waiting": ("gauge", (), "Records of the audit log that are not on disk yet"),
    "toolway_audit_lost": ("counter", (), "Records that had no place while the audit log could not be written"),
    "toolway_gateway_draining": ("gauge", (), "1 where the gateway is about to end"),
    "toolway_cluster_nodes": ("gauge", (), "Gateways of the cluster that have a lease, as this one sees it"),
    "toolway_cluster_owned": ("gauge", (), "Servers that this gateway owns; each instance counts"),
    "toolway_cluster_lease": ("gauge", (), "1 while this gateway has a lease, and may own servers"),
    "toolway_cluster_nats": ("gauge", (), "1 while this gateway is connected to NATS"),
    "toolway_loop_stalls": ("counter", (), "Times that the event loop stood still"),
    "toolway_loop_stalled_seconds": ("counter", (), "Seconds for which it stood"),
    "toolway_calls_folded": ("counter", (), "Calls counted under the tool _other, because there are too many tools"),
}


class Collector:
    """Makes metric families of what was counted, when somebody asks."""

    def __init__(self, metrics: Metrics, gauges: Iterable[Gauge]) -> None:
        self._metrics = metrics
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        info = InfoMetricFamily("toolway", "The version that runs")
        info.add_metric([], {"version": __version__})
        yield info
        families: dict[str, Any] = {name: _family(name) for name in TABLE}
        self._calls(families)
        self._servers(families)
        for gauge in self._gauges:
            labels = TABLE[gauge.name][1]
            families[gauge.name].add_metric([gauge.labels[label] for label in labels], gauge.value)
        families["toolway_loop_stalls"].add_metric([], self._metrics.stalls)
        families["toolway_loop_stalled_seconds"].add_metric([], self._metrics.stalled)
        families["toolway_calls_folded"].add_metric([], self._metrics.book.folded)
        yield from families.values()

    def _calls(self, families: dict[str, Any]) -> None:
        for labels, series in self._metrics.book.series.items():
            for outcome, tally in series.outcomes.items():
                families["toolway_calls"].add_metric([*labels, outcome], tally.count)
            whole = series.all()
            families["toolway_call_duration_seconds"].add_metric(labels, _buckets(whole), whole.seconds)
            families["toolway_call_retries"].add_metric(labels, series.retries)
            families["toolway_calls_unknown"].add_metric(labels, series.unknown)

    def _servers(self, families: dict[str, Any]) -> None:
        for name, server in self._metrics.book.servers.items():
            for phase, seconds in server.phases.items():
                families["toolway_call_phase_seconds"].add_metric([name, phase], seconds)
            for source, count in server.sources.items():
                families["toolway_calls_answered_by_another"].add_metric([name, source], count)
            families["toolway_server_connects"].add_metric([name], server.connects)
            families["toolway_server_losses"].add_metric([name], server.losses)


_KINDS: Final = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}


def _family(name: str) -> Any:
    kind, labels, what = TABLE[name]
    return _KINDS[kind](name, what, labels=labels)


def _buckets(tally: Tally) -> list[Any]:
    """Each bucket holds those before it, as the format wants."""
    found, sum_ = [], 0
    for index, count in enumerate(tally.buckets):
        sum_ += count
        bound = str(BOUNDS[index]) if index < len(BOUNDS) else "+Inf"
        exemplar = tally.exemplars.get(index)
        shown = Exemplar({"trace_id": exemplar.trace}, exemplar.seconds, exemplar.at) if exemplar is not None else None
        found.append((bound, sum_, shown))
    return found


def text(metrics: Metrics, gauges: Iterable[Gauge], accept: str) -> tuple[bytes, str]:
    """All metrics in the format that is asked for, and its content type."""
    registry = CollectorRegistry()
    registry.register(Collector(metrics, gauges))
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
