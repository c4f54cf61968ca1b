"""Texts that are to be texts need no library for types, which typer would load: it takes as long as typer itself.

Numbers that are typed are checked by typer as ever; only what is plain is passed on here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


class _Plain:
    """Stands where typer keeps its way from what was typed to a value."""

    def __init__(self, annotation: Any) -> None:
        self._annotation = annotation

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        if several and self._annotation == list[str]:
            return list(value)
        if self._annotation is str or (self._annotation in (int, float) and not isinstance(value, str)):
            return value
        if self._annotation is Path:
            return Path(value)
        param._runtime_param = None  # typer makes its own
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def lighten(command: Any) -> Any:
    """The command, with plain values passed on."""
    for param in command.params:
        lighten_one(param)
    return command


def lighten_one(param: Any) -> Any:
    """The same for one parameter. Where typer keeps that elsewhere, nothing is changed."""
    described = getattr(param, "type_descriptor", None)
    if described is not None and getattr(param, "_runtime_param", _Plain) is None:
        param._runtime_param = _Plain(described.annotation)
    return param
