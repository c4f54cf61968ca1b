"""Logins with an identity provider: access tokens (OAuth 2.1, OpenID Connect) instead of API keys."""
