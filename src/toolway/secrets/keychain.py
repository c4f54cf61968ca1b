"""The keychain of the system, where a real one answers.

Known back ends are tried by name. What the `keyring` library would choose by itself is never asked: a file or a
variable can make it choose one that writes plain text. A keychain may want a person to unlock it, so nothing waits for
it longer than a while; it is asked in threads that nobody waits for at the end.
"""

from __future__ import annotations

import importlib
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from toolway.secrets.files import locked, read_private, write_private
from toolway.secrets.store import SecretsError

SERVICE: Final = "toolway"
ANSWER: Final = 3.0  # seconds in which a keychain must say that it is there
UNLOCK: Final = 30.0  # seconds for an answer: a person may have to unlock it
BACK_ENDS: Final = {
    "linux": (("keyring.backends.SecretService", "Keyring"), ("keyring.backends.kwallet", "DBusKeyring")),
    "darwin": (("keyring.backends.macOS", "Keyring"),),
    "win32": (("keyring.backends.Windows", "WinVaultKeyring"),),
}
T = TypeVar("T")


class Keychain:
    """A `Store`. A keychain cannot list what is ours in it, so the names, which are no secrets, are kept in a file."""

    def __init__(self, back_end: Any, names: Path) -> None:
        self._back_end = back_end
        self._names = names
        self.where = "the keychain of the system"

    def get(self, name: str) -> str | None:
        value: str | None = self._ask(lambda: self._back_end.get_password(SERVICE, name))
        return value

    def set(self, name: str, value: str) -> None:
        self._ask(lambda: self._back_end.set_password(SERVICE, name, value))
        self._note(lambda names: names | {name})

    def delete(self, name: str) -> bool:
        there = self.get(name) is not None
        if there:
            self._ask(lambda: self._back_end.delete_password(SERVICE, name))
        self._note(lambda names: names - {name})
        return there

    def names(self) -> list[str]:
        return sorted(noted_names(self._names))

    def _note(self, change: Callable[[frozenset[str]], frozenset[str]]) -> None:
        try:
            with locked(self._names):
                write_private(self._names, json.dumps(sorted(change(noted_names(self._names)))).encode())
        except OSError as exc:
            what = "the names of the secrets cannot be written"
            raise SecretsError(what, evidence=f"{self._names}: {exc.strerror or exc}") from None

    def _ask(self, question: Callable[[], T]) -> T:
        try:
            return within(UNLOCK, question)
        except TimeoutError:
            raise _silent(f"no answer within {UNLOCK:.0f} s") from None
        except Exception as exc:  # each back end has its own family of them
            raise _silent(type(exc).__name__) from None


def find(names: Path) -> Keychain | None:
    """The keychain that answers here."""
    for module, name in BACK_ENDS.get(sys.platform, ()):
        try:
            back_end = within(ANSWER, lambda module=module, name=name: _made(module, name))  # type: ignore[misc]
        except Exception:  # it is not there, whatever way it says so
            continue
        return Keychain(back_end, names)
    return None


def _made(module: str, name: str) -> Any:
    kind = getattr(importlib.import_module(module), name)
    if kind.priority <= 0:
        raise RuntimeError("not here")
    return kind()


def noted_names(file: Path) -> frozenset[str]:
    """The names that were put into the keychain."""
    try:
        found = json.loads(read_private(file))
    except (OSError, ValueError):
        return frozenset()
    return frozenset(name for name in found if isinstance(name, str)) if isinstance(found, list) else frozenset()


def within(seconds: float, question: Callable[[], T]) -> T:
    """The answer. Raises what the question raises, or `TimeoutError`; then its thread is left to itself."""
    answers: list[T] = []
    failures: list[Exception] = []

    def ask() -> None:
        try:
            answers.append(question())
        except Exception as exc:
            failures.append(exc)

    thread = threading.Thread(target=ask, name="keychain", daemon=True)
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not answers:
        raise TimeoutError
    return answers[0]


def _silent(evidence: str) -> SecretsError:
    return SecretsError(
        "the keychain of the system did not answer",
        evidence=evidence,
        fix="unlock it, or keep secrets in a sealed file: export TOOLWAY_SECRETS=file",
    )
