"""Transports to a server, from the node that owns it and from other nodes."""
