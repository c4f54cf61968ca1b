"""HTTP endpoints for administrators: the `/admin` API, the dashboard and `/metrics`."""
