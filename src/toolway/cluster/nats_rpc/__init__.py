"""RPC over NATS: calls from and to nodes that have no HTTP address (decision 0024)."""
