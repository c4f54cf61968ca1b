"""Metric names and the Prometheus text format. Imported on the first request to `/metrics`.

`docs/reference/metrics.md` is generated from the table below.
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
from toolway.part_api import registry
from toolway.part_api.part import Gauge
from toolway.telemetry.metrics import HISTOGRAM_BOUNDS_S, DurationHistogram, Metrics


class GaugeValue(msgspec.Struct, frozen=True):
    """Current value of one metric with its labels, read from a gateway component at scrape time."""

    name: str
    labels: Mapping[str, str]
    value: float


#: name → (kind, labels, help text). The text format appends `_total` to the names of counters.
METRICS: Final[dict[str, tuple[str, tuple[str, ...], str]]] = {
    "toolway_calls": (
        "counter",
        ("server", "method", "tool", "outcome", "code"),
        "Finished calls by outcome; `code` is the error code, if any",
    ),
    "toolway_call_duration_seconds": (
        "histogram",
        ("server", "method", "tool"),
        "Duration of calls from arrival to end, including all attempts",
    ),
    "toolway_call_retries": ("counter", ("server", "method", "tool"), "Attempts after the first"),
    "toolway_calls_unknown": (
        "counter",
        ("server", "method", "tool"),
        "Failed calls that may have run; check each one",
    ),
    "toolway_call_phase_seconds": ("counter", ("server", "phase"), "Seconds that calls spent in each phase"),
    "toolway_calls_not_sent": (
        "counter",
        ("server", "source"),
        "Calls that were not sent: answered from the cache, a replay, or an identical call in flight",
    ),
    "toolway_calls_running": ("gauge", ("server",), "Calls in flight"),
    "toolway_server_state": ("gauge", ("server", "transport", "state"), "1 for the current state of a server"),
    "toolway_server_up": ("gauge", ("server",), "1 if the server accepts calls and passed its last health check"),
    "toolway_server_tools": ("gauge", ("server",), "Tools that a server lists"),
    "toolway_server_restarts": ("counter", ("server",), "Restarts since the last manual start"),
    "toolway_server_connects": ("counter", ("server",), "Established connections"),
    "toolway_server_disconnects": ("counter", ("server",), "Lost connections"),
    "toolway_server_messages_sent": (
        "counter",
        ("server",),
        "Messages sent to a server: requests, notifications and responses to its requests",
    ),
    "toolway_server_messages_received": (
        "counter",
        ("server",),
        "Messages received from a server: results, errors, notifications and its requests",
    ),
    "toolway_server_uptime_seconds": ("gauge", ("server",), "Seconds since the server became ready; 0 if it is not"),
    "toolway_slots": ("gauge", ("server",), "Concurrency limit of a server"),
    "toolway_slots_in_use": ("gauge", ("server",), "Concurrency slots in use"),
    "toolway_queue_waiting": ("gauge", ("server",), "Calls queued for a slot"),
    "toolway_queue_limit": ("gauge", ("server",), "Maximum number of queued calls; more calls are rejected"),
    "toolway_retries_running": ("gauge", ("server",), "Retries in flight"),
    "toolway_retry_budget_rejected": ("counter", ("server",), "Retries rejected by the retry budget"),
    "toolway_breaker_open": (
        "gauge",
        ("server", "tool"),
        "1 if a circuit breaker is open, 0.5 if it is half-open; `tool` is empty for the breaker of the server",
    ),
    "toolway_approvals": (
        "counter",
        ("server", "action"),
        "Questions about calls: `asked`, `approved`, `denied`, `used`, `rejected`, `expired`",
    ),
    "toolway_workflow_runs": (
        "counter",
        ("workflow", "state"),
        "Workflow runs that reached a state: asks, waiting, done, failed, undone, cancelled, stuck or damaged",
    ),
    "toolway_workflow_run_seconds": ("counter", ("workflow",), "Seconds from start to end of ended workflow runs"),
    "toolway_workflow_steps": ("counter", ("workflow", "outcome"), "Calls of workflow steps by outcome"),
    "toolway_workflow_step_seconds": ("counter", ("workflow",), "Seconds that calls of workflow steps took"),
    "toolway_gateway_connections": ("gauge", (), "Client connections"),
    "toolway_gateway_requests_running": ("gauge", (), "Client requests in flight"),
    "toolway_gateway_listeners": ("gauge", (), "Clients that subscribe to changes"),
    "toolway_gateway_pending_calls": ("gauge", (), "Calls waiting for client input"),
    "toolway_gateway_draining": ("gauge", (), "1 while the gateway drains before it stops"),
    "toolway_cluster_nodes": ("gauge", (), "Nodes with a lease, as seen by this node"),
    "toolway_cluster_owned": ("gauge", (), "Server instances that this node owns"),
    "toolway_cluster_lease": ("gauge", (), "1 while this node has a lease and may own servers"),
    "toolway_cluster_nats": ("gauge", (), "1 while this node is connected to NATS"),
    "toolway_loop_stalls": ("counter", (), "Stalls of the event loop"),
    "toolway_loop_stalled_seconds": ("counter", (), "Seconds that the event loop was stalled"),
    "toolway_calls_overflow": ("counter", (), "Calls counted under the tool _other, because there are too many tools"),
}


def all_metrics() -> dict[str, tuple[str, tuple[str, ...], str]]:
    """Return type, labels and meaning of all metrics, by name: the core's, and those defined by the parts in use."""
    of_parts = {name: (each.kind, each.labels, each.help) for name, each in registry.metrics().items()}
    return {**METRICS, **{name: each for name, each in of_parts.items() if name not in METRICS}}


