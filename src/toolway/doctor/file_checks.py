"""What is wrong with a file as a whole: its encoding, its syntax, the key under which its servers stand.

Each client reads its file in its own way, and ignores without a word what it does not expect.
"""

from __future__ import annotations

import codecs
import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from toolway.config import jsonc
from toolway.config.entries import URL_KEYS
from toolway.doctor.repairs import FileRepair
from toolway.doctor.report import Check, State
from toolway.errors import ConfigError

#: Every key under which some client keeps its servers.
ROOTS: Final = ("mcpServers", "servers", "mcp_servers", "context_servers", "amp.mcpServers")
_UTF16: Final = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
#: A key, or a value, which may not be closed, or be in the wrong quotes.
_STRING: Final = re.compile(r"""(?:"(?:[^"\\]|\\.)*+"?|'[^']*+'?)(\s*:)?""")
_LONG: Final = re.compile(r"[^\s\"{}\[\],:]{16,}")
_MARKS: Final = frozenset({"command", *URL_KEYS})


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads a file, and how strictly."""

    title: str = "Toolway"
    roots: tuple[str, ...] = ("mcpServers", "servers", "mcp_servers")  # any of these
    comments: bool = True  # comments and trailing commas are allowed
    mark: bool = True  # a byte order mark is allowed
    bare: bool = True  # the servers may stand at the top


@dataclass(slots=True)
class File:
    """A JSON file that was looked at."""

    path: Path
    checks: list[Check] = field(default_factory=list)
    root: tuple[str, ...] = ()
    entries: Mapping[str, Any] | None = None  # None: there is nothing to be had
    lines: Mapping[tuple[str, ...], int] = field(default_factory=dict)

    def line(self, name: str) -> int | None:
        return self.lines.get((*self.root, name))

    def add(self, state: State, what: str, evidence: str = "", fix: str = "", copy: str = "", **more: Any) -> None:
        self.checks.append(Check("file", state, what, evidence, fix, copy, **more))


def look(path: Path, reader: Reader) -> File:
    """Read a file as `reader` would, and say what he would not say."""
    file = File(path)
    try:
        data = path.read_bytes()
    except OSError as exc:
        file.add(
            "fail", f"{path.name} cannot be read", exc.strerror or str(exc), "correct the path", code="E-CONFIG-FILE"
        )
        return file
    text = _text(file, data, reader)
    if text is None:
        return file
    try:
        document = jsonc.parse(text, str(path))
    except ConfigError as exc:
        shown = _line_of(text, exc.line)
        file.add("fail", f"{path.name} is not valid JSON: {exc.evidence}", shown, exc.fix, code=exc.code)
        return file
    file.lines = document.lines
    if not reader.comments:
        _strict(file, text, reader)
    _root(file, document.value, reader)
    return file


def _text(file: File, data: bytes, reader: Reader) -> str | None:
    """What the bytes say. A file in another encoding is not read on: nobody else would."""
    name = file.path.name
    for mark, encoding in _UTF16.items():
        if data.startswith(mark):
            repair = FileRepair(f"write {name} as UTF-8", file.path, partial(_recode, encoding=encoding))
            what = f"{name} is UTF-16, and has to be UTF-8"
            copy = f"iconv -f UTF-16 -t UTF-8 {file.path} > new.json"
            file.add("fail", what, fix="save it as UTF-8", copy=copy, code="E-CONFIG-FILE", repair=repair)
            return None
    if data.startswith(codecs.BOM_UTF8):
        repair = FileRepair(f"remove the byte order mark of {name}", file.path, _unmark)
        state: State = "warn" if reader.mark else "fail"
        who = "other programs" if reader.mark else reader.title
        what = f"{name} begins with a byte order mark, which {who} cannot read"
        copy = f"sed -i '1s/^\\xEF\\xBB\\xBF//' {file.path}"
        file.add(state, what, "EF BB BF", "save it as UTF-8 without BOM", copy, code="E-CONFIG-FILE", repair=repair)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        what = f"{name} is not UTF-8: byte {exc.start} cannot be read"
        file.add("fail", what, fix="save it as UTF-8", code="E-CONFIG-FILE")
        return None


def _recode(data: bytes, encoding: str) -> bytes:
    return data.decode(encoding).removeprefix("\ufeff").encode()


def _unmark(data: bytes) -> bytes:
    return data.removeprefix(codecs.BOM_UTF8)


def _strict(file: File, text: str, reader: Reader) -> None:
    """Comments and trailing commas, for a reader who does not know them."""
    try:
        json.loads(text)
    except json.JSONDecodeError as exc:
        shown = _line_of(text, exc.lineno)
        comment = "//" in shown or "/*" in shown
        word = "a comment" if comment else "a trailing comma"
        what = f"{file.path.name} has {word} in line {exc.lineno}, and {reader.title} reads plain JSON only"
        file.add("fail", what, shown, f"remove {'it' if comment else 'the comma'}", code="E-CONFIG-SYNTAX")


def _line_of(text: str, line: int | None) -> str:
    """A line of the file without its values: they may be secrets, and the file cannot be read to know which."""
    lines = text.splitlines()
    if not line or line > len(lines):
        return ""
    shown = _STRING.sub(lambda found: found[0] if found[1] else '"…"', lines[line - 1].strip())
    return f"{line}: {_LONG.sub('…', shown)[:120]}"


def _root(file: File, value: Any, reader: Reader) -> None:
    """Where the servers are, and whether that is where they are looked for."""
    if not isinstance(value, dict):
        file.add(
            "fail",
            f"{file.path.name} holds no object",
            fix=f'write {{"{reader.roots[0]}": {{…}}}}',
            code="E-CONFIG-SHAPE",
        )
        return
    for key in reader.roots:
        if isinstance(value.get(key), dict):
            file.root, file.entries = (key,), value[key]
            _ok(file)
            return
    found = _other_root(value, reader)
    if found is not None:
        wanted = reader.roots[0]
        repair = FileRepair(f"call the key {wanted}", file.path, partial(_rename, old=found, new=wanted))
        what = f'the servers stand under "{found}", and {reader.title} looks for "{wanted}"'
        file.add(
            "fail",
            what,
            f"line {file.lines.get((found,))}",
            "rename the key",
            f'"{wanted}": {{…}}',
            code="E-CONFIG-SHAPE",
            repair=repair,
        )
        return
    bare = {key: each for key, each in value.items() if _is_entry(each)}
    if bare and reader.bare:
        file.root, file.entries = (), bare
        _ok(file)
    elif bare:
        wanted = reader.roots[0]
        what = f'the servers stand at the top, and {reader.title} looks for them under "{wanted}"'
        file.add("fail", what, fix=f'put them into {{"{wanted}": {{…}}}}', code="E-CONFIG-SHAPE")
    else:
        file.add("ok", f"{file.path.name} has no servers")
        file.root, file.entries = (reader.roots[0],), {}


def _ok(file: File) -> None:
    if not file.checks:
        count = len(file.entries or {})
        file.add("ok", f"{count} server{'' if count == 1 else 's'}")


def _other_root(value: Mapping[str, Any], reader: Reader) -> str | None:
    """A key that holds servers and is not looked at: another client's, or a misspelling."""
    maps = [key for key, each in value.items() if isinstance(each, dict) and any(map(_is_entry, each.values()))]
    named = [key for key in maps if key in ROOTS or difflib.get_close_matches(key.lower(), ("mcpservers",), 1, 0.7)]
    # A file of settings has other things that look like servers; one of our own has nothing else.
    return next(iter([*named, *maps] if reader.bare else named), None)


def _is_entry(value: Any) -> bool:
    return isinstance(value, dict) and bool(_MARKS & value.keys())


def _rename(data: bytes, old: str, new: str) -> bytes:
    """Another name for a key at the top of a file; nothing else changes."""
    text = data.decode()
    line = jsonc.parse(text).lines[(old,)]
    begin = sum(len(each) for each in text.splitlines(keepends=True)[: line - 1])
    written = re.escape(json.dumps(old, ensure_ascii=False))
    return (text[:begin] + re.sub(rf"{written}(\s*:)", rf"{json.dumps(new)}\1", text[begin:], count=1)).encode()
