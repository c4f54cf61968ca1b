"""The /admin API, the dashboard and /metrics."""
