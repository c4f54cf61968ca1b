"""Server processes on Windows: spawning them, and finding the program behind a command."""
