"""References in config text that are resolved when a server starts: secrets, and variables that are not set yet.

Secrets are `${keyring:NAME}`, `${file:PATH}` and `${command:WORDS}`. References are parsed when a file is read. Only
text of the file itself is parsed: values of variables are not, so setting a variable cannot read a file or run a
command. A variable that is not set when the file is read stays a reference too: its text never reaches a server.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from types import NoneType
from typing import Any, Final, Literal, TypeVar, cast

import msgspec

from toolway.config.class_fields import field_names, replace_fields
from toolway.errors import ConfigError, ToolwayError
from toolway.part_api.server_transport import TransportSettings
from toolway.secrets import check_secret_name

SecretKind = Literal["keyring", "file", "command", "env"]
REFERENCE_PATTERN: Final = re.compile(r"(?<!\$)\$\{(keyring|file|command):([^{}]*+)\}")


class SecretRef(msgspec.Struct, frozen=True):
    """Reference to a secret (in the secret store, in a file, or printed by a command) or to a variable (`env`).

    The reference itself is not secret.
    """

    kind: SecretKind
    target: str  # name in the secret store, path of the file, command line, or name of the variable

    def __str__(self) -> str:
        return f"${{{self.target}}}" if self.kind == "env" else f"${{{self.kind}:{self.target}}}"


class SecretTemplate(str):
    """Config text that contains references to secrets or unset variables, such as `Bearer ${keyring:NAME}`.

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
        """Return the references to secrets in the text, without references to variables."""
        return tuple(part for part in self.parts if isinstance(part, SecretRef) and part.kind != "env")

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the names of the variables in the text that are not set yet."""
        return tuple(part.target for part in self.parts if isinstance(part, SecretRef) and part.kind == "env")

    @property
    def begins_with_variable(self) -> bool:
        """True if the string begins with a variable that is not set yet, so its beginning cannot be checked."""
        return bool(self.parts) and isinstance(self.parts[0], SecretRef) and self.parts[0].kind == "env"


def has_secret(text: str | None) -> bool:
    return isinstance(text, SecretTemplate) and bool(text.references)


def begins_with_variable(text: str | None) -> bool:
    return isinstance(text, SecretTemplate) and text.begins_with_variable


def join_folder(folder: str, path: str) -> str:
    """Return `path` below `folder`, unless it is absolute or starts with a variable."""
    if begins_with_variable(path) or os.path.isabs(path):
        return path
    return SecretTemplate((f"{folder}/", *path.parts)) if isinstance(path, SecretTemplate) else f"{folder}/{path}"


# -- variables that are not set yet -----------------------------------------------------------------------------------

_NOT_EXPANDED: Final = frozenset(
    {"instance", "document", "extras", "network_policy", "guard_facts"}
)  # fields without variables
_PLAIN: Final = frozenset({str, int, float, bool, NoneType})  # values without references: a template has its own type
V = TypeVar("V")


def find_unset_variables(value: Any, path: str = "") -> dict[str, str]:
    """Return the variables without a value in settings, each with its first key, such as `{"TOKEN": "env.TOKEN"}`.

    They were not set when the file was read. `value` is a dataclass of the configuration, such as a `Server`, or a
    part of one.
    """
    if isinstance(value, SecretTemplate):
        return dict.fromkeys(value.variables, path)
    found: dict[str, str] = {}
    for key, item in _children(value):
        if type(item) in _PLAIN or not (inside := find_unset_variables(item)):
            continue
        name = re.sub(r"_([a-z])", lambda match: match[1].upper(), key) if _field_names(value.__class__) else key
        name = item.kind if isinstance(item, TransportSettings) else name
        keys = {below: ".".join(filter(None, (path, name, below))) for below in inside.values()}  # one text per key
        for variable, below in inside.items():
            found.setdefault(variable, keys[below])
    return found


def _children(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, tuple):
        return [("", item) for item in value]
    if isinstance(value, Mapping):
        return [(str(key), item) for key, item in value.items()]
    return [(name, getattr(value, name)) for name in _field_names(value.__class__)]


@functools.cache
def _field_names(settings: type) -> tuple[str, ...]:
    """Return the names of the fields that can contain variables; none if it is not a settings class."""
    return tuple(name for name in field_names(settings) if name not in _NOT_EXPANDED)


def substitute_variables(value: V, variables: Mapping[str, str]) -> V:
    """Replace each variable that was unset when the settings were read by its value in `variables`.

    References to secrets stay. Raises `KeyError` if a value is missing, and `ConfigError` if the settings are invalid
    with the values.
    """
    return cast(V, _substitute(value, variables)) if find_unset_variables(value) else value


def _substitute(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, SecretTemplate):
        parts = tuple(
            variables[part.target] if isinstance(part, SecretRef) and part.kind == "env" else part
            for part in value.parts
        )
        return SecretTemplate(parts) if value.references else "".join(map(str, parts))
    if isinstance(value, Mapping):
        return {key: _substitute(item, variables) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_substitute(item, variables) for item in value)
    changed = {key: _substitute(item, variables) for key, item in _children(value) if find_unset_variables(item)}
    return replace_fields(value, changed) if changed else value


# -- parsing ----------------------------------------------------------------------------------------------------------


def split_secret_refs(text: str) -> tuple[str | SecretRef, ...]:
    """Split a config text into literal parts and references to secrets.

    Raises `ConfigError` if a reference has an invalid secret name, path or command.

    >>> split_secret_refs("Bearer ${keyring:github.token}")
    ('Bearer ', SecretRef(kind='keyring', target='github.token'))
    """
    parts: list[str | SecretRef] = []
    end = 0
    for found in REFERENCE_PATTERN.finditer(text):
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
                import shlex

                words = shlex.split(reference.target)
            except ValueError as exc:
                raise _reference_error("a command", str(exc), "close its quotes") from None
            if not words:
                raise _reference_error("a command", "it is empty", "use ${command:pass show NAME}")
    return reference


def _reference_error(expected: str, detail: str, hint: str) -> ConfigError:
    return ConfigError(f"a reference needs {expected}", detail=detail, hint=hint, code="E-CONFIG-REFERENCE")
