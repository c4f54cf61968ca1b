"""Authorization by Cedar policies: parses and compiles them, and decides what each caller may see and call."""
