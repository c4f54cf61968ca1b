"""Settings of logins with an identity provider."""
