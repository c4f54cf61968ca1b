"""Writes `toolway.lock`: the same content always gives the same bytes."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from toolway.errors import ConfigError
from toolway.parts.lock.lock_file import FORMAT, LOCK_CODE, LockedEntry


def write_lock(path: str, entries: Mapping[str, LockedEntry]) -> bool:
    """Write a lock file. Return False if it already has this content.

    Raises `ConfigError` if it cannot be written.
    """
    text = format_lock(entries)
    with suppress(OSError, UnicodeDecodeError), open(path, encoding="utf-8") as file:
        if file.read() == text:
            return False
    try:
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=".toolway.lock-")
        try:
            with open(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as exc:
        raise ConfigError(
            f"{path} cannot be written", file=path, detail=exc.strerror or str(exc), code=LOCK_CODE
        ) from None
    return True


def format_lock(entries: Mapping[str, LockedEntry]) -> str:
    """Return a lock file as text: sorted, with one line per package."""
    servers = {name: _entry_to_json(entry) for name, entry in sorted(entries.items())}
    return _dump({"version": FORMAT, "servers": servers}, 0) + "\n"


def _entry_to_json(entry: LockedEntry) -> dict[str, Any]:
    optional = {"name": entry.name, "python": entry.python}
    return {
        "ecosystem": entry.ecosystem,
        "packages": list(entry.packages),
        "program": entry.program,
        **{key: value for key, value in optional.items() if value},
        "contents": entry.contents,
        "trees": entry.trees,
    }


def _dump(value: Any, level: int) -> str:
    """Return a value as JSON with sorted keys, indented from `level` on.

    An object with the key `version` is a package, so it stays on one line.
    """
    is_block = isinstance(value, Mapping) and value and (level < 2 or "version" not in value) and level < 6
    if not is_block:
        return json.dumps(value, sort_keys=True, ensure_ascii=False)
    indent = "  " * (level + 1)
    rows = [f"{indent}{json.dumps(key, ensure_ascii=False)}: {_dump(value[key], level + 1)}" for key in sorted(value)]
    return "{\n" + ",\n".join(rows) + "\n" + "  " * level + "}"
