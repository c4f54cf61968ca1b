"""Transport to an HTTP API with an OpenAPI document: each operation is a tool."""
