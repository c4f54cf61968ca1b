"""Commands for trust: project files, secrets, and tool definitions."""
