"""What the `toolway` block says about what others see of a gateway.

"toolway": {
  "telemetry": {"metrics": true, "traces": {"endpoint": "http://localhost:4318", "sample": 0.01}, "log": "json"}
}

Traces may also be asked for by the usual variables, `OTEL_EXPORTER_OTLP_ENDPOINT` and its family; what a collector
wants to be shown, such as a token, goes into `OTEL_EXPORTER_OTLP_HEADERS` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from toolway.config.fields import KEY, Fields, switched, wrong
from toolway.errors import ConfigError

LogForm = Literal["text", "json"]
FORMS: Final = ("text", "json")


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Where spans go, and of how many calls."""

    endpoint: str = ""  # of an OTLP/HTTP collector, without the path; empty: as the OTEL_… variables say
    sample: float | None = (
        None  # the share of calls, from 0 to 1, whose caller has no trace; None: as OTEL_… says, or all
    )


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """What others see of a gateway."""

    metrics: bool = True  # whether there is /metrics
    calls: bool = (
        True  # whether the last calls are remembered, for the dashboard and `toolway calls`, and failures logged
    )
    traces: TraceSettings | None = None  # spans; without it only where an OTEL_… variable asks for them
    log: LogForm = "text"  # how log lines are written: for a person, or for a program


def read_telemetry(value: Any, variables: Mapping[str, str]) -> TelemetrySettings:
    """Raises `ConfigError`."""
    if value is None:
        return TelemetrySettings()
    if not isinstance(value, Mapping):
        raise wrong("toolway.telemetry", "an object", value)
    fields = Fields(value, variables)
    traces = fields.rest.pop("traces", None)
    settings = TelemetrySettings(
        metrics=fields.flag("metrics", True),
        calls=fields.flag("calls", True),
        traces=switched(
            "toolway.telemetry.traces", traces, TraceSettings(), lambda given: _traces(Fields(given, variables))
        ),
        log=cast(LogForm, fields.choice("log", FORMS, "text")),
    )
    fields.nothing_left("toolway.telemetry", "metrics, calls, traces and log")
    return settings


def _traces(fields: Fields) -> TraceSettings:
    sample = fields.rest.pop("sample", None)
    if sample is not None and (isinstance(sample, bool) or not isinstance(sample, int | float) or not 0 <= sample <= 1):
        raise wrong("toolway.telemetry.traces.sample", "a number from 0 to 1", sample)
    endpoint = fields.text("endpoint") or ""
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise ConfigError(
            "toolway.telemetry.traces.endpoint must be the address of an OTLP/HTTP collector",
            fix="write it as http://localhost:4318",
            code=KEY,
        )
    fields.nothing_left("toolway.telemetry.traces", "endpoint and sample")
    return TraceSettings(endpoint, float(sample) if sample is not None else None)
