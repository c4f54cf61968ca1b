"""Typed access to the keys in one object of a configuration file, with variables expanded.

Messages give the key and the JSON type of a wrong value, but never the value, because it may be a secret.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from toolway._closest import did_you_mean
from toolway.config.dotenv import DotenvVariables
from toolway.config.editing.mistakes import value_hint
from toolway.config.schema import ConfigIssue
from toolway.config.secret_refs import SecretRef, SecretTemplate, has_secret, split_secret_refs
from toolway.config.variables import UnsetVariable, expand_to_pieces
from toolway.errors import ConfigError

CONFIG_KEY_CODE = "E-CONFIG-KEY"
VARIABLE_CODE: Final = "E-CONFIG-VARIABLE"
#: Our own keys that were renamed, with their new names. The paths begin at a server entry, or with `toolway.`; the
#: `*` is a tool. They have no effect any more: a message names the new key.
OLD_KEYS: Final = {
    "shared": "shareConnection",
    "idleStop": "idleTimeout",
    "repeatable": "idempotent",
    "unprocessed": "notProcessedCodes",
    "tools.*.repeatable": "idempotent",
    "limits.concurrent": "maxConcurrent",
    "limits.waiting": "maxQueued",
    "limits.frame": "maxMessageBytes",
    "limits.stderr": "stderrBytes",
    "limits.tools": "maxTools",
    "toolway.gateway.commands": "allowedCommands",
    "toolway.escalations": "alerts",
    "toolway.groups": "toolsets",
}
#: Values of settings before 0.1, by the last part of the setting's name.
OLD_VALUES: Final = {("pins", "note"): "warn", ("pins", "approve"): "review"}
T = TypeVar("T")

_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)\s*")
_MAX_SHOWN_KEY_CHARS = 80  # characters of a key that a message repeats: many messages may repeat one long key
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class FieldReader:
    """Reads one object in a config file: each `get_…` removes, checks, and returns a key.

    A wrong value raises `ConfigError`. Keys that were not read yet are in `remaining`, and warnings in `issues`.
    """

    def __init__(self, values: Mapping[str, Any], variables: Mapping[str, str]) -> None:
        self.remaining = {str(key): value for key, value in values.items()}
        self.variables = variables
        self.issues: list[ConfigIssue] = []
        self._messages: set[str] = set()  # of the first `_messages_read` issues
        self._messages_read = 0

    def get_text(self, key: str) -> str | None:
        value = self._pop(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise field_error(key, "text", value)
        return self.expand_text(key, value)

    def get_plain_text(self, key: str) -> str:
        """Return a string that must not refer to a secret, or "" if it is missing.

        Raises `ConfigError` if it refers to a secret.
        """
        value = self.get_text(key) or ""
        if has_secret(value):
            raise ConfigError(
                f"{key} cannot refer to a secret",
                detail="secrets only work in server entries",
                hint="use ${VARIABLE}",
                code=CONFIG_KEY_CODE,
            )
        return value

    def get_texts(self, key: str) -> tuple[str, ...]:
        value = self._pop(key)
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            raise field_error(key, "a list of strings", value)
        return tuple(self.expand_text(key, _scalar_to_text(key, item)) for item in value)

    def get_text_map(self, key: str) -> dict[str, str]:
        value = self._pop(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise field_error(key, "an object of strings", value)
        return {str(k): self.expand_text(f"{key}.{k}", _scalar_to_text(f"{key}.{k}", v)) for k, v in value.items()}

    def get_bool(self, key: str, default: bool) -> bool:
        value = self._pop(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise field_error(key, "true or false", value)
        return value

    def get_int(self, key: str, default: int, minimum: int = 0, maximum: int | None = None) -> int:
        value = self._pop(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise field_error(key, f"a whole number of at least {minimum}", value)
        if maximum is not None and value > maximum:
            raise field_error(key, f"at most {maximum}", value)
        return value

    def get_choice(
        self, key: str, options: tuple[str, ...], default: str, *, more: Callable[[], Iterable[str]] = tuple
    ) -> str:
        """Return the text under `key`, which must be one of `options`, or of what `more` returns for any other text.

        Raises `ConfigError` if it is not.
        """
        value = self.get_text(key)
        if value is None:
            return default
        if isinstance(value, SecretTemplate) and value.variables:
            raise unset_variables_error(dict.fromkeys(value.variables, key))
        if value in options or value in (options := tuple(dict.fromkeys((*options, *more())))):
            return value
        renamed = OLD_VALUES.get((key, value))
        raise ConfigError(
            f"{key} must be one of {', '.join(options)}",
            detail=f"found {quote_plain_word(value)}",
            hint=f"it was renamed: use {renamed!r}" if renamed else did_you_mean(value[:80].lower(), options),
            code=CONFIG_KEY_CODE,
        )

    def get_duration(self, key: str, default: float, *, allow_zero: bool = False) -> float:
        """Return the duration under `key` in seconds, or `default` if the key is missing.

        A number is in milliseconds, as in other MCP hosts. A string has a unit (`"20s"`). Raises `ConfigError` if the
        value is not a duration, or is 0 without `allow_zero`.
        """
        value = self._pop(key)
        if value is None:
            return default
        found = parse_duration(key, value)
        if found == 0 and not allow_zero:
            raise ConfigError(f"{key} must be more than 0", code=CONFIG_KEY_CODE)
        return found

    def expand_text(self, key: str, text: str) -> str:
        """Return a config string with its variables expanded. An unset variable causes a warning.

        References to secrets and to unset variables stay in the string until the server is started.
        """
        parts: list[str | SecretRef] = []
        for part in split_secret_refs(text):
            parts += self._expand_variables(key, part) if isinstance(part, str) else [part]
        plain = [part for part in parts if isinstance(part, str)]
        return "".join(plain) if len(plain) == len(parts) else SecretTemplate(tuple(parts))

    def _expand_variables(self, key: str, text: str) -> Iterator[str | SecretRef]:
        variables = self.variables.for_key(key) if isinstance(self.variables, DotenvVariables) else self.variables
        for piece in expand_to_pieces(text, variables):
            if isinstance(piece, UnsetVariable):
                self.warn_unset(key, piece.name)
                yield SecretRef("env", piece.name)
            else:
                yield piece

    def warn_unset(self, key: str, name: str) -> None:
        """Warn about an unset variable, once per variable."""
        message = f"the variable {name} is not set"
        self._messages.update(issue.message for issue in self.issues[self._messages_read :])
        self._messages_read = len(self.issues)
        if message not in self._messages:
            self.warn(
                message,
                detail=f"{shorten_key(key)} uses ${{{name}}}; nothing is started with it until it is set",
                hint=f"export {name}=… or use ${{{name}:-default}}",
                code=VARIABLE_CODE,
            )

    def warn(self, message: str, *, detail: str = "", hint: str = "", code: str = CONFIG_KEY_CODE) -> None:
        self.issues.append(ConfigIssue("", message, detail, hint, code, severity="warning"))

    def reject_unknown(self, block_name: str, known_keys: str) -> None:
        """Raise `ConfigError` if the object has a key that was not read.

        If a misspelled key were ignored, it could grant access or switch off a log.
        """
        if self.remaining:
            unknown = ", ".join(sorted(self.remaining))[:200]
            renamed = (renamed_hint(f"{block_name}.{key}") for key in self.remaining)
            hint = next(filter(None, renamed), f"known keys: {known_keys}")
            raise ConfigError(f"unknown key in {block_name}", detail=unknown, hint=hint, code=CONFIG_KEY_CODE)

    def _pop(self, key: str) -> Any:
        return self.remaining.pop(key, None)


def unset_variables_error(unset: Mapping[str, str]) -> ConfigError:
    """Return the error for variables that are not set.

    `unset` maps each variable to the config key that uses it.
    """
    names, first = ", ".join(unset), next(iter(unset))
    several = len(unset) > 1
    return ConfigError(
        f"the variable{'s' if several else ''} {names} {'are' if several else 'is'} not set",
        detail=", ".join(f"{shorten_key(key)} uses ${{{name}}}" for name, key in unset.items()),
        hint=f"export {first}=…, add it to .env next to the config file, or use ${{{first}:-default}}; "
        "then restart the server",
        code=VARIABLE_CODE,
    )


def renamed_hint(path: str) -> str:
    """Return the hint with a renamed config key's new name, or "" for any other key.

    `path` is spelled as in `OLD_KEYS`, such as `limits.frame`.
    """
    return f"it was renamed: use {OLD_KEYS[path]!r}" if path in OLD_KEYS else ""


def parse_optional_block(block_name: str, block: Any, default: T, parse: Callable[[Mapping[str, Any]], T]) -> T | None:
    """Parse a config block that is an object, true (return `default`), or false (return None).

    A missing block counts as false. Raises `ConfigError` if the block has any other type, or if `parse` raises it.
    """
    if block is None or block is False:
        return None
    if block is True:
        return default
    if not isinstance(block, Mapping):
        raise field_error(block_name, "true, false or an object", block)
    return parse(block)


def parse_duration(key: str, value: Any) -> float:
    """Convert `20000` (milliseconds), `"20s"`, `"500ms"`, `"2m"`, or `"1h"` to seconds.

    Raises `ConfigError` if `value` is not a number or string like these.
    """
    if isinstance(value, str):
        found = _DURATION.fullmatch(value)
        if found:
            seconds = float(found[1]) * _UNIT_SECONDS[found[2]]
            if math.isfinite(seconds):
                return seconds
    elif isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max:
        return value / 1000
    raise ConfigError(
        f"{key} must be a duration",
        detail=f"found {json_type_name(value)}",
        hint='use milliseconds (20000), or a string with a unit ("500ms", "20s", "2m")',
        code=CONFIG_KEY_CODE,
    )


def require_object(key: str, value: Any) -> Mapping[str, Any]:
    """Return the object under a key, or an empty one if it is missing.

    Raises `ConfigError` if the value is not an object.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise field_error(key, "an object", value)
    return value


