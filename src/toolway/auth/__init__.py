"""Authentication to servers: OAuth logins, tokens and their storage."""
