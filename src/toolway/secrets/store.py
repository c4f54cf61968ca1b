"""What every store of secrets offers, and how it fails."""

from __future__ import annotations

import re
from typing import Final, Protocol

from toolway.errors import ToolwayError

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,127}")


class SecretsError(ToolwayError):
    """The store of secrets cannot be used. No message holds a secret."""

    code = "E-SECRETS"


class Store(Protocol):
    """Keeps secrets by name. Every method may wait for a person, and raises `SecretsError`."""

    @property
    def where(self) -> str:
        """What a person is told about the place."""
        ...

    def get(self, name: str) -> str | None: ...

    def set(self, name: str, value: str) -> None: ...

    def delete(self, name: str) -> bool:
        """Whether it was there."""
        ...

    def names(self) -> list[str]: ...


def check_name(name: str) -> str:
    """`name`, if a secret can have it. Raises `SecretsError`, without the name: it may be the secret itself."""
    if not _NAME.fullmatch(name):
        raise SecretsError(
            "this cannot be the name of a secret",
            evidence="names have up to 128 letters, digits and . _ - /",
            fix="toolway secrets set server.NAME, and the value when it is asked for",
            code="E-SECRETS-NAME",
        )
    return name
