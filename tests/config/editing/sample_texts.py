"""Files as users keep them, made up at random: comments, unknown keys, odd spacing.

Each text knows where everything in it stands, because marks are written around every member and taken out again. So a
test can say what an edit may touch without asking the code that makes the edit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

Path = tuple[str, ...]
ROOT = "mcp_servers"

_LETTERS = st.characters(
    codec="utf-8", exclude_categories=["Cs", "Cc", "Cn", "Co", "Zl", "Zp"], exclude_characters="\ufeff"
)
_ODD = [
    "",
    "npx",
    "-y",
    "${TOKEN}",
    "a # b",
    "a // b",
    "/* c */",
    'q"q',
    "it's",
    "x: y",
    "[x]",
    "{",
    "true",
    "1",
    "null",
]
NAMES = st.sampled_from(["a", "b", "git-hub", "My Server", "x.y", "é", "1st", "servers", "#no", "null"])
KEYS = st.sampled_from(["command", "args", "env", "url", "headers", "type", "unknown", "x y", "on", "0"])
WORDS = st.one_of(st.sampled_from(_ODD), st.text(_LETTERS, max_size=6))
NEW_WORDS = st.one_of(WORDS, st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=6))
NOTES = st.sampled_from(["note", "TODO: a, b", 'say "hi"', "{not: this}", "[x]", "it's", "a = 1", "- item", "${X}"])


def entries(words: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    scalars = st.one_of(words, st.booleans(), st.integers(-9, 9999), st.sampled_from([0.5, 12.25, 30.0]))
    lists = st.lists(words, max_size=3)
    maps = st.dictionaries(KEYS, st.one_of(scalars, lists), max_size=3)
    return st.dictionaries(KEYS, st.one_of(scalars, lists, maps), max_size=4)


@dataclass(frozen=True)
class Made:
    """A text, what it says, and where each of its members begins and ends."""

    text: str
    value: dict[str, Any]
    spans: dict[Path, tuple[int, int]] = field(repr=False)


_BEGIN, _END, _FIRST = "\ue000", "\ue001", 0xE100


class Writer:
    """Writes a value as text, and asks chance for everything that does not matter to what it says."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.unit = draw(st.sampled_from(["  ", "    ", "\t"]))
        self.paths: list[Path] = []
        self.more: dict[str, Any] = {}  # what was slipped in between

    def made(self, text: str, value: dict[str, Any]) -> Made:
        if self.draw(st.booleans()):
            text = text.replace("\n", "\r\n")
        if self.seldom():
            text = "\ufeff" + text
        plain, spans, open_ = "", {}, {}
        letters = iter(text)
        for letter in letters:
            if letter == _BEGIN:
                open_[next(letters)] = len(plain)
            elif letter == _END:
                mark = next(letters)
                spans[self.paths[ord(mark) - _FIRST]] = (open_[mark], len(plain))
            else:
                plain += letter
        return Made(plain, {**value, **self.more}, spans)

    def marked(self, path: Path, text: str) -> str:
        mark = chr(_FIRST + len(self.paths))
        self.paths.append(path)
        return f"{_BEGIN}{mark}{text}{_END}{mark}"

    def seldom(self) -> bool:
        return bool(self.draw(st.integers(0, 4)) == 0)

    def note(self, before: str, comment: str = "#", after: str = "") -> str:
        return f"{before}{comment} {self.draw(NOTES)}{after}" if self.seldom() else ""


