"""Converts YAML to JSON values, with limits on depth and size.

The parser (libyaml through PyYAML) only produces events. The tree is built here, because its depth, and its size with
all aliases expanded, must be limited while it grows. Scalars follow YAML 1.2, as OpenAPI requires, so `no` is a string,
and so is `2020-01-01`. Keys are always strings.
"""

from __future__ import annotations

import re
from typing import Any, Final

import yaml  # type: ignore[import-untyped] # only its events are used

from toolway.parts.openapi.document.models import InvalidDocument

MAX_YAML_VALUES: Final = 1_500_000  # with all aliases expanded
MAX_YAML_DEPTH: Final = 100
_MAX_NUMBER_CHARS: Final = 40
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE: Final = frozenset({"true", "True", "TRUE"})
_FALSE: Final = frozenset({"false", "False", "FALSE"})
_INTEGER: Final = re.compile(r"[-+]?[0-9]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_PREFIXED_INTEGER: Final = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_TAB_ONLY_LINE: Final = re.compile(r"^ *\t[ \t]*$", re.MULTILINE)
_UNICODE_BREAKS: Final = re.compile("[\x85\u2028\u2029]")
_FORBIDDEN_CHARS: Final = re.compile(r"[\x01-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]")
_YAML_TAG: Final = "tag:yaml.org,2002:"
_LibyamlParser: Any = getattr(yaml.cyaml, "CParser", None) if hasattr(yaml, "cyaml") else None


def parse_yaml(text: str) -> tuple[Any, list[str]]:
    """Parse YAML text, and return the value and warnings.

    Raises `InvalidDocument` if the text is not valid YAML, is nested too deeply, or is too large.
    """
    try:
        return _TreeBuilder(_event_stream(text)).build()
    except yaml.YAMLError:
        # libyaml rejects tabs in otherwise empty lines, and treats characters as line breaks that are none in YAML 1.2.
        # YAML itself forbids invisible characters.
        cleaned = _TAB_ONLY_LINE.sub("", _FORBIDDEN_CHARS.sub("", _UNICODE_BREAKS.sub(" ", text)))
    tree, warnings = _parse_cleaned_yaml(cleaned)
    return tree, ["control characters, or tabs in empty lines, were removed", *warnings]


def _parse_cleaned_yaml(text: str) -> tuple[Any, list[str]]:
    try:
        return _TreeBuilder(_event_stream(text)).build()
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        at = f" in line {mark.line + 1}" if mark is not None else ""
        raise InvalidDocument(f"invalid YAML{at}: {getattr(exc, 'problem', None) or exc}"[:300]) from None


def _event_stream(text: str) -> Any:
    if _LibyamlParser is not None:
        return _LibyamlParser(text)
    return yaml.Loader(text)  # slower; used if PyYAML has no libyaml; only its events are used


class _TreeBuilder:
    """Builds JSON values from YAML events, with limits on depth and number of values."""

    def __init__(self, events: Any) -> None:
        self._events = events
        self._next_event = events.get_event
        self._anchors: dict[str, tuple[Any, int]] = {}  # the value, and the number of values in it
        self._open_anchors: set[str] = set()
        self._value_count = 0
        self._warnings: list[str] = []

    def build(self) -> tuple[Any, list[str]]:
        self._next_event()  # the stream begins
        if isinstance(self._next_event(), yaml.StreamEndEvent):
            return None, []
        value = self._build_value(self._next_event(), 0)
        self._next_event()  # the document ends
        if not isinstance(self._next_event(), yaml.StreamEndEvent):
            self._warnings.append("the file has more than one YAML document: only the first was read")
        return value, self._warnings

    def _build_value(self, event: Any, depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent):
            return self._resolve_alias(event)
        before = self._value_count
        self._count(1)
        anchor = event.anchor
        if isinstance(event, yaml.ScalarEvent):
            value = _scalar_value(event)
        else:
            if depth >= MAX_YAML_DEPTH:
                raise InvalidDocument(f"nested deeper than {MAX_YAML_DEPTH} levels in line {event.start_mark.line + 1}")
            if anchor:
                self._open_anchors.add(anchor)
            is_list = isinstance(event, yaml.SequenceStartEvent)
            value = self._build_list(depth) if is_list else self._build_mapping(depth)
            self._open_anchors.discard(anchor)
        if anchor:
            self._anchors[anchor] = value, self._value_count - before
        return value

    def _resolve_alias(self, event: Any) -> Any:
        if event.anchor in self._open_anchors:
            raise InvalidDocument(f"the alias *{event.anchor} in line {event.start_mark.line + 1} contains itself")
        if event.anchor not in self._anchors:
            raise InvalidDocument(f"the alias *{event.anchor} in line {event.start_mark.line + 1} has no anchor")
        value, values = self._anchors[event.anchor]
        self._count(values)
        return value

    def _count(self, values: int) -> None:
        self._value_count += values
        if self._value_count > MAX_YAML_VALUES:
            raise InvalidDocument(f"more than {MAX_YAML_VALUES:,} values, with all aliases expanded")

    def _build_list(self, depth: int) -> list[Any]:
        items = []
        while not isinstance(event := self._next_event(), yaml.SequenceEndEvent):
            items.append(self._build_value(event, depth + 1))
        return items

    def _build_mapping(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: list[Any] = []
        while not isinstance(event := self._next_event(), yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            key = self._read_key(event, line)
            value = self._build_value(self._next_event(), depth + 1)
            if key == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
                merged.extend(value if isinstance(value, list) else [value])
                continue
            if key in found:
                self._warnings.append(f"duplicate key {key[:80]!r} in line {line}: the last one is used")
            found[key] = value
        return self._apply_merges(found, merged) if merged else found

    def _apply_merges(self, found: dict[str, Any], merged: list[Any]) -> dict[str, Any]:
        """Apply YAML merge keys (`<<`): a mapping's own keys win, and earlier merged mappings win over later ones."""
        whole: dict[str, Any] = {}
        for each in reversed([each for each in merged if isinstance(each, dict)]):
            self._count(len(each))
            whole.update(each)
        return {**whole, **found}

    def _read_key(self, event: Any, line: int) -> str:
        if isinstance(event, yaml.ScalarEvent):
            if event.anchor:
                self._anchors[event.anchor] = event.value, 1
            return str(event.value)
        value = self._resolve_alias(event) if isinstance(event, yaml.AliasEvent) else None
        if isinstance(value, str):
            return value
        raise InvalidDocument(f"a key in line {line} is not a string")


def _scalar_value(event: Any) -> Any:
    text: str = event.value
    if event.tag and event.tag.startswith(_YAML_TAG):
        return text if event.tag == f"{_YAML_TAG}str" else _plain_scalar(text)
    return _plain_scalar(text) if event.implicit[0] else text  # written without quotes


def _plain_scalar(text: str) -> Any:
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if len(text) > _MAX_NUMBER_CHARS or text[0] not in "+-.0123456789":
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if abs(number) != float("inf") else text
    if _PREFIXED_INTEGER.fullmatch(text):
        return int(text, 0)
    return text
