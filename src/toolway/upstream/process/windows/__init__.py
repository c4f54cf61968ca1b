"""Server processes on Windows: their spawner, and how the program behind a command is found."""
