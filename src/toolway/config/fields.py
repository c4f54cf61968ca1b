"""Reading the keys of one entry: each value is checked for what it should be, and its variables are filled in.

Messages name the key and the kind of value that was found, never the value: it may be a secret.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from toolway.config.expand import expand
from toolway.config.problems import Problem
from toolway.config.references import Unresolved, split
from toolway.errors import ConfigError

KEY = "E-CONFIG-KEY"
T = TypeVar("T")

_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h)\s*")
_SHOWN = 80  # characters of a key that a message repeats: there may be many messages about one long key
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Fields:
    """The keys of a mapping, taken out one after the other. What nobody took is left in `rest`."""

    def __init__(self, values: Mapping[str, Any], variables: Mapping[str, str]) -> None:
        self.rest = {str(key): value for key, value in values.items()}
        self.variables = variables
        self.problems: list[Problem] = []

    def text(self, key: str) -> str | None:
        value = self._take(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise wrong(key, "text", value)
        return self.expanded(key, value)

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._take(key)
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            raise wrong(key, "a list of texts", value)
        return tuple(self.expanded(key, _as_text(key, item)) for item in value)

    def text_map(self, key: str) -> dict[str, str]:
        value = self._take(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise wrong(key, "an object of texts", value)
        return {str(k): self.expanded(f"{key}.{k}", _as_text(f"{key}.{k}", v)) for k, v in value.items()}

    def flag(self, key: str, default: bool) -> bool:
        value = self._take(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise wrong(key, "true or false", value)
        return value

    def whole(self, key: str, default: int, least: int = 0) -> int:
        value = self._take(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise wrong(key, f"a whole number of at least {least}", value)
        return value

    def choice(self, key: str, options: tuple[str, ...], default: str) -> str:
        value = self.text(key)
        if value is None:
            return default
        if value not in options:
            raise ConfigError(f"{key} must be one of {', '.join(options)}", evidence=f"found {quoted(value)}", code=KEY)
        return value

    def seconds(self, key: str, default: float, *, zero: bool = False) -> float:
        """A duration: a number is milliseconds, as hosts write it; text carries its unit."""
        value = self._take(key)
        if value is None:
            return default
        found = duration(key, value)
        if found == 0 and not zero:
            raise ConfigError(f"{key} must be more than 0", code=KEY)
        return found

    def expanded(self, key: str, text: str) -> str:
        """The text with its variables filled in; references to secrets stay, for whoever starts the server."""
        parts = tuple(self._filled_in(key, part) if isinstance(part, str) else part for part in split(text))
        plain = [part for part in parts if isinstance(part, str)]
        return "".join(plain) if len(plain) == len(parts) else Unresolved(parts)

    def _filled_in(self, key: str, text: str) -> str:
        result = expand(text, self.variables)
        for name in result.missing:
            self.warn(
                f"the variable {name} is not set",
                evidence=f"{shown(key)} uses ${{{name}}}, which is passed on as it is written",
                fix=f"export {name}=… or write ${{{name}:-default}}",
                code="E-CONFIG-VARIABLE",
            )
        return result.text

    def warn(self, what: str, *, evidence: str = "", fix: str = "", code: str = KEY) -> None:
        self.problems.append(Problem("", what, evidence, fix, code, severity="warning"))

    def nothing_left(self, where: str, known: str) -> None:
        """Raises `ConfigError` where a key was not taken: one that is misspelt could let in anybody, or keep no log."""
        if self.rest:
            what = ", ".join(sorted(self.rest))[:200]
            raise ConfigError(f"{where} has a key that is not known", evidence=what, fix=f"it has {known}", code=KEY)

    def _take(self, key: str) -> Any:
        return self.rest.pop(key, None)


def switched(where: str, block: Any, usual: T, read: Callable[[Mapping[str, Any]], T]) -> T | None:
    """What a block says that may also be written as true or false. Raises `ConfigError`."""
    if block is None or block is False:
        return None
    if block is True:
        return usual
    if not isinstance(block, Mapping):
        raise wrong(where, "true, false or an object", block)
    return read(block)


def duration(key: str, value: Any) -> float:
    """Seconds of `20000`, `"20s"`, `"500ms"`, `"2m"` or `"1h"`."""
    if isinstance(value, str):
        found = _DURATION.fullmatch(value)
        if found:
            seconds = float(found[1]) * _SECONDS[found[2]]
            if math.isfinite(seconds):
                return seconds
    elif isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max:
        return value / 1000
    raise ConfigError(
        f"{key} must be a duration",
        evidence=f"found {kind(value)}",
        fix='write milliseconds (20000) or text with a unit ("500ms", "20s", "2m")',
        code=KEY,
    )


def wrong(key: str, wanted: str, value: Any) -> ConfigError:
    return ConfigError(f"{key} must be {wanted}", evidence=f"found {kind(value)}", code=KEY)


def shown(key: str) -> str:
    return key if len(key) <= _SHOWN else f"{key[: _SHOWN - 1]}…"


def quoted(value: str) -> str:
    """A word as it is; what may be a secret that slipped into the wrong place is not repeated."""
    return repr(value) if re.fullmatch(r"[A-Za-z_-]{1,24}", value) else "another text"


def kind(value: Any) -> str:
    """What a value is, in the words of JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    names = ((str, "text"), (int | float, "a number"), (Mapping, "an object"), (list | tuple, "a list"))
    return next((name for type_, name in names if isinstance(value, type_)), f"a {type(value).__name__}")


def _as_text(key: str, value: Any) -> str:
    """Numbers and flags stand for themselves: `"args": ["--port", 8080]` leaves no doubt."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise wrong(key, "text", value)
