"""What a cluster remembers: nodes, who owns what, servers, keys. PostgreSQL, or SQLite for tests and small ones."""
