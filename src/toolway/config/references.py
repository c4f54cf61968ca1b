"""References to secrets in a file's text: `${keyring:NAME}`, `${file:PATH}` and `${command:WORDS}`.

They are found when a file is read and stay what they are until the one server that names them is started; then
`resolving.py` fetches them. Only what a file itself says is a reference: the value of a variable is never looked at
again, so nobody who sets a variable can have a file read or a command run.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Final, Literal, cast

from toolway.errors import ConfigError, ToolwayError
from toolway.secrets import check_name

Kind = Literal["keyring", "file", "command"]
_REFERENCE: Final = re.compile(r"(?<!\$)\$\{(keyring|file|command):([^{}]*+)\}")


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a secret is. It is no secret itself."""

    kind: Kind
    what: str  # the name in the store, the path of the file, or the words of the command

    def __str__(self) -> str:
        return f"${{{self.kind}:{self.what}}}"


class Unresolved(str):
    """A text with references in it. As a `str` it is what the file says, which may be shown."""

    __slots__ = ("parts",)
    parts: tuple[str | Reference, ...]

    def __new__(cls, parts: tuple[str | Reference, ...]) -> Unresolved:
        made = super().__new__(cls, "".join(map(str, parts)))
        made.parts = parts
        return made

    def __getnewargs__(self) -> tuple[tuple[str | Reference, ...]]:  # type: ignore[override]  # for copies of it
        return (self.parts,)

    @property
    def references(self) -> tuple[Reference, ...]:
        return tuple(part for part in self.parts if isinstance(part, Reference))


def split(text: str) -> tuple[str | Reference, ...]:
    """The text around its references, and these. Raises `ConfigError` for a reference that can never be had.

    >>> split("Bearer ${keyring:github.token}")
    ('Bearer ', Reference(kind='keyring', what='github.token'))
    """
    parts: list[str | Reference] = []
    end = 0
    for found in _REFERENCE.finditer(text):
        parts += [text[end : found.start()], _checked(Reference(cast(Kind, found[1]), found[2].strip()))]
        end = found.end()
    parts.append(text[end:])
    return tuple(part for part in parts if part != "")


def _checked(reference: Reference) -> Reference:
    match reference.kind:
        case "keyring":
            try:
                check_name(reference.what)
            except ToolwayError as exc:
                raise _useless("the name of a secret", exc.evidence, "write ${keyring:server.NAME}") from None
        case "file":
            if not re.match(r"/|~/|[A-Za-z]:[\\/]", reference.what):
                raise _useless("a path", "it does not begin with / or ~/", "write ${file:~/path}")
        case "command":
            try:
                words = shlex.split(reference.what)
            except ValueError as exc:
                raise _useless("a command", str(exc), "close its quotes") from None
            if not words:
                raise _useless("a command", "it is empty", "write ${command:pass show NAME}")
    return reference


def _useless(wanted: str, evidence: str, fix: str) -> ConfigError:
    return ConfigError(f"a reference needs {wanted}", evidence=evidence, fix=fix, code="E-CONFIG-REFERENCE")
