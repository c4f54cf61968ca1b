"""Database that all nodes of a cluster share: nodes, servers and their owners, keys, and more state.

PostgreSQL, or SQLite for tests and small clusters.
"""
