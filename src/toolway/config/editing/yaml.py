"""YAML files: parser, line numbers, and patches that keep comments and layout.

The offsets of values come from the marks of PyYAML's nodes, with corrected ends: the parser's end of a block is the
next token, after comments and empty lines that belong to the following item.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final

import yaml  # type: ignore[import-untyped]

from toolway._lazy import compile_pattern, dataclass
from toolway.config.editing.patch import (
    InlineCollection,
    KeyPath,
    Patch,
    cannot_edit_error,
    detect_style,
    line_end,
    line_start,
)
from toolway.errors import ConfigError

NO_OFFSET: Final = -1
_BOM: Final = "\ufeff"
_COLON = compile_pattern(r"\s*:")
_ALIAS = compile_pattern(r"\s*(\*[^\s,\]}]+)")
_PLAIN_SCALAR = compile_pattern(r"[A-Za-z_/][A-Za-z0-9_/.@-]*")
_RESERVED_WORDS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})  # in any YAML version
_UNPRINTABLE = compile_pattern("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
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
    """Return the value of a YAML text: {} if it is empty; all keys are converted to text.

    Raises `ConfigError` if the text is invalid or has a duplicate key.
    """
    try:
        value = yaml.load(text.removeprefix(_BOM), _Loader)  # noqa: S506 - a subclass of SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise _syntax_error(exc, file) from None
    return {} if value is None else _stringify_keys(value)


def key_lines(text: str, root: KeyPath) -> dict[str | int, int]:
    """Return the line number of each key or list item directly below the key path `root`."""
    text = text.removeprefix(_BOM)
    node = find_node(_compose_tree(text), root)
    if node is None:
        return {}
    starts: list[tuple[str | int, int]] = [(member.key, member.start) for member in node.members or []]
    starts += [(at, item.start) for at, item in enumerate(node.items or []) if item.start != NO_OFFSET]
    return {key: text.count("\n", 0, start) + 1 for key, start in starts}


def apply_patch(text: str, patch: Patch) -> str:
    """Return the YAML text with one patch applied. All other text and comments stay.

    Raises `ConfigError` if the path does not exist, or if the change would affect unrelated text.
    """
    bom = _BOM if text.startswith(_BOM) else ""
    return bom + _YamlPatcher(text.removeprefix(_BOM)).apply(patch)


class _YamlPatcher:
    """Patcher of one YAML text, with the offsets of its values."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.newline, unit = detect_style(text)
        self.indent = unit if unit.strip("\t") else "  "
        self.root = _compose_tree(text)

    def apply(self, patch: Patch) -> str:
        if patch.kind == "replace":
            return self._replace(patch.path, patch.value)
        parent = find_node(self.root, patch.path[:-1])
        if parent is None and len(patch.path) == 1:
            return self._insert_lines(len(self.text), render_block({patch.path[0]: patch.value}, self.indent), "")
        if parent is None or parent.start == NO_OFFSET or (parent.members is None and parent.items is None):
            raise cannot_edit_error(patch.path)
        if patch.kind == "add":
            return self._add(parent, patch.path, patch.value)
        return self._remove(parent, patch.path)

    # -- replace ------------------------------------------------------------------------------------------------------

    def _replace(self, path: KeyPath, value: Any) -> str:
        node, member = find_node(self.root, path), self._find_member(path)
        if node is None or node.start == NO_OFFSET:
            raise cannot_edit_error(path)
        if member is not None and self._is_in_block(path) and (is_block_value(value) or not node.is_flow):
            return self._replace_block(member, value)
        if not node.is_flow:
            raise cannot_edit_error(path)
        new = render_inline(value)
        return self.text[: node.start] + (f" {new}" if node.is_empty else new) + self.text[node.end :]

    def _replace_block(self, member: YamlMember, value: Any) -> str:
        """Return the text with a new value of a key, if the old or new value is an indented block."""
        node = member.value
        if node.is_flow:
            text = self.text[: member.colon] + self.text[node.end :]
        else:
            text = self.text[: line_start(self.text, node.start)] + self.text[_next_line_offset(self.text, node.end) :]
        if not is_block_value(value):
            return f"{text[: member.colon]} {render_inline(value)}{text[member.colon :]}"
        indent = self._column_indent(member.start) + self.indent
        return self._insert_lines(_next_line_offset(text, member.colon), render_block(value, self.indent), indent, text)

    # -- add ----------------------------------------------------------------------------------------------------------

    def _add(self, parent: YamlNode, path: KeyPath, value: Any) -> str:
        key = path[-1]
        if parent.is_flow:
            spans = _child_spans(parent)
            member = self._find_member(path[:-1])
            whole = [value] if isinstance(key, int) else {key: value}
            if not spans and member is not None and self._is_in_block(path[:-1]):
                return self._replace_block(member, whole)
            if not spans and len(path) == 1:
                return self.text[: parent.start] + render_inline(whole) + self.text[parent.end :]
            new = render_inline(value) if isinstance(key, int) else f"{render_scalar(key)}: {render_inline(value)}"
            return InlineCollection(self.text, parent.start, parent.end, spans).with_item(new)
        new_lines = render_item(value, self.indent) if isinstance(key, int) else render_member(key, value, self.indent)
        return self._insert_lines(
            _next_line_offset(self.text, parent.end), new_lines, self._column_indent(parent.start)
        )

    # -- remove -------------------------------------------------------------------------------------------------------

    def _remove(self, parent: YamlNode, path: KeyPath) -> str:
        key, spans = path[-1], _child_spans(parent)
        at = key if isinstance(key, int) else [member.key for member in parent.members or []].index(key)
        if parent.is_flow:
            return InlineCollection(self.text, parent.start, parent.end, spans).without_items([at])
        if len(spans) == 1 and len(path) > 1:
            return self._replace(path[:-1], [] if isinstance(key, int) else {})
        start, end = spans[at]
        if start == NO_OFFSET:
            raise cannot_edit_error(path)
        begin = self.text.rindex("-", 0, start) if isinstance(key, int) else start
        if not self.text[line_start(self.text, begin) : begin].strip():
            return self.text[: line_start(self.text, begin)] + self.text[_next_line_offset(self.text, end) :]
        if isinstance(key, int) or at + 1 == len(spans):
            raise cannot_edit_error(path)
        return self.text[:start] + self.text[spans[at + 1][0] :]  # first key of a list item, on the line of its dash

    # -- offsets ------------------------------------------------------------------------------------------------------

    def _find_member(self, path: KeyPath) -> YamlMember | None:
        parent = find_node(self.root, path[:-1]) if path else None
        return next((each for each in (parent.members or []) if each.key == path[-1]), None) if parent else None

    def _is_in_block(self, path: KeyPath) -> bool:
        """Return True if the value at `path` is in indented blocks only, not inside a list or map in brackets."""
        above = [find_node(self.root, path[:depth]) for depth in range(len(path))]
        return all(node is not None and not node.is_flow for node in above)

    def _column_indent(self, at: int) -> str:
        return " " * (at - line_start(self.text, at))

    def _insert_lines(self, at: int, new: Iterable[str], indent: str, text: str | None = None) -> str:
        text = self.text if text is None else text
        before = text[:at]
        if before and not before.endswith("\n"):
            before += self.newline
        return before + "".join(f"{indent}{line}{self.newline}" for line in new) + text[at:]