class MetricsCollector:
    """Prometheus collector: builds metric families from the counters at scrape time."""

    def __init__(self, metrics: Metrics, gauges: Iterable[GaugeValue], of_parts: Iterable[Gauge]) -> None:
        self._metrics = metrics
        self._gauges = gauges
        self._of_parts = of_parts

    def collect(self) -> Iterator[Metric]:
        info = InfoMetricFamily("toolway", "Running version")
        info.add_metric([], {"version": __version__})
        yield info
        families: dict[str, Any] = {name: _create_family(name) for name in METRICS}
        self._add_calls(families)
        self._add_servers(families)
        for gauge in self._gauges:
            labels = METRICS[gauge.name][1]
            families[gauge.name].add_metric([gauge.labels[label] for label in labels], gauge.value)
        self._add_runs(families)
        self._add_parts(families)
        families["toolway_loop_stalls"].add_metric([], self._metrics.stalls)
        families["toolway_loop_stalled_seconds"].add_metric([], self._metrics.stalled_seconds)
        families["toolway_calls_overflow"].add_metric([], self._metrics.store.overflow)
        yield from families.values()

    def _add_calls(self, families: dict[str, Any]) -> None:
        for labels, series in self._metrics.store.series.items():
            for (outcome, code), histogram in series.outcomes.items():
                families["toolway_calls"].add_metric([*labels, outcome, code], histogram.count)
            total = series.total()
            families["toolway_call_duration_seconds"].add_metric(labels, _cumulative_buckets(total), total.seconds)
            families["toolway_call_retries"].add_metric(labels, series.retries)
            families["toolway_calls_unknown"].add_metric(labels, series.unknown)

    def _add_parts(self, families: dict[str, Any]) -> None:
        declared = registry.metrics()
        families |= {
            name: _FAMILY_TYPES[each.kind](name, each.help, labels=each.labels)
            for name, each in declared.items()
            if name not in METRICS
        }
        for gauge in self._of_parts:
            if gauge.name in declared and gauge.name not in METRICS:
                labels = [str(gauge.labels.get(label, "")) for label in declared[gauge.name].labels]
                families[gauge.name].add_metric(labels, gauge.value)

    def _add_runs(self, families: dict[str, Any]) -> None:
        runs = self._metrics.runs
        for labels, count in runs.states.items():
            families["toolway_workflow_runs"].add_metric(labels, count)
        for labels, count in runs.steps.items():
            families["toolway_workflow_steps"].add_metric(labels, count)
        for workflow, seconds in runs.seconds.items():
            families["toolway_workflow_run_seconds"].add_metric([workflow], seconds)
        for workflow, seconds in runs.step_seconds.items():
            families["toolway_workflow_step_seconds"].add_metric([workflow], seconds)

    def _add_servers(self, families: dict[str, Any]) -> None:
        for name, server in self._metrics.store.servers.items():
            for phase, seconds in server.phases.items():
                families["toolway_call_phase_seconds"].add_metric([name, phase], seconds)
            for source, count in server.sources.items():
                families["toolway_calls_not_sent"].add_metric([name, source], count)
            for action, count in server.approvals.items():
                families["toolway_approvals"].add_metric([name, action], count)
            families["toolway_server_connects"].add_metric([name], server.connects)
            families["toolway_server_disconnects"].add_metric([name], server.disconnects)


_FAMILY_TYPES: Final = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}


def _create_family(name: str) -> Any:
    kind, labels, help_text = METRICS[name]
    return _FAMILY_TYPES[kind](name, help_text, labels=labels)


def _cumulative_buckets(histogram: DurationHistogram) -> list[Any]:
    """Return the buckets for Prometheus, each as (upper bound, cumulative count, exemplar)."""
    found, total = [], 0
    for index, count in enumerate(histogram.buckets):
        total += count
        bound = str(HISTOGRAM_BOUNDS_S[index]) if index < len(HISTOGRAM_BOUNDS_S) else "+Inf"
        exemplar = histogram.exemplars.get(index)
        converted = (
            Exemplar({"trace_id": exemplar.trace}, exemplar.seconds, exemplar.at) if exemplar is not None else None
        )
        found.append((bound, total, converted))
    return found


def render_metrics(
    metrics: Metrics, gauges: Iterable[GaugeValue], accept: str, of_parts: Iterable[Gauge] = ()
) -> tuple[bytes, str]:
    """Render all metrics as text in the Prometheus format that the `Accept` header selects.

    Return the response body and its content type.
    """
    collectors = CollectorRegistry()
    collectors.register(MetricsCollector(metrics, gauges, of_parts))
    ProcessCollector(registry=collectors)
    encode, content_type = choose_encoder(accept)
    return encode(collectors), content_type
