"""Observability: metrics, traces, log lines, recent calls, and alerts.

Everything here is an event sink, and never changes a call.
"""
