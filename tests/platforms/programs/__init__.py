"""Programs that the checks start as separate processes."""
