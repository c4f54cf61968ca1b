"""HTTP APIs that are described by a document: bytes of an OpenAPI document → operations → requests.

Pure functions; nothing here waits or opens anything. `load.py` reads a document, `operation.py` has the values that
come out of it, `encoding.py` makes a request of an operation and arguments.
"""
