"""HTTP APIs as servers: each operation of an OpenAPI or Swagger document becomes a tool."""

from __future__ import annotations

from toolway.part_api.part import Part


class HttpApis(Part):
    """Declaration of HTTP APIs as servers. They have the key `openapi` in their entries, and no other settings."""

    name = "openapi"
    transport = "toolway.parts.openapi.server_transport:ApiServers"
