"""State shared by all nodes of a tenant, and its replication to each node (decision 0023)."""
