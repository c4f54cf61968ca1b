"""A server that is a process: JSON lines through its pipes."""
