"""What must change in a document so that it says something else: the first difference, again and again.

Each kind of file knows three moves, which touch the text of that place alone: `set` a value that is there, `add` a key
or an item, `drop` one. A change is made of moves, and is done when the file, read anew, says exactly what was meant. So
no move can do harm unnoticed: a file that comes out otherwise is not written.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

from toolway.errors import ConfigError

KeyPath = tuple[str | int, ...]
GONE: Final = object()  # stands for "no value"
_MOST_ROUNDS: Final = 20


class Move(NamedTuple):
    """One step: `set`, `add` or `drop` of what is at `path`; `value` is what shall stand there."""

    kind: str
    path: KeyPath
    value: Any = None


class Text(Protocol):
    """One kind of file. All are pure functions of the text; all raise `ConfigError`."""

    def parse(self, text: str, file: str) -> Any: ...

    def lines(self, text: str, root: KeyPath) -> dict[str | int, int]: ...

    def move(self, text: str, move: Move) -> str: ...


def changed(kind: Text, text: str, path: KeyPath, value: Any, file: str = "") -> str:
    """`text` with `value` at `path`, or without what is there if it is `GONE`; nothing else differs."""
    now = kind.parse(text, file)
    wanted = _with(now, path, value, file)
    # A second round mends what a move brought along, such as a table that was only there for what was dropped.
    for _ in range(_MOST_ROUNDS):
        if same(now, wanted):
            return text
        text = _moved(kind, text, now, wanted, file)
        now = kind.parse(text, file)
    raise unchangeable(path, file)


def _moved(kind: Text, text: str, now: Any, wanted: Any, file: str) -> str:
    """All moves of one round. What they should bring about is not read anew after each: that is slow."""
    move = difference(now, wanted)
    while move is not None:
        text = kind.move(text, move)
        now = _with(now, move.path, GONE if move.kind == "drop" else move.value, file)
        move = difference(now, wanted)
    return text


def unchangeable(path: KeyPath, file: str = "") -> ConfigError:
    return ConfigError(
        f"{file or 'the file'} cannot be changed without touching more than was meant",
        file=file,
        evidence=f"at {'.'.join(str(part) for part in path)}; nothing was written",
        fix="change it by hand there",
        code="E-EDIT-SHAPE",
    )


def same(one: Any, other: Any) -> bool:
    """Equality that tells `1` from `1.0` and from `true`, and minds no order of keys."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(item, other[key]) for key, item in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or (one != one and other != other))


def difference(now: Any, wanted: Any, path: KeyPath = ()) -> Move | None:
    """The first move on the way from one to the other."""
    if now is wanted:
        return None
    if isinstance(now, Mapping) and isinstance(wanted, Mapping):
        return _in_mapping(now, wanted, path)
    if isinstance(now, list) and isinstance(wanted, list):
        return _in_list(now, wanted, path)
    return None if same(now, wanted) else Move("set", path, wanted)


def _in_mapping(now: Mapping[str, Any], wanted: Mapping[str, Any], path: KeyPath) -> Move | None:
    for key, value in wanted.items():
        if key not in now:
            return Move("add", (*path, key), value)
        move = difference(now[key], value, (*path, key))
        if move is not None:
            return move
    gone = next((key for key in now if key not in wanted), None)
    return None if gone is None else Move("drop", (*path, gone))


def _in_list(now: list[Any], wanted: list[Any], path: KeyPath) -> Move | None:
    """Item by item, so that comments among them stay."""
    if same(now, wanted):
        return None
    at = _first(now, wanted)
    if len(now) > len(wanted):
        return Move("drop", (*path, at))
    if at == len(now):
        return Move("add", (*path, at), wanted[at])
    return difference(now[at], wanted[at], (*path, at))


def _first(now: list[Any], wanted: list[Any]) -> int:
    """Where two lists begin to differ."""
    pairs = enumerate(zip(now, wanted, strict=False))
    return next((at for at, (one, other) in pairs if not same(one, other)), min(len(now), len(wanted)))


def _with(document: Any, path: KeyPath, value: Any, file: str) -> Any:
    """A copy of the document with the value in place. What is in its way and no object is not overwritten."""
    if not path:
        return {} if value is GONE else value
    if document is not None and not isinstance(document, list if isinstance(path[0], int) else Mapping):
        raise unchangeable(path, file)
    new: Any = copy.copy(document) if document is not None else {}
    key: Any = path[0]
    inner = _item(new, key)
    if len(path) > 1:
        if inner is None and value is GONE:
            return new
        new[key] = _with(inner, path[1:], value, file)
    elif value is GONE:
        if inner is not None or isinstance(new, dict):
            new.pop(key, *([None] if isinstance(new, dict) else []))
    elif isinstance(new, list) and key == len(new):
        new.append(value)
    else:
        new[key] = value
    return new


def _item(container: Any, key: Any) -> Any:
    if isinstance(container, dict):
        return container.get(key)
    return container[key] if isinstance(key, int) and key < len(container) else None
