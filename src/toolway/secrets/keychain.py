"""Secret store in the operating system's keychain, if one answers.

Known backends of the `keyring` library are tried by name. Its automatic choice is never used: a file or variable
could make it pick one that writes plain text. A keychain may wait for the user to unlock it, so each wait is bounded,
and runs in a daemon thread that does not delay the process's exit.
"""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from toolway._os import SYSTEM_NAME
from toolway.secrets.encrypted_file import locked, read_private, write_private
from toolway.secrets.secrets_error import SecretsError

SERVICE: Final = "toolway"
DETECT_TIMEOUT_S: Final = 3.0  # seconds for a keychain to answer when it is detected
UNLOCK_TIMEOUT_S: Final = 30.0  # seconds for one operation: the user may have to unlock it
BACKENDS: Final = {
    "linux": (("keyring.backends.SecretService", "Keyring"), ("keyring.backends.kwallet", "DBusKeyring")),
    "darwin": (("keyring.backends.macOS", "Keyring"),),
    "win32": (("keyring.backends.Windows", "WinVaultKeyring"),),
}
T = TypeVar("T")


class Keychain:
    """A `SecretStore` that keeps each secret as an entry in the system keychain.

    A keychain cannot list Toolway's entries, so the names of the secrets, which are not secret, are saved in a file.
    """

    def __init__(self, backend: Any, names_file: Path) -> None:
        self._backend = backend
        self._names_file = names_file
        self.location = "the system keychain"

    def get(self, name: str) -> str | None:
        value: str | None = self._run(lambda: self._backend.get_password(SERVICE, name))
        return value

    def set(self, name: str, value: str) -> None:
        self._run(lambda: self._backend.set_password(SERVICE, name, value))
        self._update_names(lambda names: names | {name})

    def delete(self, name: str) -> bool:
        exists = self.get(name) is not None
        if exists:
            self._run(lambda: self._backend.delete_password(SERVICE, name))
        self._update_names(lambda names: names - {name})
        return exists

    def names(self) -> list[str]:
        return sorted(recorded_names(self._names_file))

    def _update_names(self, change: Callable[[frozenset[str]], frozenset[str]]) -> None:
        try:
            with locked(self._names_file):
                write_private(self._names_file, json.dumps(sorted(change(recorded_names(self._names_file)))).encode())
        except OSError as exc:
            message = "the names of the secrets cannot be written"
            raise SecretsError(message, detail=f"{self._names_file}: {exc.strerror or exc}") from None

    def _run(self, operation: Callable[[], T]) -> T:
        try:
            return run_with_timeout(UNLOCK_TIMEOUT_S, operation)
        except TimeoutError:
            raise _keychain_error(f"no answer within {UNLOCK_TIMEOUT_S:.0f} s") from None
        except Exception as exc:  # each backend has its own exception classes
            raise _keychain_error(type(exc).__name__) from None


def detect_keychain(names_file: Path) -> Keychain | None:
    """Return the first system keychain that answers, or None if none does.

    Each known backend of this platform has 3 s to answer.
    """
    for module, name in BACKENDS.get(SYSTEM_NAME, ()):
        try:
            backend = run_with_timeout(DETECT_TIMEOUT_S, lambda module=module, name=name: _create_backend(module, name))  # type: ignore[misc]
        except Exception:  # not available; each backend reports it with another exception
            continue
        return Keychain(backend, names_file)
    return None


def _create_backend(module: str, name: str) -> Any:
    backend_class = getattr(importlib.import_module(module), name)
    if backend_class.priority <= 0:
        raise RuntimeError("backend not available")
    return backend_class()


def recorded_names(file: Path) -> frozenset[str]:
    """Return the names of all secrets in the keychain, as recorded in `file`, or nothing if it is unreadable."""
    try:
        found = json.loads(read_private(file))
    except (OSError, ValueError):
        return frozenset()
    return frozenset(name for name in found if isinstance(name, str)) if isinstance(found, list) else frozenset()


def run_with_timeout(seconds: float, operation: Callable[[], T]) -> T:
    """Run `operation` in a daemon thread and return its result.

    Raises the operation's exception, or `TimeoutError` after `seconds`, in which case the thread is abandoned.
    """
    answers: list[T] = []
    failures: list[Exception] = []

    def run() -> None:
        try:
            answers.append(operation())
        except Exception as exc:
            failures.append(exc)

    thread = threading.Thread(target=run, name="keychain", daemon=True)
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not answers:
        raise TimeoutError
    return answers[0]


def _keychain_error(detail: str) -> SecretsError:
    return SecretsError(
        "the system keychain did not answer",
        detail=detail,
        hint="unlock it, or store secrets in an encrypted file: export TOOLWAY_SECRETS=file",
    )
