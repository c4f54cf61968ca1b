"""An HTTP API behind an OpenAPI document: each operation is a tool."""
