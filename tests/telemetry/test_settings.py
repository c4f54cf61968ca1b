"""Telemetry settings of the config file and the environment, and missing packages."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from toolway.config.settings import TelemetrySettings, TraceSettings, parse_gateway
from toolway.errors import ConfigError
from toolway.serve.wiring import Telemetry
from toolway.telemetry import otlp

NAMED = {otlp.OTLP_ENDPOINT_VAR: "http://127.0.0.1:9"}


def read(telemetry: Any) -> TelemetrySettings:
    return parse_gateway({"telemetry": telemetry}, {"HOST": "collector"}).telemetry


def test_metrics_are_on_and_traces_off_by_default() -> None:
    assert read(None) == TelemetrySettings(metrics=True, calls=True, traces=None, log="text")


def test_every_setting_is_parsed() -> None:
    block = {
        "metrics": False,
        "calls": False,
        "log": "json",
        "traces": {"endpoint": "http://${HOST}:4318", "sample": 0.5},
    }
    assert read(block) == TelemetrySettings(False, False, TraceSettings("http://collector:4318", 0.5), "json")
    assert read({"traces": True}).traces == TraceSettings()
    assert read({"traces": False}).traces is None


@pytest.mark.parametrize(
    "block",
    [
        [],
        {"metrics": "yes"},
        {"log": "xml"},
        {"metric": True},
        {"traces": "http://x"},
        {"traces": {"endpoint": "collector:4317"}},
        {"traces": {"sample": 2}},
        {"traces": {"sample": True}},
        {"traces": {"headers": {"authorization": "x"}}},
    ],
)
def test_invalid_settings_are_rejected(block: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        read(block)
    assert caught.value.code.startswith("E-CONFIG")


@pytest.fixture
def without_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.metric_exporter"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("without_opentelemetry")
def test_configured_traces_without_package_are_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        Telemetry(TelemetrySettings(traces=TraceSettings()), {})
    assert caught.value.code == "E-OTEL-MISSING" and "toolway[otel]" in caught.value.hint


@pytest.mark.usefixtures("without_opentelemetry")
def test_environment_variable_without_package_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    assert Telemetry(TelemetrySettings(), NAMED).metrics is not None
    assert "E-OTEL-MISSING" in caplog.text and "pip install" in caplog.text


def test_metrics_export_needs_metrics_and_an_endpoint() -> None:
    assert otlp.is_metrics_export_enabled(TelemetrySettings(), NAMED)
    assert not otlp.is_metrics_export_enabled(TelemetrySettings(), {})
    assert not otlp.is_metrics_export_enabled(TelemetrySettings(metrics=False), NAMED)
    assert not otlp.is_metrics_export_enabled(TelemetrySettings(), {**NAMED, "OTEL_METRICS_EXPORTER": "none"})
    assert not otlp.is_metrics_export_enabled(TelemetrySettings(), {otlp.OTLP_TRACES_ENDPOINT_VAR: "http://x"})
