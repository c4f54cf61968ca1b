"""Calls to and from nodes without an address, over NATS (decision 0024)."""
