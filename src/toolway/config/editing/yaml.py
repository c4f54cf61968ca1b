"""YAML files: parser, line numbers, and lines to paste. Toolway reads these files, but never changes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import yaml  # type: ignore[import-untyped]

from toolway.config.editing.patch import KeyPath, Patch, cannot_edit_error
from toolway.errors import ConfigError

_BOM: Final = "\ufeff"
_TAG: Final = "tag:yaml.org,2002:"
_TIMESTAMP: Final = (
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:(?:[Tt]|[ \t]+)[0-9]{1,2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]*)?"
    r"(?:[ \t]*(?:Z|[-+][0-9]{1,2}(?::[0-9]{2})?))?)?"
)
#: Types of plain scalars: those of YAML 1.2, which the clients use. In PyYAML's YAML 1.1 `on` and `yes` are booleans.
_PLAIN_TYPES: Final = (
    ("null", r"~|null|Null|NULL|", ("~", "n", "N", "")),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("timestamp", _TIMESTAMP, "0123456789"),
    ("merge", "<<", "<"),
)


def parse_text(text: str, file: str = "") -> Any:
    """Return the value of a YAML text, or {} if it is empty. All keys are converted to strings.

    Raises `ConfigError` if the text is invalid or has a duplicate key.
    """
    try:
        value = yaml.load(text.removeprefix(_BOM), _Loader)  # noqa: S506 - a subclass of SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise _syntax_error(exc, file) from None
    return {} if value is None else _stringify_keys(value)


def key_lines(text: str, root: KeyPath) -> dict[str | int, int]:
    """Return the line number of each key or list item directly below the key path `root`."""
    node = yaml.compose(text.removeprefix(_BOM), _Loader)
    for step in root:
        node = next((value for key, value in _children(node) if key == step), None)
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): key.start_mark.line + 1 for key, _ in node.value}
    return {key: value.start_mark.line + 1 for key, value in _children(node)}


def apply_patch(text: str, patch: Patch) -> str:
    """Raise `ConfigError`: YAML files are not edited."""
    raise cannot_edit_error(patch.path)


def render(value: Any) -> str:
    """Return a value as YAML lines of ASCII characters. Strings are not folded."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=10_000))


def _children(node: Any) -> list[tuple[str | int, Any]]:
    if isinstance(node, yaml.MappingNode):
        return [(str(key.value), value) for key, value in node.value]
    return list(enumerate(node.value)) if isinstance(node, yaml.SequenceNode) else []


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """A PyYAML loader that reads plain scalars as YAML 1.2 does: `on` and `yes` are strings.

    A duplicate key is an error.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _value in node.value:
            name = (key.tag, str(key.value))
            if name in seen and key.tag != f"{_TAG}merge":
                raise yaml.MarkedYAMLError(problem=f"duplicate key {key.value!r}", problem_mark=key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: Any) -> int:
        text = self.construct_scalar(node)
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """A PyYAML dumper that quotes a string if YAML 1.1 or 1.2 would read it as another type. It indents lists."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _name, _pattern, _first in _PLAIN_TYPES:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"{_TAG}{_name}", re.compile(rf"(?:{_pattern})\Z"), list(_first))
_Loader.add_constructor(f"{_TAG}int", _Loader.construct_yaml_int)


def _stringify_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _stringify_keys(item) for key, item in value.items()}
    return [_stringify_keys(item) for item in value] if isinstance(value, list) else value


def _syntax_error(exc: Exception, file: str) -> ConfigError:
    mark = exc.problem_mark if isinstance(exc, yaml.MarkedYAMLError) else None
    problem = exc.problem if isinstance(exc, yaml.MarkedYAMLError) else str(exc)
    line = mark.line + 1 if mark is not None else None
    return ConfigError(
        f"{file or 'the configuration'} is not valid YAML",
        file=file,
        line=line,
        detail=f"line {line}: {problem}" if line else str(problem),
        hint="check the indentation of that line and the one before",
        code="E-CONFIG-SYNTAX",
    )
