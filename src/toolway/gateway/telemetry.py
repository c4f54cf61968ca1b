"""What others see of a gateway, put together as its settings say: metrics, traces, log lines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from toolway.config.telemetry import TelemetrySettings
from toolway.errors import ConfigError
from toolway.hub import Hub
from toolway.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from toolway.telemetry.otlp import MetricPusher

_log = logging.getLogger("toolway.gateway")


class Telemetry:
    """`metrics` is None where they are off. A collector that the file names must be possible; one that only a variable
    names, which may be meant for others, is left out with a warning where it is not."""

    def __init__(self, settings: TelemetrySettings, environ: Mapping[str, str]) -> None:
        """Raises `ConfigError`."""
        self.metrics = Metrics() if settings.metrics else None
        self._provider: TracerProvider | None = None
        self._pusher: MetricPusher | None = None
        self._pushing: asyncio.Task[None] | None = None
        self._sample: float | None = None
        if settings.traces is not None or any(name.startswith("OTEL_EXPORTER_OTLP") for name in environ):
            self._open_collector(settings, environ)

    def _open_collector(self, settings: TelemetrySettings, environ: Mapping[str, str]) -> None:
        from toolway.telemetry import otlp

        try:
            if otlp.wants_traces(settings, environ):
                self._provider = otlp.provider_for(settings.traces, environ)
                self._sample = otlp.ratio_of(settings.traces, environ)
            if self.metrics is not None and otlp.wants_metrics(settings, environ):
                self._pusher = otlp.MetricPusher(self.metrics, environ)
        except ConfigError as exc:
            if settings.traces is not None:
                raise
            _log.warning("%s", exc)

    def listen_to(self, hub: Hub) -> None:
        if self.metrics is not None:
            hub.listen(self.metrics)
        if self._provider is not None:
            from opentelemetry.trace import set_tracer_provider

            set_tracer_provider(self._provider)  # for the SDK's own spans, where a server runs in this process
            hub.trace(self._provider, self._sample)

    def start(self) -> None:
        if self._pusher is not None:
            self._pushing = asyncio.get_running_loop().create_task(self._pusher.run())

    async def close(self) -> None:
        """Send what is left, as far as that takes no long."""
        last = []
        if self._pushing is not None and self._pusher is not None:
            self._pushing.cancel()
            await asyncio.gather(self._pushing, return_exceptions=True)
            last.append(self._pusher.close())
        if self._provider is not None:
            from toolway.telemetry.otlp import in_time

            last.append(in_time(self._provider.shutdown))
            self._provider = None
        await asyncio.gather(*last)
