"""HTTP APIs as servers: each operation in an OpenAPI or Swagger document becomes a tool."""

from __future__ import annotations

from toolway.part_api.part import Part


class HttpApis(Part):
    """Declares HTTP APIs as servers. Their entries have the key `openapi`, which is their only setting."""

    name = "openapi"
    transport = "toolway.parts.openapi.server_transport:ApiServers"
