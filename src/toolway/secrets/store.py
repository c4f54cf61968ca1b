"""Secret stores: the interface, and the choice between the keychain and an encrypted file.

The system keychain is used if it answers, and otherwise an encrypted file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from toolway._os import data_folder, state_folder
from toolway.secrets.encrypted_file import PASSPHRASE_VARIABLE, EncryptedFileStore
from toolway.secrets.keychain import detect_keychain, recorded_names
from toolway.secrets.secrets_error import SecretsError

STORE_VARIABLE: Final = "TOOLWAY_SECRETS"  # "keychain" or "file" overrides the automatic choice

_passphrase = ""  # passphrase of the encrypted file, after `keep_passphrase`
_SECRET_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,127}")


class SecretStore(Protocol):
    """A store of secrets by name: the system keychain or an encrypted file.

    Every method may wait for the user to unlock the store, and raises `SecretsError` if the store fails.
    """

    @property
    def location(self) -> str:
        """Return a description of the store for messages, such as `the system keychain`."""
        ...

    def get(self, name: str) -> str | None: ...

    def set(self, name: str, value: str) -> None: ...

    def delete(self, name: str) -> bool:
        """Delete a secret. Return True if it existed."""
        ...

    def names(self) -> list[str]: ...


def open_store(environment: Mapping[str, str]) -> SecretStore:
    """Return this user's secret store: the system keychain, if one answers, and an encrypted file.

    Secrets in the file are found even if there is a keychain, because they may have been saved over SSH. Raises
    `SecretsError` if `$TOOLWAY_SECRETS` is invalid, if it requires a keychain and none answers, or if the home folder
    is unknown.
    """
    data, state = (
        _require(data_folder(environment), "XDG_DATA_HOME"),
        _require(state_folder(environment), "XDG_STATE_HOME"),
    )
    passphrase = environment.get(PASSPHRASE_VARIABLE) or _passphrase
    file = EncryptedFileStore(data / "secrets.sealed", state / "secrets.key", passphrase)
    choice = environment.get(STORE_VARIABLE, "")
    if choice not in ("", "file", "keychain"):
        raise SecretsError(f"${STORE_VARIABLE} must be keychain or file", hint=f"unset {STORE_VARIABLE}")
    names_file = data / "keychain-names.json"
    keychain = detect_keychain(names_file) if choice != "file" else None
    if keychain is None and choice == "keychain":
        raise SecretsError("no system keychain is available here", hint=f"export {STORE_VARIABLE}=file")
    return LayeredStore(keychain, file, recorded_names(names_file))


def keep_passphrase(environment: Mapping[str, str]) -> None:
    """Keep the passphrase of the encrypted file in memory, so the caller can remove it from the environment."""
    global _passphrase  # one process has one environment
    _passphrase = environment.get(PASSPHRASE_VARIABLE) or _passphrase


def _require(folder: Path | None, variable: str) -> Path:
    if folder is None:
        raise SecretsError("no folder for secrets", detail=f"neither HOME nor {variable} is set")
    return folder


def check_secret_name(name: str) -> str:
    """Return `name` if it is a valid secret name, or else raise `SecretsError`.

    The error does not contain the name, because the user may have typed the secret itself.
    """
    if not _SECRET_NAME.fullmatch(name):
        raise SecretsError(
            "invalid secret name",
            detail="names have up to 128 letters, digits and . _ - /",
            hint="run toolway secrets set server.NAME, and enter the value at the prompt",
            code="E-SECRETS-NAME",
        )
    return name


class LayeredStore:
    """System keychain and encrypted file as one `SecretStore`. Reads try both.

    Writes go to the keychain, or to the file without a keychain. `keychain_names` are the secrets saved in a
    keychain earlier. If no keychain answers, reading one of them raises `SecretsError`.
    """

    def __init__(self, keychain: SecretStore | None, file: SecretStore, keychain_names: frozenset[str]) -> None:
        self._stores = [store for store in (keychain, file) if store is not None]
        self._unreachable_names = keychain_names if keychain is None else frozenset()
        self.location = self._stores[0].location

    def get(self, name: str) -> str | None:
        for store in self._stores:
            value = store.get(name)
            if value is not None:
                return value
        if name in self._unreachable_names:
            raise SecretsError(
                f"the secret {name} is in the system keychain",
                detail="no keychain is available here: this is not a desktop session",
                hint=f"toolway secrets set {name}",
            )
        return None

    def set(self, name: str, value: str) -> None:
        self._stores[0].set(name, value)
        for store in self._stores[1:]:
            store.delete(name)

    def delete(self, name: str) -> bool:
        deleted = [store.delete(name) for store in self._stores]
        return any(deleted)

    def names(self) -> list[str]:
        return sorted({name for store in self._stores for name in store.names()})
