"""A file of servers → what is wrong with the file, and its entries as targets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolway.config import jsonc
from toolway.config.formats import ROOT_KEYS, Loaded, normalised, read
from toolway.doctor.targets import Target
from toolway.errors import ConfigError


def of_our_file(path: Path, environ: Mapping[str, str]) -> list[Target]:
    """The entries of a file of our own. Raises `ConfigError` where it cannot be read as a whole."""
    loaded = read(path, environ)
    root, written = _written(path)
    targets = []
    for name, value in written.items():
        targets.append(_target(loaded, root, name, value))
    return targets


def _target(loaded: Loaded, root: tuple[str, ...], written_name: str, value: Any) -> Target:
    problems = tuple(problem for problem in loaded.problems if problem.server == written_name)
    name = written_name if written_name in loaded.servers else normalised(written_name)
    usable = not any(problem.severity == "error" for problem in problems)
    return Target(
        name if usable else written_name,
        loaded.servers.get(name) if usable else None,
        loaded.file,
        next((problem.line for problem in problems if problem.line), None),
        root,
        written_name,
        value if isinstance(value, dict) else {},
        problems=problems,
    )


def _written(path: Path) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The entries as the file has them, and where they are in it."""
    try:
        value = jsonc.parse(path.read_text(encoding="utf-8-sig")).value
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} cannot be read", file=str(path), evidence=str(exc), code="E-CONFIG-FILE") from None
    for key in ROOT_KEYS:
        if isinstance(value, dict) and isinstance(value.get(key), dict):
            return (key,), value[key]
    return (), {k: v for k, v in value.items() if k != "toolway" and not k.startswith("$")}