def _next_line_offset(text: str, at: int) -> int:
    """Return the offset of the line after the one that contains offset `at`."""
    return min(line_end(text, at) + 1, len(text))


def _child_spans(node: YamlNode) -> list[tuple[int, int]]:
    spans = [(member.start, member.value.end) for member in node.members or []]
    return spans or [(item.start, item.end) for item in node.items or []]


# -- parser and offsets -----------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """PyYAML loader that reads plain scalars as YAML 1.2 does: `on` and `yes` are text.

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


for _name, _pattern, _first in _PLAIN_TYPES:
    _Loader.add_implicit_resolver(f"{_TAG}{_name}", re.compile(rf"(?:{_pattern})\Z"), list(_first))
_Loader.add_constructor(f"{_TAG}int", _Loader.construct_yaml_int)


def _compose_tree(text: str) -> YamlNode | None:
    return build_tree(yaml.compose(text, _Loader), text)


@dataclass(slots=True)
class YamlNode:
    """YAML value with its offsets in the text, and its members or items.

    `start` is `NO_OFFSET` for a list item that is empty or an alias: it cannot be edited.
    """

    start: int
    end: int
    is_flow: bool = True  # a scalar, or a collection in brackets
    members: list[YamlMember] | None = None
    items: list[YamlNode] | None = None
    is_empty: bool = False  # a key without a value

    def child(self, key: str | int) -> YamlNode | None:
        if isinstance(key, int):
            return self.items[key] if self.items is not None and key < len(self.items) else None
        return next((member.value for member in self.members or [] if member.key == key), None)


