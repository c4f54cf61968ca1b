"""What must survive the process, on disk."""
