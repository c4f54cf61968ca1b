"""The three kinds of file, each loaded when one is met: what a file says, where, and how to change it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal, cast

from toolway.config.editing.change import GONE, KeyPath, Text, changed
from toolway.config.editing.edit import Edit, decode, read_bytes

Format = Literal["json", "toml", "yaml"]
_ENDINGS: Final[dict[str, Format]] = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}


class Document:
    """A file as it is now, and the text that it shall have. Raises `ConfigError` where it cannot be read."""

    def __init__(self, path: Path, format: Format | None = None) -> None:
        self.path = path
        self.format: Format = format or _ENDINGS.get(path.suffix, "json")
        self._kind = cast(Text, import_module(f"toolway.config.editing.{self.format}_text"))
        self._before = read_bytes(path)
        self.text = decode(self._before or b"", path)
        self.value: Any = self._kind.parse(self.text, str(path))

    def at(self, path: KeyPath) -> Any:
        """The value at a path, None where there is none."""
        value = self.value
        for key in path:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def lines(self, root: KeyPath) -> dict[str | int, int]:
        """The line of each key or item below a path."""
        return self._kind.lines(self.text, root)

    def put(self, path: KeyPath, value: Any) -> None:
        """Raises `ConfigError` where it cannot be done without touching something else; then nothing has changed."""
        self.text = changed(self._kind, self.text, path, value, str(self.path))
        self.value = self._kind.parse(self.text, str(self.path))

    def drop(self, path: KeyPath) -> None:
        self.put(path, GONE)

    def edit(self, secrets: frozenset[str] = frozenset()) -> Edit:
        """What was put and dropped, as one change of the file."""
        if self._before is None and not self.text:
            return Edit(self.path, None, b"", secrets)
        return Edit(self.path, self._before, self.text.encode(), secrets)
