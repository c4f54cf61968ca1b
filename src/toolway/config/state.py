"""Where a gateway keeps what it must keep: for the gateway, and for those who look at it from outside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

VARIABLE = "TOOLWAY_STATE"


def gateway_folder(environ: Mapping[str, str]) -> Path | None:
    """`$TOOLWAY_STATE`, or the place that the system has for such things, if it has one."""
    if environ.get(VARIABLE):
        return Path(environ[VARIABLE])
    base = environ.get("XDG_STATE_HOME") or (f"{environ['HOME']}/.local/state" if environ.get("HOME") else "")
    return Path(base) / "toolway" / "gateway" if base else None
