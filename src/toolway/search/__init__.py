"""Tool search: find the tools of all servers that fit a question, by words, meaning and earlier calls."""
