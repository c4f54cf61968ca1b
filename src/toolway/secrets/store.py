"""Which store there is: the keychain of the system where a real one answers, a sealed file otherwise."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from toolway.errors import ToolwayError

VARIABLE: Final = "TOOLWAY_SECRETS"  # keychain or file, for whoever wants to decide it
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


def open_store(environment: Mapping[str, str]) -> Store:
    """The store of this user. Raises `SecretsError`.

    What lies in the sealed file is found even where there is a keychain: it may have been put there over SSH.
    """
    from toolway.secrets.both import Both
    from toolway.secrets.keychain import find, noted_names
    from toolway.secrets.sealed_file import PASSPHRASE, SealedFile

    data, state = (
        _folder(environment, "XDG_DATA_HOME", ".local/share"),
        _folder(environment, "XDG_STATE_HOME", ".local/state"),
    )
    file = SealedFile(data / "secrets.sealed", state / "secrets.key", environment.get(PASSPHRASE, ""))
    wanted = environment.get(VARIABLE, "")
    if wanted not in ("", "file", "keychain"):
        raise SecretsError(f"${VARIABLE} must be keychain or file", fix=f"unset {VARIABLE}")
    names = data / "keychain-names.json"
    keychain = find(names) if wanted != "file" else None
    if keychain is None and wanted == "keychain":
        raise SecretsError("no keychain of the system answers here", fix=f"export {VARIABLE}=file")
    return Both(keychain, file, noted_names(names))


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


def _folder(environment: Mapping[str, str], variable: str, usual: str) -> Path:
    base = environment.get(variable)
    if not base and not environment.get("HOME"):
        raise SecretsError("there is no place to keep secrets", evidence=f"neither HOME nor {variable} is set")
    return Path(base or f"{environment['HOME']}/{usual}") / "toolway"
