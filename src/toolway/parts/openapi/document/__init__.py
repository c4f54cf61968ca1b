"""HTTP APIs described by OpenAPI documents: bytes of a document → operations → requests.

Pure functions without I/O. `loader.py` reads a document, `models.py` defines its values, `request_encoder.py` builds a
request from an operation and arguments.
"""
