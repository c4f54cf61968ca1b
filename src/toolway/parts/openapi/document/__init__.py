"""HTTP APIs described by OpenAPI documents: turns a document's bytes into operations, and those into requests.

These are pure functions without I/O. `loader.py` reads a document, `models.py` defines its values, and
`request_encoder.py` builds a request from an operation and arguments.
"""
