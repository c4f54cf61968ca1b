"""What the file and the variables say about telemetry, and what is done where it cannot be had."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from toolway.config.gateway import read_block
from toolway.config.telemetry import TelemetrySettings, TraceSettings
from toolway.errors import ConfigError
from toolway.gateway.telemetry import Telemetry
from toolway.telemetry import otlp

NAMED = {otlp.ALL: "http://127.0.0.1:9"}


def read(telemetry: Any) -> TelemetrySettings:
    return read_block({"telemetry": telemetry}, {"HOST": "collector"}).telemetry


def test_metrics_are_on_and_traces_are_off_where_nobody_says_anything() -> None:
    assert read(None) == TelemetrySettings(metrics=True, calls=True, traces=None, log="text")


def test_all_of_it_can_be_set() -> None:
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
def test_what_cannot_be_meant_is_refused(block: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        read(block)
    assert caught.value.code.startswith("E-CONFIG")


@pytest.fixture
def without_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.metric_exporter"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("without_opentelemetry")
def test_a_file_that_asks_for_what_is_not_installed_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        Telemetry(TelemetrySettings(traces=TraceSettings()), {})
    assert caught.value.code == "E-OTEL-MISSING" and "toolway[otel]" in caught.value.fix


@pytest.mark.usefixtures("without_opentelemetry")
def test_a_variable_that_may_be_meant_for_others_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    assert Telemetry(TelemetrySettings(), NAMED).metrics is not None
    assert "E-OTEL-MISSING" in caplog.text and "pip install" in caplog.text


def test_metrics_go_to_a_collector_only_where_they_are_counted_and_wanted() -> None:
    assert otlp.wants_metrics(TelemetrySettings(), NAMED)
    assert not otlp.wants_metrics(TelemetrySettings(), {})
    assert not otlp.wants_metrics(TelemetrySettings(metrics=False), NAMED)
    assert not otlp.wants_metrics(TelemetrySettings(), {**NAMED, "OTEL_METRICS_EXPORTER": "none"})
    assert not otlp.wants_metrics(TelemetrySettings(), {otlp.TRACES: "http://x"})
