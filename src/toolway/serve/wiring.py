"""A gateway's metrics and traces, created from its settings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from toolway.config.settings import TelemetrySettings
from toolway.errors import ConfigError
from toolway.hub.core import HubCore
from toolway.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from toolway.telemetry.otlp import MetricsPusher


_log = logging.getLogger("toolway.gateway")


class Telemetry:
    """Metrics and traces of a gateway. `metrics` is None if metrics are off.

    A trace collector named in the configuration file must be valid. An invalid collector named only by environment
    variables, which may be meant for other programs, is skipped with a warning.
    """

    def __init__(self, settings: TelemetrySettings, environ: Mapping[str, str]) -> None:
        """Create metrics and exporters from the settings.

        Raises `ConfigError` if the collector in the configuration file is invalid.
        """
        self.metrics = Metrics() if settings.metrics else None
        self._provider: TracerProvider | None = None
        self._pusher: MetricsPusher | None = None
        self._push_task: asyncio.Task[None] | None = None
        self._sample_ratio: float | None = None
        if settings.traces is not None or any(name.startswith("OTEL_EXPORTER_OTLP") for name in environ):
            self._open_collector(settings, environ)

    def _open_collector(self, settings: TelemetrySettings, environ: Mapping[str, str]) -> None:
        from toolway.telemetry import otlp

        try:
            if otlp.is_trace_export_enabled(settings, environ):
                self._provider = otlp.create_tracer_provider(settings.traces, environ)
                self._sample_ratio = otlp.get_sample_ratio(settings.traces, environ)
            if self.metrics is not None and otlp.is_metrics_export_enabled(settings, environ):
                self._pusher = otlp.MetricsPusher(self.metrics, environ)
        except ConfigError as exc:
            if settings.traces is not None:
                raise
            _log.warning("%s", exc)

    def attach(self, hub: HubCore) -> None:
        if self.metrics is not None:
            hub.instrumentation.add_sink(self.metrics)
        if self._provider is not None:
            from opentelemetry.trace import set_tracer_provider

            set_tracer_provider(self._provider)  # for the MCP SDK's own spans, if a server runs in this process
            hub.enable_tracing(self._provider, self._sample_ratio)

    def start(self) -> None:
        if self._pusher is not None:
            self._push_task = asyncio.get_running_loop().create_task(self._pusher.run())

    async def close(self) -> None:
        """Send the remaining metrics and traces to the collector; data not sent in time is lost."""
        pending = []
        if self._push_task is not None and self._pusher is not None:
            self._push_task.cancel()
            await asyncio.gather(self._push_task, return_exceptions=True)
            pending.append(self._pusher.close())
        if self._provider is not None:
            from toolway.telemetry.otlp import run_with_deadline

            pending.append(run_with_deadline(self._provider.shutdown))
            self._provider = None
        await asyncio.gather(*pending)
