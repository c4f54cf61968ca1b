"""Exports traces and metrics to an OTLP collector: endpoint, sampling, shutdown.

This is imported only if it is enabled. Up to 2,048 spans are queued, and more are dropped. A call never waits for the
collector.
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
from toolway.config.settings import TelemetrySettings, TraceSettings
from toolway.errors import ConfigError
from toolway.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

OTLP_ENDPOINT_VAR: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
OTLP_TRACES_ENDPOINT_VAR: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
OTLP_METRICS_ENDPOINT_VAR: Final = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
EXPORT_TIMEOUT_S: Final = 5.0  # for the last export
EXPORT_INTERVAL_S: Final = 60.0  # of metrics


def is_trace_export_enabled(settings: TelemetrySettings, environ: Mapping[str, str]) -> bool:
    return not _is_disabled(environ, "TRACES") and (
        settings.traces is not None or _has_endpoint(environ, OTLP_TRACES_ENDPOINT_VAR)
    )


def is_metrics_export_enabled(settings: TelemetrySettings, environ: Mapping[str, str]) -> bool:
    return (
        settings.metrics and not _is_disabled(environ, "METRICS") and _has_endpoint(environ, OTLP_METRICS_ENDPOINT_VAR)
    )


def _has_endpoint(environ: Mapping[str, str], signal_var: str) -> bool:
    return bool(environ.get(OTLP_ENDPOINT_VAR) or environ.get(signal_var))


def _is_disabled(environ: Mapping[str, str], signal: str) -> bool:
    return environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get(f"OTEL_{signal}_EXPORTER") == "none"


def get_sample_ratio(settings: TraceSettings | None, environ: Mapping[str, str]) -> float | None:
    """Return the share (0 to 1) of new traces to record, from settings or the environment.

    Return None if `OTEL_TRACES_SAMPLER` selects a sampler that only the OpenTelemetry SDK knows.
    """
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


def create_tracer_provider(settings: TraceSettings | None, environ: Mapping[str, str]) -> TracerProvider:
    """Create an OpenTelemetry tracer provider that exports spans to an OTLP collector.

    Raises `ConfigError` if OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    except ImportError as exc:
        raise _not_installed_error(exc) from None
    endpoint = settings.endpoint if settings is not None else ""
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces") if endpoint else OTLPSpanExporter()
    samples_itself = get_sample_ratio(settings, environ) is not None  # then `OtelTracer` samples, not the provider
    provider = TracerProvider(
        sampler=ALWAYS_ON if samples_itself else None, resource=_create_resource(environ), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _create_resource(environ: Mapping[str, str]) -> Resource:
    from opentelemetry.sdk.resources import Resource

    name = {} if environ.get("OTEL_SERVICE_NAME") else {"service.name": "toolway"}
    return Resource.create({**name, "service.version": __version__, "process.pid": os.getpid()})


class MetricsPusher:
    """Exports the metrics to an OTLP collector, every minute by default and once on close.

    The export runs in a thread.
    """

    def __init__(self, metrics: Metrics, environ: Mapping[str, str]) -> None:
        """Create the OTLP exporter. Raises `ConfigError` if OpenTelemetry is not installed."""
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

            from toolway.telemetry.otel_metrics import build_metrics_data
        except ImportError as exc:
            raise _not_installed_error(exc) from None
        self._metrics = metrics
        self._exporter = OTLPMetricExporter()
        self._build_data = build_metrics_data
        self._resource = _create_resource(environ)
        self._started_ns = time.time_ns()
        self._interval = _export_interval(environ)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self.push()

    async def push(self) -> None:
        data = self._build_data(self._metrics.snapshot(), self._resource, self._started_ns)
        await run_with_deadline(lambda: self._exporter.export(data))

    async def close(self) -> None:
        """Export the metrics for the last time and shut down the exporter. Give up after 5 s."""
        data = self._build_data(self._metrics.snapshot(), self._resource, self._started_ns)

        def export_and_shutdown() -> None:
            self._exporter.export(data)
            self._exporter.shutdown()

        await run_with_deadline(export_and_shutdown)


async def run_with_deadline(work: Callable[[], object]) -> None:
    """Run `work` in a daemon thread and wait at most 5 s for it. Its errors are ignored.

    After that time, the thread is abandoned. Unlike executor threads, it does not delay the interpreter's exit.
    """
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        with suppress(Exception):
            work()
        with suppress(RuntimeError):  # the loop is already closed
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, name="toolway-last-telemetry", daemon=True).start()
    with suppress(TimeoutError):
        async with asyncio.timeout(EXPORT_TIMEOUT_S):
            await done.wait()


def _export_interval(environ: Mapping[str, str]) -> float:
    try:
        return max(0.1, float(environ.get("OTEL_METRIC_EXPORT_INTERVAL", EXPORT_INTERVAL_S * 1000)) / 1000)
    except ValueError:
        return EXPORT_INTERVAL_S


def _not_installed_error(exc: ImportError) -> ConfigError:
    return ConfigError(
        "traces or metrics are configured, but OpenTelemetry is not installed",
        detail=str(exc),
        hint="pip install 'toolway[otel]'",
        code="E-OTEL-MISSING",
    )
