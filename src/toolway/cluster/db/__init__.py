"""Database that all nodes of a cluster share: nodes, servers and their owners, keys, and further state.

PostgreSQL, or SQLite for tests and small clusters.
"""
