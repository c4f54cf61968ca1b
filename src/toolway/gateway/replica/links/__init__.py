"""The ways to a server, from a node that owns it and from one that does not."""
