"""What was counted, as the data of OpenTelemetry's metrics: the same numbers that `/metrics` shows, so a call pays for
them once."""

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
from toolway.telemetry import naming
from toolway.telemetry.metrics import Metrics
from toolway.telemetry.series import BOUNDS, Tally

_SCOPE: Final = InstrumentationScope("toolway", __version__)
_SKIPPED: Final = bisect_left(BOUNDS, naming.BOUNDS[0])  # bounds of ours below the first of the conventions


def metrics_data(metrics: Metrics, resource: Resource, began: int) -> MetricsData:
    now = time.time_ns()
    duration = Metric(
        naming.SERVER_DURATION,
        "The duration of the MCP request as observed on the receiver",
        "s",
        Histogram(list(_points(metrics, began, now)), AggregationTemporality.CUMULATIVE),
    )
    phases = Metric(
        "toolway.call.phase.time",
        "What calls waited for",
        "s",
        Sum(list(_phases(metrics, began, now)), AggregationTemporality.CUMULATIVE, is_monotonic=True),
    )
    scope = ScopeMetrics(_SCOPE, [duration, phases], "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _points(metrics: Metrics, began: int, now: int) -> Iterator[HistogramDataPoint]:
    for (server, method, tool), series in metrics.book.series.items():
        for outcome, tally in series.outcomes.items():
            attributes: dict[str, Any] = {**naming.about(method, tool), naming.SERVER: server}
            if outcome != "ok":
                attributes[naming.ERROR] = outcome
            yield _point(attributes, tally, began, now)


def _point(attributes: dict[str, Any], tally: Tally, began: int, now: int) -> HistogramDataPoint:
    buckets = [sum(tally.buckets[: _SKIPPED + 1]), *tally.buckets[_SKIPPED + 1 :]]
    exemplars = [
        Exemplar({}, each.seconds, int(each.at * 1e9), int(each.span, 16), int(each.trace, 16))
        for each in tally.exemplars.values()
    ]
    unknown = cast(float, None)  # the least and the greatest are not kept, and may be left out
    return HistogramDataPoint(
        attributes, began, now, tally.count, tally.seconds, buckets, list(naming.BOUNDS), unknown, unknown, exemplars
    )


def _phases(metrics: Metrics, began: int, now: int) -> Iterator[NumberDataPoint]:
    for server, counted in metrics.book.servers.items():
        for phase, seconds in counted.phases.items():
            yield NumberDataPoint({naming.SERVER: server, naming.PHASE: phase}, began, now, seconds)
