"""Files with environment variables: `.env` next to a config file, and `envFile` of a server entry.

Variables in `.env` are used for references such as `${TOKEN}` in the config file next to it; a variable of the real
environment has priority. `envFile` is read when its server starts: its variables are passed to the server; `env` of the
entry has priority. The syntax is dotenv, without expansion: `NAME=value`, `export NAME=value`, quotes (a quoted
value may contain line breaks), and comments with `#`.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from toolway._os import O_NONBLOCK
from toolway.errors import ConfigError
from toolway.secrets import looks_like_secret, remember_secret
from toolway.secrets.detection import is_secret_name

ENV_FILE_CODE: Final = "E-CONFIG-ENV-FILE"
DOTENV_NAME: Final = ".env"
MAX_ENV_FILE_BYTES: Final = 64 * 1024
#: Keys whose variables decide which program runs, or where a request is sent.
PROGRAM_KEYS: Final = frozenset(
    {
        *("command", "args", "cwd", "envFile", "url", "httpUrl", "serverUrl", "uri", "endpoint"),
        *("server", "file", "openapi.servers", "issuer", "caFile", "certFile", "keyFile", "healthCheckUrl"),
        "messageUrl",
    }
)

_ASSIGNMENT: Final = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_.-]*+)[ \t]*=[ \t]*")
_SINGLE_QUOTED: Final = re.compile(r"'([^'\0]*+)'[ \t]*(?:#[^\n]*)?(?=\n|\Z)")
_DOUBLE_QUOTED: Final = re.compile(r'"((?:[^"\\\0]++|\\[^\0])*+)"[ \t]*(?:#[^\n]*)?(?=\n|\Z)')
_UNQUOTED: Final = re.compile(r"([^\n\0]*+)(?=\n|\Z)")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True, slots=True)
class EnvFile:
    """The variables in a `.env` file or `envFile`, and the numbers of the lines that are not assignments."""

    values: dict[str, str] = field(default_factory=dict, repr=False)
    bad_lines: tuple[int, ...] = ()


def parse_env_file(text: str) -> EnvFile:
    """Parse `NAME=value` lines. Any other line is skipped and reported. The last value of a name counts.

    >>> parse_env_file("A=1\\nexport B='x y' # comment").values
    {'A': '1', 'B': 'x y'}
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    values: dict[str, str] = {}
    bad_lines = []
    at, line = 0, 1
    while at < len(text):
        found = _ASSIGNMENT.match(text, at)
        value = _match_value(text, found.end()) if found else None
        end = value.end() if value else text.find("\n", at)
        end = len(text) if end < 0 else end
        if found and value:
            values[found[1]] = _unescape(value)
        elif (skipped := text[at:end].strip()) and not skipped.startswith("#"):
            bad_lines.append(line)
        line += text.count("\n", at, end) + 1
        at = end + 1
    return EnvFile(values, tuple(bad_lines))


def _match_value(text: str, at: int) -> re.Match[str] | None:
    if text.startswith("'", at):
        return _SINGLE_QUOTED.match(text, at)
    if text.startswith('"', at):
        return _DOUBLE_QUOTED.match(text, at)
    return _UNQUOTED.match(text, at)


def _unescape(value: re.Match[str]) -> str:
    quote = value[0][:1]
    if quote == '"':
        return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), value[1])
    if quote != "'":
        return re.split(r"(?:\A|[ \t])#", value[1], maxsplit=1)[0].rstrip()
    return value[1]


def read_env_file(path: str) -> EnvFile:
    """Read a file with environment variables, at most 64 KiB. Its secrets are masked in output from now on.

    Raises `ConfigError` if the file is missing, unreadable, too large, or not text. The error does not contain values.
    """
    try:
        with open(os.open(path, os.O_RDONLY | O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise env_file_error(path, "it is not a regular file")
            data = file.read(MAX_ENV_FILE_BYTES + 1)
    except OSError as exc:
        raise env_file_error(path, exc.strerror or type(exc).__name__) from None
    if len(data) > MAX_ENV_FILE_BYTES:
        raise env_file_error(path, f"it is larger than {MAX_ENV_FILE_BYTES} bytes")
    try:
        found = parse_env_file(data.decode())
    except UnicodeDecodeError as exc:
        raise env_file_error(path, f"byte {exc.start} is not UTF-8") from None
    for name, value in found.values.items():
        if is_secret_name(name) or looks_like_secret(name, value):
            remember_secret(value)
    return found


def read_dotenv_beside(file: str) -> Mapping[str, str]:
    """Return the variables in the `.env` file next to a config file, or none if it cannot be used."""
    path = os.path.join(os.path.dirname(file), DOTENV_NAME)
    try:
        return read_env_file(path).values if os.path.isfile(path) else {}
    except ConfigError:
        return {}


def env_file_error(path: str, detail: str, hint: str = "") -> ConfigError:
    return ConfigError(
        f"the env file {path} cannot be used",
        detail=detail,
        hint=hint or "create it, fix its path, or remove envFile from the entry",
        code=ENV_FILE_CODE,
    )


class DotenvVariables(Mapping[str, str]):
    """Environment variables, plus those in a `.env` file. A variable in the environment has priority.

    `toolway trust` does not review a project's `.env` file. So if `is_project` is True, its variables are not used for
    the `PROGRAM_KEYS`, which decide what runs or where data is sent.
    """

    def __init__(self, environment: Mapping[str, str], values: Mapping[str, str], *, is_project: bool) -> None:
        self.environment = environment
        self.is_project = is_project
        self._values = values

    @property
    def file_values(self) -> Mapping[str, str]:
        """Return only the variables in the `.env` file, without the environment."""
        return self._values

    def for_key(self, key: str) -> Mapping[str, str]:
        return self.environment if self.is_project and key in PROGRAM_KEYS else self

    def __getitem__(self, name: str) -> str:
        return self.environment[name] if name in self.environment else self._values[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.environment
        yield from (name for name in self._values if name not in self.environment)

    def __len__(self) -> int:
        return sum(1 for _ in self)
