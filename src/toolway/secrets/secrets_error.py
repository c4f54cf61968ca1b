"""The error for secret stores."""

from __future__ import annotations

from toolway.errors import ToolwayError


class SecretsError(ToolwayError):
    """Raised when a secret store fails. The message never contains a secret."""

    code = "E-SECRETS"
