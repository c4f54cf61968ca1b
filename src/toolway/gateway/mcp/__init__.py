"""MCP endpoints of the gateway, for legacy clients (before protocol 2026-07-28) and modern ones."""
