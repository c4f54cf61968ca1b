"""Shared state of a cluster: nodes, ownership, servers, keys.

PostgreSQL, or SQLite for tests and small clusters."""
