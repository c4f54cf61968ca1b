"""Commands to approve content: project files, secrets, and the definitions of servers."""
