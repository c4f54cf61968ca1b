"""The error of secret stores."""

from __future__ import annotations

from toolway.errors import ToolwayError


class SecretsError(ToolwayError):
    """Failure of a secret store. Its message never contains a secret."""

    code = "E-SECRETS"
