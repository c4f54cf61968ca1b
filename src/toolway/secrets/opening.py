"""Which store there is: the keychain of the system where a real one answers, a sealed file otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from toolway.secrets.store import SecretsError, Store

VARIABLE: Final = "TOOLWAY_SECRETS"  # keychain or file, for whoever wants to decide it


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


def _folder(environment: Mapping[str, str], variable: str, usual: str) -> Path:
    base = environment.get(variable)
    if not base and not environment.get("HOME"):
        raise SecretsError("there is no place to keep secrets", evidence=f"neither HOME nor {variable} is set")
    return Path(base or f"{environment['HOME']}/{usual}") / "toolway"