def field_error(key: str, expected: str, value: Any) -> ConfigError:
    found = f"found {json_type_name(value)}"
    return ConfigError(f"{key} must be {expected}", detail=found, hint=value_hint(key, value), code=CONFIG_KEY_CODE)


def shorten_key(key: str) -> str:
    return key if len(key) <= _MAX_SHOWN_KEY_CHARS else f"{key[: _MAX_SHOWN_KEY_CHARS - 1]}…"


def quote_plain_word(value: str) -> str:
    """Return `value` in quotes for an error message if it is one plain word, or else a placeholder.

    Any other text may be a misplaced secret.
    """
    return repr(value) if re.fullmatch(r"[A-Za-z_-]{1,24}", value) else "another text"


def json_type_name(value: Any) -> str:
    """Return the JSON type of a value in words for an error message, such as `a list`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    names = ((str, "text"), (int | float, "a number"), (Mapping, "an object"), (list | tuple, "a list"))
    return next((name for type_, name in names if isinstance(value, type_)), f"a {type(value).__name__}")


def _scalar_to_text(key: str, value: Any) -> str:
    """Convert a string, number, or boolean in a config file to a string: `"args": ["--port", 8080]`.

    Raises `ConfigError` for a value of any other type.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise field_error(key, "text", value)
