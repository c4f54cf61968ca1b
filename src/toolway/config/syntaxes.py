"""How programs write a variable in their files, and the same text in the way of another.

A text is literal pieces and references. `OURS` is the form between all others: it can say all that they can.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*+"
PLACES: Final = ("workspaceFolder", "workspaceFolderBasename", "userHome", "pathSeparator", "/")
_PLACE: Final = "|".join(re.escape(place) for place in PLACES)


class Ref(NamedTuple):
    """Something to be filled in. Kinds: env, input (asks a person), secret, keyring, file, command, place."""

    kind: str
    name: str
    default: str | None = None


Piece = str | Ref


class Written(NamedTuple):
    """A text, and the references in it that could not be said; those stand in it in our own form."""

    text: str
    lost: tuple[Ref, ...] = ()


@dataclass(frozen=True, slots=True)
class Syntax:
    """One way to write references: a pattern for each kind to read, and a form for each kind to write."""

    patterns: Mapping[str, str] = field(default_factory=dict)  # kind → expression with the groups name (and default)
    forms: Mapping[str, str] = field(default_factory=dict)  # kind → text with NAME in it
    default: str = ""  # the form of a variable with a default, with NAME and DEFAULT in it
    escape: str = ""  # written before what would be read as a reference and is none


_BRACED = rf"\$\{{(?P<env>{_NAME})(?:\}}|:-(?P<default>[^}}]*+)\}})"
_PREFIXED = r"\$\{env:(?P<env>" + _NAME + r")\}"
_HERE = rf"\$\{{(?P<place>{_PLACE})\}}"
_DOLLAR = rf"\$(?P<env2>{_NAME})"


def _prefixed(kind: str) -> str:
    return rf"\$\{{{kind}:(?P<{kind}>[^}}]++)\}}"


_OUR_KINDS: Final = ("input", "secret", "keyring", "file", "command")

OURS: Final = Syntax(
    {
        "place": _HERE,
        "env": rf"\$\{{(?:env:)?(?P<env>{_NAME})(?:\}}|:-(?P<default>[^}}]*+)\}})",
        **{kind: _prefixed(kind) for kind in _OUR_KINDS},
    },
    {"env": "${NAME}", "place": "${NAME}", **{kind: f"${{{kind}:NAME}}" for kind in _OUR_KINDS}},
    "${NAME:-DEFAULT}",
    "$",
)
BRACES: Final = Syntax({"env": _BRACED}, {"env": "${NAME}"}, "${NAME:-DEFAULT}")  # Claude Code
DOLLARS: Final = Syntax(
    {"env": _BRACED, "env2": _DOLLAR}, {"env": "${NAME}"}, "${NAME:-DEFAULT}"
)  # Gemini CLI, Crush; also `$VAR`
PERCENT: Final = Syntax(
    {"env": _BRACED, "env2": _DOLLAR, "env3": rf"%(?P<env3>{_NAME})%"}, {"env": "${NAME}"}, "${NAME:-DEFAULT}"
)  # Gemini CLI on Windows
EDITOR: Final = Syntax(
    {"env": _PREFIXED, "place": _HERE, "input": _prefixed("input")},
    {"env": "${env:NAME}", "place": "${NAME}", "input": "${input:NAME}"},
)  # VS Code
CURSOR: Final = Syntax({"env": _PREFIXED, "place": _HERE}, {"env": "${env:NAME}", "place": "${NAME}"})
FILES: Final = Syntax(
    {"env": _PREFIXED, "file": _prefixed("file")}, {"env": "${env:NAME}", "file": "${file:NAME}"}
)  # Windsurf
CURLY: Final = Syntax(
    {"env": r"\{env:(?P<env>" + _NAME + r")\}", "file": r"\{file:(?P<file>[^}]++)\}"},
    {"env": "{env:NAME}", "file": "{file:NAME}"},
)  # OpenCode
SECRETS: Final = Syntax(
    {"secret": r"\$\{\{\s*+secrets\.(?P<secret>[A-Za-z0-9_./-]++)\s*+\}\}"}, {"secret": "${{ secrets.NAME }}"}
)  # Continue
NONE: Final = Syntax()


def parse(text: str, syntax: Syntax) -> tuple[Piece, ...]:
    """The literal pieces and the references of a text, in their order."""
    if not syntax.patterns:
        return (text,) if text else ()
    pattern = _compiled(syntax)
    pieces: list[Piece] = []
    end = 0
    for found in pattern.finditer(text):
        pieces += [text[end : found.start()], _piece(found)]
        end = found.end()
    pieces.append(text[end:])
    return _joined(pieces)


def write(pieces: tuple[Piece, ...], syntax: Syntax) -> Written:
    """The text that means these pieces, as far as this syntax can say it."""
    text, lost = "", []
    for piece in pieces:
        if isinstance(piece, str):
            text += _literal(piece, syntax)
            continue
        if syntax.escape and text.endswith(syntax.escape):
            lost.append(piece)  # together they would be a literal
        if piece.kind not in syntax.forms:
            lost.append(piece)
            text += _form(piece, OURS)
        elif piece.default is not None and not syntax.default:
            lost.append(piece)
            text += _form(piece._replace(default=None), syntax)
        else:
            text += _form(piece, syntax)
    return Written(text, tuple(dict.fromkeys(lost)))


def _form(piece: Ref, syntax: Syntax) -> str:
    if piece.default is not None:
        return syntax.default.replace("NAME", piece.name).replace("DEFAULT", piece.default)
    return syntax.forms[piece.kind].replace("NAME", piece.name)


def translate(text: str, source: Syntax, target: Syntax) -> Written:
    """
    >>> translate("Bearer ${TOKEN}", BRACES, EDITOR).text
    'Bearer ${env:TOKEN}'
    """
    return write(parse(text, source), target)


def literal(text: str) -> str:
    """A text of strangers, as our file must have it so that nothing in it is taken for a reference."""
    return write((text,), OURS).text


def refs(text: str, syntax: Syntax = OURS) -> tuple[Ref, ...]:
    return tuple(piece for piece in parse(text, syntax) if isinstance(piece, Ref))


_cache: dict[int, re.Pattern[str]] = {}


def _compiled(syntax: Syntax) -> re.Pattern[str]:
    found = _cache.get(id(syntax))
    if found is None:
        escaped = r"(?P<escaped>\$\$\{)|" if syntax.escape else ""
        found = _cache[id(syntax)] = re.compile(escaped + "|".join(syntax.patterns.values()))
    return found


def _piece(found: re.Match[str]) -> Piece:
    groups = found.groupdict()
    if groups.get("escaped"):
        return "${"
    default = groups.pop("default", None)
    kind, name = next((kind, name) for kind, name in groups.items() if name is not None)
    return Ref("env" if kind.startswith("env") else kind, name, default)


def _joined(pieces: list[Piece]) -> tuple[Piece, ...]:
    joined: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        elif piece != "":
            joined.append(piece)
    return tuple(joined)


def _literal(text: str, syntax: Syntax) -> str:
    """A literal that would be read as a reference, kept from that where the syntax can."""
    return text.replace("${", f"{syntax.escape}${{") if syntax.escape else text


def misread(pieces: tuple[Piece, ...], syntax: Syntax) -> bool:
    """Would a literal piece be taken for a reference?"""
    return not syntax.escape and any(isinstance(piece, str) and bool(refs(piece, syntax)) for piece in pieces)
