"""Variables in a file's text: `${VAR}`, `${VAR:-default}` and `${env:VAR}`, as hosts write them.

A pure function of text and mapping. A value is put in as it is: what it contains is not expanded again. `$${` stands
for the two characters `${`. What other programs write (`$VAR`, `%VAR%`, `{env:VAR}` …) is known to `syntaxes.py`.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from typing import NamedTuple

# A default that is not closed goes on to the end, so that it is not looked for again from every `${` in it.
_VARIABLE = re.compile(r"\$\$\{|\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*+)(?:\}|:-([^}]*+)(?:\}|\Z))")


class Expanded(NamedTuple):
    """The text, and the variables in it that are not set; those are left as they were written."""

    text: str
    missing: tuple[str, ...] = ()


def expand(text: str, variables: Mapping[str, str]) -> Expanded:
    """`text` with its variables filled in. A variable that is set to nothing is set: its default is not used."""
    missing: list[str] = []

    def value(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        if name is None:
            return found[0][1:]
        if not found[0].endswith("}"):
            return found[0]
        if name in variables:
            return variables[name]
        if default is not None:
            return default
        missing.append(name)
        return found[0]

    return Expanded(_VARIABLE.sub(value, text), tuple(dict.fromkeys(missing)))


def expand_home(path: str, variables: Mapping[str, str]) -> str:
    """`~` and `~/…` as the home directory; `~name` is left alone."""
    if path != "~" and not path.startswith("~/"):
        return path
    return (variables.get("HOME") or os.path.expanduser("~")) + path[1:]
