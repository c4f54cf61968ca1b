"""The database that all nodes of a cluster share: nodes, servers, owners, keys, and more.

PostgreSQL, or SQLite for tests and small clusters.
"""
