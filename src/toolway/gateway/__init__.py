"""MCP gateway: one HTTP endpoint in front of many servers, for legacy and modern clients."""
