"""HTTP endpoints for operators: the `/admin` API, the dashboard and `/metrics`."""
