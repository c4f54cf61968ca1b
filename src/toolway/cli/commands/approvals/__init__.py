"""Commands by which a person approves content: project files, secrets, and the definitions of servers."""
