"""What goes to an OTLP collector: where, how much of it, and its end. Loaded where that is asked for.

Spans wait in a bounded line (2,048) and are dropped beyond it; nothing that a call waits for waits for a collector.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from toolway._version import __version__
from toolway.config.telemetry import TelemetrySettings, TraceSettings
from toolway.errors import ConfigError
from toolway.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

ALL: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
METRICS: Final = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
END: Final = 5.0  # seconds that the last spans may take
INTERVAL: Final = 60.0  # seconds between two sendings of metrics


def wants_traces(settings: TelemetrySettings, environ: Mapping[str, str]) -> bool:
    return not _off(environ, "TRACES") and (settings.traces is not None or _names(environ, TRACES))


def wants_metrics(settings: TelemetrySettings, environ: Mapping[str, str]) -> bool:
    return settings.metrics and not _off(environ, "METRICS") and _names(environ, METRICS)


def _names(environ: Mapping[str, str], own: str) -> bool:
    return bool(environ.get(ALL) or environ.get(own))


def _off(environ: Mapping[str, str], signal: str) -> bool:
    return environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get(f"OTEL_{signal}_EXPORTER") == "none"


def ratio_of(settings: TraceSettings | None, environ: Mapping[str, str]) -> float | None:
    """The share of new traces that is recorded; None where the variables name a sampler of another kind."""
    if settings is not None and settings.sample is not None:
        return settings.sample
    sampler = environ.get("OTEL_TRACES_SAMPLER", "parentbased_always_on")
    if sampler in ("parentbased_always_on", "parentbased_always_off"):
        return 1.0 if sampler.endswith("on") else 0.0
    if sampler == "parentbased_traceidratio":
        try:
            return min(1.0, max(0.0, float(environ.get("OTEL_TRACES_SAMPLER_ARG", "1"))))
        except ValueError:
            return 1.0
    return None


def provider_for(settings: TraceSettings | None, environ: Mapping[str, str]) -> TracerProvider:
    """Raises `ConfigError` where OpenTelemetry is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    except ImportError as exc:
        raise _missing(exc) from None
    endpoint = settings.endpoint if settings is not None else ""
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces") if endpoint else OTLPSpanExporter()
    ours = ratio_of(settings, environ) is not None  # then whoever begins a call has decided
    provider = TracerProvider(sampler=ALWAYS_ON if ours else None, resource=_resource(environ), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _resource(environ: Mapping[str, str]) -> Resource:
    from opentelemetry.sdk.resources import Resource

    own = {} if environ.get("OTEL_SERVICE_NAME") else {"service.name": "toolway"}
    return Resource.create({**own, "service.version": __version__, "process.pid": os.getpid()})


class MetricPusher:
    """Sends what was counted, every minute and at the end, in a thread."""

    def __init__(self, metrics: Metrics, environ: Mapping[str, str]) -> None:
        """Raises `ConfigError` where OpenTelemetry is not installed."""
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

            from toolway.telemetry.otel_metrics import metrics_data
        except ImportError as exc:
            raise _missing(exc) from None
        self._metrics = metrics
        self._exporter = OTLPMetricExporter()
        self._data = metrics_data
        self._resource = _resource(environ)
        self._began = time.time_ns()
        self._interval = _interval(environ)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self.push()

    async def push(self) -> None:
        data = self._data(self._metrics.snapshot(), self._resource, self._began)
        await in_time(lambda: self._exporter.export(data))

    async def close(self) -> None:
        """Waits for the last sending, for a moment."""
        data = self._data(self._metrics.snapshot(), self._resource, self._began)

        def last() -> None:
            self._exporter.export(data)
            self._exporter.shutdown()

        await in_time(last)


async def in_time(work: Callable[[], object]) -> None:
    """Do it in a thread that nobody waits for once its time is over, not even the end of the program, as it would for a
    thread of the loop."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        with suppress(Exception):
            work()
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, name="toolway-last-telemetry", daemon=True).start()
    with suppress(TimeoutError):
        async with asyncio.timeout(END):
            await done.wait()


def _interval(environ: Mapping[str, str]) -> float:
    try:
        return max(0.1, float(environ.get("OTEL_METRIC_EXPORT_INTERVAL", INTERVAL * 1000)) / 1000)
    except ValueError:
        return INTERVAL


def _missing(exc: ImportError) -> ConfigError:
    return ConfigError(
        "traces or metrics are to be sent to a collector, and OpenTelemetry is not installed",
        evidence=str(exc),
        fix="pip install 'toolway[otel]'",
        code="E-OTEL-MISSING",
    )
