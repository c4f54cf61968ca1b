"""Observability: metrics, traces, log lines, recent calls, alerts.

Event sinks only; they never change a call."""
