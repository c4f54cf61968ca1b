"""A small HTTP/1.1 server on a C parser: what a gateway needs, and bounded everywhere."""
