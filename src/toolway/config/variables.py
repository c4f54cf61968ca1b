"""Expansion of variables in config text: `${VAR}`, `${VAR:-default}` and `${env:VAR}`.

Expansion is a pure function of text and mapping. Values are not expanded again. `$${` is an escaped `${`. The syntaxes
of other programs (`$VAR`, `%VAR%`, `{env:VAR}` …) are `VariableSyntax` values. To translate a text from one to another,
it is split into pieces (literals and references). `TOOLWAY_SYNTAX` is the intermediate syntax: it can express them all.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from toolway._os import home_folder
from toolway.config.secret_refs import REFERENCE_PATTERN, SecretTemplate

# An unclosed default extends to the end of the string, so the search does not restart at every `${` in it.
VARIABLE_PATTERN = re.compile(r"\$\$\{|\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*+)(?:\}|:-([^}]*+)(?:\}|\Z))")


class UnsetVariable(NamedTuple):
    """Reference to a variable that is not set and has no default, as written in a string."""

    name: str
    text: str

    def __str__(self) -> str:
        return self.text


def expand_to_pieces(text: str, variables: Mapping[str, str]) -> tuple[str | UnsetVariable, ...]:
    """Split `text` into expanded text and references to unset variables."""
    pieces: list[str | UnsetVariable] = []
    end = 0
    for found in VARIABLE_PATTERN.finditer(text):
        pieces += [text[end : found.start()], _expand_match(found, variables)]
        end = found.end()
    return tuple(piece for piece in (*pieces, text[end:]) if piece != "")


def _expand_match(found: re.Match[str], variables: Mapping[str, str]) -> str | UnsetVariable:
    name, default = found[1], found[2]
    if name is None:
        return found[0][1:]
    if not found[0].endswith("}"):
        return found[0]
    if name in variables:
        return variables[name]
    return default if default is not None else UnsetVariable(name, found[0])


class WrittenReference(NamedTuple):
    """Reference in a config text: its kind (keyring, file, command or env), its target, and its text."""

    kind: str
    target: str
    text: str


def split_references(text: str) -> tuple[str | WrittenReference, ...]:
    """Split a config text into plain parts and its references to secrets and variables.

    Unlike `split_secret_refs` it also accepts invalid references, and also finds variables.

    >>> split_references("v1-${command:pass show x}")
    ('v1-', WrittenReference(kind='command', target='pass show x', text='${command:pass show x}'))
    """
    parts: list[str | WrittenReference] = []
    end = 0
    for found in REFERENCE_PATTERN.finditer(text):
        parts += _split_variables(text[end : found.start()])
        parts.append(WrittenReference(found[1], found[2].strip(), found[0]))
        end = found.end()
    return tuple(part for part in (*parts, *_split_variables(text[end:])) if part != "")


def _split_variables(text: str) -> list[str | WrittenReference]:
    parts: list[str | WrittenReference] = []
    end = 0
    for found in VARIABLE_PATTERN.finditer(text):
        if found[1] is not None and found[0].endswith("}"):
            parts += [text[end : found.start()], WrittenReference("env", found[1], found[0])]
            end = found.end()
    return [*parts, text[end:]]


def expand_home(path: str, variables: Mapping[str, str]) -> str:
    """Replace a leading `~` or `~/` by the home directory. `~name` stays unchanged."""
    if path != "~" and not path.startswith("~/"):
        return path
    home = home_folder(variables) or os.path.expanduser("~")
    if isinstance(path, SecretTemplate):
        first, *rest = path.parts  # the text that begins with ~
        return SecretTemplate((home + str(first)[1:], *rest))
    return home + path[1:]


# -- syntaxes of MCP hosts --------------------------------------------------------------------------------------------

_VARIABLE_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*+"
HOST_VARIABLES: Final = ("workspaceFolder", "workspaceFolderBasename", "userHome", "pathSeparator", "/")
_HOST_VARIABLE_NAMES: Final = "|".join(re.escape(name) for name in HOST_VARIABLES)


class VariableRef(NamedTuple):
    """Reference to a variable or secret in a config text.

    Kinds: env, input (prompts the user), secret, keyring, file, command, place (a path that the host knows).
    """

    kind: str
    name: str
    default: str | None = None


TextPiece = str | VariableRef


class VariableText(NamedTuple):
    """Text in the variable syntax of one MCP host.

    `unsupported` lists the references that the syntax cannot express. In `text` they stay in our own syntax, or lack
    their default.
    """

    text: str
    unsupported: tuple[VariableRef, ...] = ()


class VariableSyntax(NamedTuple):
    """Variable syntax of an MCP host: per kind of reference a regex and a form for writing."""

    patterns: Mapping[str, str] = MappingProxyType({})  # kind → regex with the groups name (and default)
    forms: Mapping[str, str] = MappingProxyType({})  # kind → text that contains NAME
    default: str = ""  # form of a variable with a default; contains NAME and DEFAULT
    escape: str = ""  # prefix for literal text that would be read as a reference


_BRACED = rf"\$\{{(?P<env>{_VARIABLE_NAME})(?:\}}|:-(?P<default>[^}}]*+)\}})"
_PREFIXED = r"\$\{env:(?P<env>" + _VARIABLE_NAME + r")\}"
_HOST_VARIABLE = rf"\$\{{(?P<place>{_HOST_VARIABLE_NAMES})\}}"
_DOLLAR = rf"\$(?P<env2>{_VARIABLE_NAME})"


def _prefixed_pattern(kind: str) -> str:
    return rf"\$\{{{kind}:(?P<{kind}>[^}}]++)\}}"


_PREFIXED_KINDS: Final = ("input", "secret", "keyring", "file", "command")

TOOLWAY_SYNTAX: Final = VariableSyntax(
    {
        "place": _HOST_VARIABLE,
        "env": rf"\$\{{(?:env:)?(?P<env>{_VARIABLE_NAME})(?:\}}|:-(?P<default>[^}}]*+)\}})",
        **{kind: _prefixed_pattern(kind) for kind in _PREFIXED_KINDS},
    },
    {"env": "${NAME}", "place": "${NAME}", **{kind: f"${{{kind}:NAME}}" for kind in _PREFIXED_KINDS}},
    "${NAME:-DEFAULT}",
    "$",
)
BRACES_SYNTAX: Final = VariableSyntax({"env": _BRACED}, {"env": "${NAME}"}, "${NAME:-DEFAULT}")  # Claude Code
DOLLAR_SYNTAX: Final = VariableSyntax(
    {"env": _BRACED, "env2": _DOLLAR}, {"env": "${NAME}"}, "${NAME:-DEFAULT}"
)  # Gemini CLI, Crush; also `$VAR`
PERCENT_SYNTAX: Final = VariableSyntax(
    {"env": _BRACED, "env2": _DOLLAR, "env3": rf"%(?P<env3>{_VARIABLE_NAME})%"}, {"env": "${NAME}"}, "${NAME:-DEFAULT}"
)  # Gemini CLI on Windows
VSCODE_SYNTAX: Final = VariableSyntax(
    {"env": _PREFIXED, "place": _HOST_VARIABLE, "input": _prefixed_pattern("input")},
    {"env": "${env:NAME}", "place": "${NAME}", "input": "${input:NAME}"},
)  # VS Code
CURSOR_SYNTAX: Final = VariableSyntax(
    {"env": _PREFIXED, "place": _HOST_VARIABLE}, {"env": "${env:NAME}", "place": "${NAME}"}
)
WINDSURF_SYNTAX: Final = VariableSyntax(
    {"env": _PREFIXED, "file": _prefixed_pattern("file")}, {"env": "${env:NAME}", "file": "${file:NAME}"}
)  # Windsurf
OPENCODE_SYNTAX: Final = VariableSyntax(
    {"env": r"\{env:(?P<env>" + _VARIABLE_NAME + r")\}", "file": r"\{file:(?P<file>[^}]++)\}"},
    {"env": "{env:NAME}", "file": "{file:NAME}"},
)  # OpenCode
CONTINUE_SYNTAX: Final = VariableSyntax(
    {"secret": r"\$\{\{\s*+secrets\.(?P<secret>[A-Za-z0-9_./-]++)\s*+\}\}"}, {"secret": "${{ secrets.NAME }}"}
)  # Continue
NO_SYNTAX: Final = VariableSyntax()


# -- translation ------------------------------------------------------------------------------------------------------


def parse_variables(text: str, syntax: VariableSyntax) -> tuple[TextPiece, ...]:
    """Split a text into literal pieces and the variable references in `syntax`."""
    if not syntax.patterns:
        return (text,) if text else ()
    pattern = _compile_syntax(syntax)
    pieces: list[TextPiece] = []
    end = 0
    for found in pattern.finditer(text):
        pieces += [text[end : found.start()], _match_to_piece(found)]
        end = found.end()
    pieces.append(text[end:])
    return _join_literals(pieces)


def render_variables(pieces: tuple[TextPiece, ...], syntax: VariableSyntax) -> VariableText:
    """Join literal pieces and variable references to a text in `syntax`.

    References that `syntax` cannot express are listed in `unsupported` of the result.
    """
    text, unsupported = "", []
    for piece in pieces:
        if isinstance(piece, str):
            text += _render_literal(piece, syntax)
            continue
        if syntax.escape and text.endswith(syntax.escape):
            unsupported.append(piece)  # an escape directly before a reference would make it literal
        if piece.kind not in syntax.forms:
            unsupported.append(piece)
            text += _render_ref(piece, TOOLWAY_SYNTAX)
        elif piece.default is not None and not syntax.default:
            unsupported.append(piece)
            text += _render_ref(piece._replace(default=None), syntax)
        else:
            text += _render_ref(piece, syntax)
    return VariableText(text, tuple(dict.fromkeys(unsupported)))


def _render_ref(piece: VariableRef, syntax: VariableSyntax) -> str:
    if piece.default is not None:
        return syntax.default.replace("NAME", piece.name).replace("DEFAULT", piece.default)
    return syntax.forms[piece.kind].replace("NAME", piece.name)


def translate_variables(text: str, source: VariableSyntax, target: VariableSyntax) -> VariableText:
    """Translate the variable references of a text from one host's syntax to another.

    >>> translate_variables("Bearer ${TOKEN}", BRACES_SYNTAX, VSCODE_SYNTAX).text
    'Bearer ${env:TOKEN}'
    """
    return render_variables(parse_variables(text, source), target)


def escape_literal(text: str) -> str:
    """Escape untrusted text for our config files: `${` becomes `$${`, which is not a reference."""
    return render_variables((text,), TOOLWAY_SYNTAX).text


def find_refs(text: str, syntax: VariableSyntax = TOOLWAY_SYNTAX) -> tuple[VariableRef, ...]:
    return tuple(piece for piece in parse_variables(text, syntax) if isinstance(piece, VariableRef))


_compiled_patterns: dict[int, re.Pattern[str]] = {}


def _compile_syntax(syntax: VariableSyntax) -> re.Pattern[str]:
    found = _compiled_patterns.get(id(syntax))
    if found is None:
        escaped = r"(?P<escaped>\$\$\{)|" if syntax.escape else ""
        found = _compiled_patterns[id(syntax)] = re.compile(escaped + "|".join(syntax.patterns.values()))
    return found


def _match_to_piece(found: re.Match[str]) -> TextPiece:
    groups = found.groupdict()
    if groups.get("escaped"):
        return "${"
    default = groups.pop("default", None)
    kind, name = next((kind, name) for kind, name in groups.items() if name is not None)
    return VariableRef("env" if kind.startswith("env") else kind, name, default)


def _join_literals(pieces: list[TextPiece]) -> tuple[TextPiece, ...]:
    joined: list[TextPiece] = []
    for piece in pieces:
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        elif piece != "":
            joined.append(piece)
    return tuple(joined)


def _render_literal(text: str, syntax: VariableSyntax) -> str:
    """Escape each `${` in literal text, if the syntax has an escape prefix."""
    return text.replace("${", f"{syntax.escape}${{") if syntax.escape else text


def is_ambiguous(pieces: tuple[TextPiece, ...], syntax: VariableSyntax) -> bool:
    """Return True if `syntax` has no escape and would read a literal piece as a reference."""
    return not syntax.escape and any(isinstance(piece, str) and bool(find_refs(piece, syntax)) for piece in pieces)