class Json(Writer):
    def document(self, value: dict[str, Any]) -> Made:
        note = self.note("", "//", "\n")
        return self.made(f"{note}{self.value(value, (), '')}{self.draw(st.sampled_from(['', chr(10)]))}", value)

    def value(self, value: Any, path: Path, indent: str) -> str:
        if not isinstance(value, dict | list):
            return json.dumps(value, ensure_ascii=self.seldom())
        opened, closed = "{}" if isinstance(value, dict) else "[]"
        inner = indent + self.unit
        if path and self.draw(st.booleans()):
            space = " " if self.seldom() else ""
            return f"{opened}{space}{', '.join(self._items(value, path, indent))}{space}{closed}"
        if not value and not self.seldom():
            return opened + closed
        text, items = opened + self.remark(" "), self._items(value, path, inner)
        for number, item in enumerate(items):
            above = self.remark("")
            text += f"\n{inner}{above}" if above else ""
            comma = "," if number + 1 < len(items) or self.seldom() else ""
            text += f"\n{inner}{item}{' /* , */ ' if self.seldom() else ''}{comma}{self.remark(' ')}"
        below = self.remark("")
        return f"{text}{f'{chr(10)}{inner}{below}' if below else ''}\n{indent}{closed}"

    def _items(self, value: Any, path: Path, indent: str) -> list[str]:
        if isinstance(value, list):
            return [self.value(item, (*path, "?"), indent) for item in value]
        colon = self.draw(st.sampled_from([": ", ":", " : "]))
        return [
            self.marked((*path, key), f"{_quoted(key)}{colon}{self.value(item, (*path, key), indent)}")
            for key, item in value.items()
        ]

    def remark(self, before: str) -> str:
        return self.note(before, "//") if self.draw(st.booleans()) else self.note(before, "/*", " */")


class Toml(Writer):
    def document(self, value: dict[str, Any]) -> Made:
        return self.made(self.note("", "#", "\n") + self.table(value, ()), value)

    def table(self, value: dict[str, Any], path: Path) -> str:
        """Pairs, then tables; small tables inline sometimes."""
        text, tables = "", []
        for key, item in value.items():
            if isinstance(item, dict) and not (len(path) > 1 and self.seldom()):
                tables.append(key)
                continue
            equals = self.draw(st.sampled_from([" = ", "="]))
            pair = f"{_key(key)}{equals}{self.value(item, (*path, key))}{self.note(' ')}\n"
            text += self.note("", "#", "\n") + self.marked((*path, key), pair)
        for key in tables:
            gap = "\n" if self.draw(st.booleans()) else ""
            text += gap + self.note("", "#", "\n") + self.marked((*path, key), self._below(value[key], (*path, key)))
        return text

    def _below(self, value: dict[str, Any], path: Path) -> str:
        header = f"[{'.'.join(map(_key, path))}]{self.note('  ')}\n"
        if not value or not all(isinstance(item, dict) for item in value.values()) or self.draw(st.booleans()):
            return header + self.table(value, path)
        text = ""  # the table is only there because of those below it
        for key, item in value.items():
            # A comment above the first of them stands above the table itself.
            text += (self.note("", "#", "\n") if text else "") + self.marked(
                (*path, key), self._below(item, (*path, key))
            )
            if len(path) == 1 and self.seldom():
                other = f"other-{len(self.more)}"
                self.more[other] = {"k": 1}
                text += f"\n[{other}]{self.note(' ')}\nk = 1\n"
        return text

    def value(self, value: Any, path: Path) -> str:
        if isinstance(value, dict):
            inner = [self.marked((*path, key), f"{_key(key)} = {self.value(item, ())}") for key, item in value.items()]
            return f"{{ {', '.join(inner)} }}" if inner else "{}"
        if isinstance(value, list):
            items = [self.value(item, ()) for item in value]
            if items and self.seldom():
                return "[\n" + "".join(f"  {item},{self.note(' ')}\n" for item in items) + "]"
            return f"[{', '.join(items)}]"
        if isinstance(value, str):
            return f"'{value}'" if "'" not in value and value.isprintable() and self.seldom() else _quoted(value)
        return str(value).lower()


WRITERS: dict[str, type[Any]] = {"json": Json, "toml": Toml}


def _key(key: str) -> str:
    return key if key.isascii() and key.replace("-", "").replace("_", "").isalnum() else _quoted(key)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
