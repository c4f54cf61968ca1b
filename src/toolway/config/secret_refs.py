"""Secret references in config text: `${keyring:NAME}`, `${file:PATH}`, `${command:WORDS}`.

References are parsed when a file is read. They are resolved only when the server that uses them is started. Only text
of the file itself is parsed: values of variables are not, so setting a variable cannot read a file or run a command.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Final, Literal, cast

from toolway.errors import ConfigError, ToolwayError
from toolway.secrets import check_secret_name

SecretKind = Literal["keyring", "file", "command"]
_REFERENCE: Final = re.compile(r"(?<!\$)\$\{(keyring|file|command):([^{}]*+)\}")


@dataclass(frozen=True, slots=True)
class SecretRef:
    """Reference to a secret in the secret store, in a file, or printed by a command.

    The reference itself is not secret.
    """

    kind: SecretKind
    target: str  # name in the secret store, path of the file, or command line

    def __str__(self) -> str:
        return f"${{{self.kind}:{self.target}}}"


class SecretTemplate(str):
    """Config text that contains references to secrets, such as `Bearer ${keyring:NAME}`.

    As a `str` it contains the references, not the secrets, so it may be shown.
    """

    __slots__ = ("parts",)
    parts: tuple[str | SecretRef, ...]

    def __new__(cls, parts: tuple[str | SecretRef, ...]) -> SecretTemplate:
        template = super().__new__(cls, "".join(map(str, parts)))
        template.parts = parts
        return template

    def __getnewargs__(self) -> tuple[tuple[str | SecretRef, ...]]:  # type: ignore[override]  # for copies of it
        return (self.parts,)

    @property
    def references(self) -> tuple[SecretRef, ...]:
        return tuple(part for part in self.parts if isinstance(part, SecretRef))


def split_secret_refs(text: str) -> tuple[str | SecretRef, ...]:
    """Split a config text into literal parts and references to secrets.

    Raises `ConfigError` if a reference has an invalid secret name, path or command.

    >>> split_secret_refs("Bearer ${keyring:github.token}")
    ('Bearer ', SecretRef(kind='keyring', target='github.token'))
    """
    parts: list[str | SecretRef] = []
    end = 0
    for found in _REFERENCE.finditer(text):
        parts += [text[end : found.start()], _check_ref(SecretRef(cast(SecretKind, found[1]), found[2].strip()))]
        end = found.end()
    parts.append(text[end:])
    return tuple(part for part in parts if part != "")


def _check_ref(reference: SecretRef) -> SecretRef:
    match reference.kind:
        case "keyring":
            try:
                check_secret_name(reference.target)
            except ToolwayError as exc:
                raise _reference_error("a valid secret name", exc.detail, "write ${keyring:server.NAME}") from None
        case "file":
            if not re.match(r"/|~/|[A-Za-z]:[\\/]", reference.target):
                raise _reference_error("a path", "it does not begin with / or ~/", "write ${file:~/path}")
        case "command":
            try:
                words = shlex.split(reference.target)
            except ValueError as exc:
                raise _reference_error("a command", str(exc), "close its quotes") from None
            if not words:
                raise _reference_error("a command", "it is empty", "write ${command:pass show NAME}")
    return reference


def _reference_error(expected: str, detail: str, hint: str) -> ConfigError:
    return ConfigError(f"a reference needs {expected}", detail=detail, hint=hint, code="E-CONFIG-REFERENCE")
