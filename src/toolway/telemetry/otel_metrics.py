"""Conversion of the counters in `Metrics` into OpenTelemetry metrics data for OTLP.

The Prometheus endpoint `/metrics` reads the same counters, so nothing is counted twice.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Final, cast

from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from toolway._version import __version__
from toolway.outcomes import OUTCOMES
from toolway.telemetry import otel_attributes
from toolway.telemetry.metrics import HISTOGRAM_BOUNDS_S, DurationHistogram, Metrics

_NO_ERROR: Final = frozenset(each.label for each in OUTCOMES if not each.is_failure)
_SCOPE: Final = InstrumentationScope("toolway", __version__)
_SKIPPED_BOUNDS: Final = bisect_left(
    HISTOGRAM_BOUNDS_S, otel_attributes.OTEL_BOUNDS_S[0]
)  # our bounds below the first bound of the conventions


def build_metrics_data(metrics: Metrics, resource: Resource, started_ns: int) -> MetricsData:
    now_ns = time.time_ns()
    duration = Metric(
        otel_attributes.SERVER_DURATION_METRIC,
        "The duration of the MCP request as observed on the receiver",
        "s",
        Histogram(list(_duration_points(metrics, started_ns, now_ns)), AggregationTemporality.CUMULATIVE),
    )
    phases = Metric(
        "toolway.call.phase.time",
        "Time that calls spent in each phase",
        "s",
        Sum(list(_phase_points(metrics, started_ns, now_ns)), AggregationTemporality.CUMULATIVE, is_monotonic=True),
    )
    scope = ScopeMetrics(_SCOPE, [duration, phases], "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _duration_points(metrics: Metrics, started_ns: int, now_ns: int) -> Iterator[HistogramDataPoint]:
    for (server, method, tool), series in metrics.store.series.items():
        for (outcome, code), histogram in series.outcomes.items():
            attributes: dict[str, Any] = {
                **otel_attributes.request_attributes(method, tool),
                otel_attributes.ATTR_SERVER: server,
            }
            if outcome not in _NO_ERROR:
                attributes[otel_attributes.ATTR_ERROR_TYPE] = code or outcome
            yield _duration_point(attributes, histogram, started_ns, now_ns)


def _duration_point(
    attributes: dict[str, Any], histogram: DurationHistogram, started_ns: int, now_ns: int
) -> HistogramDataPoint:
    buckets = [sum(histogram.buckets[: _SKIPPED_BOUNDS + 1]), *histogram.buckets[_SKIPPED_BOUNDS + 1 :]]
    exemplars = [
        Exemplar({}, each.seconds, int(each.at * 1e9), int(each.span, 16), int(each.trace, 16))
        for each in histogram.exemplars.values()
    ]
    unknown = cast(float, None)  # minimum and maximum are not counted; the protocol allows to omit them
    return HistogramDataPoint(
        attributes,
        started_ns,
        now_ns,
        histogram.count,
        histogram.seconds,
        buckets,
        list(otel_attributes.OTEL_BOUNDS_S),
        unknown,
        unknown,
        exemplars,
    )


def _phase_points(metrics: Metrics, started_ns: int, now_ns: int) -> Iterator[NumberDataPoint]:
    for server, server_series in metrics.store.servers.items():
        for phase, seconds in server_series.phases.items():
            yield NumberDataPoint(
                {otel_attributes.ATTR_SERVER: server, otel_attributes.ATTR_PHASE: phase}, started_ns, now_ns, seconds
            )
