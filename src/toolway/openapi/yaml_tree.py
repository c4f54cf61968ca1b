"""YAML → the values that JSON has.

The parser (libyaml, by PyYAML) only tells what comes next; the tree is built here, because what a document may do to us
while it is built is decided here: how deep it goes, and how large it becomes when every alias is followed. Scalars are
read by the rules of YAML 1.2, as OpenAPI demands: `no` is a word and `2020-01-01` a text. Keys are always texts.
"""

from __future__ import annotations

import re
from typing import Any, Final

import yaml  # type: ignore[import-untyped] # only its events are used

from toolway.openapi.problems import BadDocument

MAX_VALUES: Final = 1_500_000  # with all aliases followed
MAX_DEPTH: Final = 100
_LONGEST_NUMBER: Final = 40
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE: Final = frozenset({"true", "True", "TRUE"})
_FALSE: Final = frozenset({"false", "False", "FALSE"})
_INTEGER: Final = re.compile(r"[-+]?[0-9]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_PREFIXED: Final = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_TABS: Final = re.compile(r"^ *\t[ \t]*$", re.MULTILINE)
_NO_BREAKS: Final = re.compile("[\x85\u2028\u2029]")
_UNSEEN: Final = re.compile(r"[\x01-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]")
_TAG: Final = "tag:yaml.org,2002:"
_Parser: Any = getattr(yaml.cyaml, "CParser", None) if hasattr(yaml, "cyaml") else None


def parse(text: str) -> tuple[Any, list[str]]:
    """The value, and what is odd about the text. Raises `BadDocument`."""
    try:
        return _Tree(_events(text)).build()
    except yaml.YAMLError:
        # libyaml stumbles over tabs in lines that are empty otherwise, and takes for line ends what no longer are any
        # in YAML 1.2; and YAML itself forbids characters that nobody sees.
        mended = _TABS.sub("", _UNSEEN.sub("", _NO_BREAKS.sub(" ", text)))
    tree, odd = _parse(mended)
    return tree, ["control characters, or tabs in empty lines, were left out", *odd]


def _parse(text: str) -> tuple[Any, list[str]]:
    try:
        return _Tree(_events(text)).build()
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        at = f" in line {mark.line + 1}" if mark is not None else ""
        raise BadDocument(f"no valid YAML{at}: {getattr(exc, 'problem', None) or exc}"[:300]) from None


def _events(text: str) -> Any:
    if _Parser is not None:
        return _Parser(text)
    return yaml.Loader(text)  # slower, where PyYAML came without libyaml; only its events are used


class _Tree:
    def __init__(self, events: Any) -> None:
        self._events = events
        self._next = events.get_event
        self._anchors: dict[str, tuple[Any, int]] = {}  # the value, and how many values it is
        self._open: set[str] = set()
        self._values = 0
        self._odd: list[str] = []

    def build(self) -> tuple[Any, list[str]]:
        self._next()  # the stream begins
        if isinstance(self._next(), yaml.StreamEndEvent):
            return None, []
        value = self._value(self._next(), 0)
        self._next()  # the document ends
        if not isinstance(self._next(), yaml.StreamEndEvent):
            self._odd.append("the file has more than one YAML document: only the first was read")
        return value, self._odd

    def _value(self, event: Any, depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        before = self._values
        self._count(1)
        anchor = event.anchor
        if isinstance(event, yaml.ScalarEvent):
            value = _scalar(event)
        else:
            if depth >= MAX_DEPTH:
                raise BadDocument(f"nested deeper than {MAX_DEPTH} levels in line {event.start_mark.line + 1}")
            if anchor:
                self._open.add(anchor)
            is_list = isinstance(event, yaml.SequenceStartEvent)
            value = self._list(depth) if is_list else self._mapping(depth)
            self._open.discard(anchor)
        if anchor:
            self._anchors[anchor] = value, self._values - before
        return value

    def _alias(self, event: Any) -> Any:
        if event.anchor in self._open:
            raise BadDocument(f"the alias *{event.anchor} in line {event.start_mark.line + 1} contains itself")
        if event.anchor not in self._anchors:
            raise BadDocument(f"the alias *{event.anchor} in line {event.start_mark.line + 1} stands for nothing")
        value, values = self._anchors[event.anchor]
        self._count(values)
        return value

    def _count(self, values: int) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            raise BadDocument(f"more than {MAX_VALUES:,} values, with every alias followed")

    def _list(self, depth: int) -> list[Any]:
        items = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            items.append(self._value(event, depth + 1))
        return items

    def _mapping(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: list[Any] = []
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            key = self._key(event, line)
            value = self._value(self._next(), depth + 1)
            if key == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
                merged.extend(value if isinstance(value, list) else [value])
                continue
            if key in found:
                self._odd.append(f"the key {key[:80]!r} stands twice, again in line {line}: the last one counts")
            found[key] = value
        return self._merge(found, merged) if merged else found

    def _merge(self, found: dict[str, Any], merged: list[Any]) -> dict[str, Any]:
        """What stands here wins over what is merged in, and what comes first over what comes later."""
        whole: dict[str, Any] = {}
        for each in reversed([each for each in merged if isinstance(each, dict)]):
            self._count(len(each))
            whole.update(each)
        return {**whole, **found}

    def _key(self, event: Any, line: int) -> str:
        if isinstance(event, yaml.ScalarEvent):
            if event.anchor:
                self._anchors[event.anchor] = event.value, 1
            return str(event.value)
        value = self._alias(event) if isinstance(event, yaml.AliasEvent) else None
        if isinstance(value, str):
            return value
        raise BadDocument(f"a key that is no text in line {line}")


def _scalar(event: Any) -> Any:
    text: str = event.value
    if event.tag and event.tag.startswith(_TAG):
        return text if event.tag == f"{_TAG}str" else _plain(text)
    return _plain(text) if event.implicit[0] else text  # written without quotes


def _plain(text: str) -> Any:
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if len(text) > _LONGEST_NUMBER or text[0] not in "+-.0123456789":
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if abs(number) != float("inf") else text
    if _PREFIXED.fullmatch(text):
        return int(text, 0)
    return text