@dataclass(slots=True)
class YamlMember:
    key: str
    start: int
    colon: int  # offset after the colon
    value: YamlNode


def build_tree(composed: Any, text: str) -> YamlNode | None:
    """Build the tree of values with offsets from PyYAML's nodes; None for an empty document."""
    return None if composed is None or _is_empty_node(composed) else _build_node(composed, text, 0)


def _build_node(composed: Any, text: str, floor: int) -> YamlNode:
    start, end = composed.start_mark.index, composed.end_mark.index
    if start < floor:
        return YamlNode(NO_OFFSET, NO_OFFSET)
    if isinstance(composed.value, str):
        return YamlNode(start, start + len(text[start:end].rstrip()) if composed.style in ("|", ">") else end)
    flow = bool(composed.flow_style)
    node = YamlNode(start, end, flow)
    if composed.id == "mapping":
        node.members = [_build_member(key, value, text) for key, value in composed.value]
        last = node.members[-1].value if node.members else None
    else:
        node.items = []
        for item in composed.value:
            node.items.append(_build_item(item, text, node.items[-1].end if node.items else start))
        last = node.items[-1] if node.items else None
    if not flow and last is not None:
        node.end = last.end
    return node


def _build_member(key: Any, value: Any, text: str) -> YamlMember:
    end = key.end_mark.index
    found = _COLON.match(text, end)
    colon = found.end() if found else end
    alias = _ALIAS.match(text, colon)
    if alias and value.start_mark.index < colon:
        node = YamlNode(*alias.span(1))
    elif _is_empty_node(value):
        node = YamlNode(colon, colon, is_empty=True)
    else:
        node = _build_node(value, text, colon)
    return YamlMember(str(key.value), key.start_mark.index, colon, node)


def _build_item(item: Any, text: str, floor: int) -> YamlNode:
    return YamlNode(NO_OFFSET, floor) if _is_empty_node(item) else _build_node(item, text, floor)


def _is_empty_node(composed: Any) -> bool:
    return isinstance(composed.value, str) and composed.start_mark.index == composed.end_mark.index


def find_node(root: YamlNode | None, path: KeyPath) -> YamlNode | None:
    node = root
    for key in path:
        node = None if node is None else node.child(key)
    return node


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
        hint="check the indentation there and on the line before",
        code="E-CONFIG-SYNTAX",
    )


# -- rendering: on one line, or as indented blocks --------------------------------------------------------------------


def render_scalar(value: Any) -> str:
    if isinstance(value, str):
        if _PLAIN_SCALAR.fullmatch(value) and value.lower() not in _RESERVED_WORDS:
            return value
        return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))
    if isinstance(value, float):
        return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(repr(value), repr(value))
    return value.isoformat() if hasattr(value, "isoformat") else json.dumps(value)


def render_inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{render_scalar(key)}: {render_inline(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(render_inline(item) for item in value)}]"
    return render_scalar(value)


def is_block_value(value: Any) -> bool:
    """Return True if `value` is rendered as an indented block: a non-empty map or list."""
    return isinstance(value, Mapping | list) and bool(value)


def render_member(key: str, value: Any, unit: str) -> Iterator[str]:
    """Yield the YAML lines of `key: value`, without the indentation of the parent map."""
    if not is_block_value(value):
        yield f"{render_scalar(key)}: {render_inline(value)}"
        return
    yield f"{render_scalar(key)}:"
    yield from (f"{unit}{line}" for line in render_block(value, unit))


def render_block(value: Any, unit: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from render_member(str(key), inner, unit)
    else:
        for inner in value:
            yield from render_item(inner, unit)


def render_item(value: Any, unit: str) -> Iterator[str]:
    """Yield the YAML lines of the list item `- value`, without the indentation of the list."""
    if not is_block_value(value):
        yield f"- {render_inline(value)}"
        return
    for number, line in enumerate(render_block(value, unit)):
        yield f"{'  ' if number else '- '}{line}"
