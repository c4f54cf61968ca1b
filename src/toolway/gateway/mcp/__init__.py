"""MCP endpoints of the gateway, for both protocol eras."""
