"""Checks an untrusted entry's command line against the allowed ones.

A listed line allows the command lines that begin with its words. What may follow depends on the program:

- a runner (npx, uvx, pipx run, docker run …): a few flags, one package with an exact version, and its arguments;
- an interpreter (python3, node …): arguments of the script, if the line names the script;
- a program that starts other programs (env, uv, deno …): nothing;
- every other program: any arguments.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath, PurePosixPath
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

_MAX_SHOWN_CHARS: Final = 200  # characters of a command line in a message


class Rejection(msgspec.Struct, frozen=True):
    """Why an entry is rejected, and the setting in `toolway.gateway` that can allow it."""

    reason: str  # is logged: without arguments, which may be secrets
    setting: str = ""  # for example "allowedCommands": ["npx -y name@1.2.3"]
    hint: str = ""  # what to do, if no setting of `toolway.gateway` allows the entry


class _Runner(NamedTuple):
    """A program that downloads a package and runs it, and the words that may come before the package."""

    package: re.Pattern[str]
    example: str  # a package as it must be written
    subcommand: tuple[str, ...] = ()  # must follow the program
    flags: frozenset[str] = frozenset()  # flags without a value
    values: Mapping[str, re.Pattern[str]] = MappingProxyType({})  # flags with a value, and its form
    separator: str = ""  # must stand between the package and its arguments; otherwise the runner would read them


_NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_SEMVER: Final = r"[0-9]+\.[0-9]+\.[0-9]+(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?"
_PYPI_VERSION: Final = r"[0-9]+(?:\.[0-9]+)+(?:(?:a|b|rc)[0-9]+)?(?:\.post[0-9]+)?(?:\.dev[0-9]+)?(?:\+[a-z0-9.]+)?"
_NO_PYTHON: Final = r"(?!(?i:c?pythonw?|pypy|graalpy|pyodide|cp|pp|gp)[0-9.]*[@=])"  # uvx would run an interpreter
_NPM_PACKAGE: Final = re.compile(rf"(?:@{_NAME}/)?{_NAME}@{_SEMVER}")
_UVX_PACKAGE: Final = re.compile(rf"{_NO_PYTHON}{_NAME}(?:\[[A-Za-z0-9._,-]+\])?(?:==|@){_PYPI_VERSION}")
_PIPX_PACKAGE: Final = re.compile(rf"{_NAME}(?:\[[A-Za-z0-9._,-]+\])?=={_PYPI_VERSION}")
_NUGET_PACKAGE: Final = re.compile(rf"{_NAME}@{_SEMVER}")
_IMAGE_PART: Final = r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*"
_IMAGE: Final = re.compile(
    rf"(?:{_IMAGE_PART}(?::[0-9]+)?/)?{_IMAGE_PART}(?:/{_IMAGE_PART})*"
    r"(?::v?[0-9]+\.[0-9]+\.[0-9]+[A-Za-z0-9_.-]*|(?::[A-Za-z0-9_][A-Za-z0-9_.-]*)?@sha256:[0-9a-f]{64})"
)
_ANY_VALUE: Final = re.compile(r".+", re.DOTALL)  # checked elsewhere
_VARIABLE_FLAGS: Final = frozenset({"-e", "--env"})
_VOLUME_FLAGS: Final = frozenset({"-v", "--volume", "--mount"})
_CONTAINERS: Final = _Runner(
    _IMAGE,
    "ghcr.io/owner/server:1.2.3",
    subcommand=("run",),
    flags=frozenset({"--rm", "-i", "--interactive", "--init"}),
    values={
        "--network": re.compile("none"),
        **dict.fromkeys(_VARIABLE_FLAGS, re.compile(r"[A-Za-z_][A-Za-z0-9_]*")),
        **dict.fromkeys(_VOLUME_FLAGS, _ANY_VALUE),
    },
)
RUNNERS: Final[Mapping[str, _Runner]] = {
    "npx": _Runner(_NPM_PACKAGE, "name@1.2.3", flags=frozenset({"-y", "--yes", "-q", "--quiet"})),
    "bunx": _Runner(_NPM_PACKAGE, "name@1.2.3"),
    "uvx": _Runner(
        *(_UVX_PACKAGE, "name==1.2.3"),
        flags=frozenset({"-q", "--quiet"}),
        values={"--python": re.compile(r"3\.[0-9]+(?:\.[0-9]+)?")},
    ),
    "pipx": _Runner(_PIPX_PACKAGE, "name==1.2.3", subcommand=("run",)),
    "dnx": _Runner(_NUGET_PACKAGE, "Name@1.2.3", flags=frozenset({"-y", "--yes"}), separator="--"),
    "docker": _CONTAINERS,
    "podman": _CONTAINERS,
}
_INTERPRETER: Final = re.compile(
    r"(?:i|b|j|micro)?python|pythonw|pypy|node|nodejs|tsx|ts-node|qjs|gjs|d8|ruby|irb|perl|raku|php|lua|luajit|tclsh|wish"
    r"|sh|ash|bash|dash|zsh|ksh|mksh|fish|csh|tcsh|nu|xonsh|pwsh|powershell|cscript|wscript|osascript|rscript|julia"
    r"|elixir|iex|groovy|clojure|bb|guile|racket|runghc|ghci|swift",
    re.IGNORECASE,
)
_VERSION_SUFFIX: Final = re.compile(r"[0-9][0-9.]*[a-z]?(?:-dbg)?$|-dbg$|(?<=[a-z])-[0-9][0-9.]*$")
_STARTS_PROGRAMS: Final = frozenset(
    (
        *(
            "uv",
            "pip",
            "npm",
            "pnpm",
            "yarn",
            "bun",
            "deno",
            "corepack",
            "volta",
            "fnm",
            "nvm",
            "conda",
            "mamba",
            "poetry",
        ),
        *(
            "pixi",
            "hatch",
            "pdm",
            "mise",
            "asdf",
            "direnv",
            "nix",
            "nix-shell",
            "flatpak",
            "snap",
            "go",
            "cargo",
            "rustup",
        ),
        *("dotnet", "java", "javaw", "kotlin", "scala", "jbang", "mvn", "gradle", "make", "just", "task", "git", "ssh"),
        *("env", "sudo", "doas", "su", "runuser", "setpriv", "nohup", "nice", "ionice", "timeout", "time", "setsid"),
        *("stdbuf", "chroot", "unshare", "nsenter", "bwrap", "firejail", "systemd-run", "xargs", "find", "parallel"),
        *(
            "watch",
            "script",
            "expect",
            "socat",
            "busybox",
            "toybox",
            "awk",
            "gawk",
            "mawk",
            "sed",
            "vi",
            "vim",
            "emacs",
        ),
        *("mcp", "fastmcp", "mcp-proxy", "supergateway", "toolway", "pipenv", "rye", "nodemon", "pm2", "concurrently"),
        *("gdb", "strace", "ltrace", "taskset", "flock", "cmd", "wsl", "kubectl", "nerdctl", "docker-compose", "ctr"),
    )
)


def split_line(line: str) -> tuple[str, ...]:
    """Split an allowed command line from the settings into words, as a shell does.

    Raises `ValueError` if the line is empty or a quote is not closed.
    """
    words = tuple(shlex.split(line))
    if not words:
        raise ValueError("it is empty")
    return words


def program_name(command: str) -> str:
    """Return a program's name without folder and suffix: `/usr/bin/npx` and `npx.cmd` are both npx."""
    return re.sub(r"\.(?:exe|cmd|bat|ps1)$", "", PurePath(command.replace("\\", "/")).name.lower())


def is_interpreter(command: str) -> bool:
    """Return True if a program runs scripts, with or without a version in its name: python, python3.11, node-20."""
    name = program_name(command)
    return any(_INTERPRETER.fullmatch(each) for each in (name, _VERSION_SUFFIX.sub("", name).rstrip("-")))


def check_command_line(
    words: Sequence[str], lines: Iterable[str], *, volumes: Collection[str] = (), variables: Collection[str] = ()
) -> Rejection | None:
    """Return why a command line is rejected, or None if one of the allowed `lines` covers it.

    `volumes` are the folders that a container may mount, and `variables` the environment variables it may receive.
    """
    words = tuple(words)
    listed = sorted((split_line(line) for line in lines), key=len)
    candidates = [line for line in listed if words[: len(line)] == line]
    if not candidates:
        return Rejection(f"the command line of {_shorten(words[0])} is not listed", _suggest(_suggested_line(words)))
    rejection: Rejection | None = None
    for line in candidates:
        rejection = _check_rest(line, words, volumes, variables)
        if rejection is None:
            return None
    return rejection


def check_runner(
    words: Sequence[str], *, volumes: Collection[str] = (), variables: Collection[str] = ()
) -> Rejection | None:
    """Return why the command line of a package runner (npx, uvx, docker run, …) is rejected, or None.

    It is accepted if it has only allowed flags, and a package with an exact version.
    """
    program, runner = words[0], RUNNERS[program_name(words[0])]
    if tuple(words[1 : 1 + len(runner.subcommand)]) != runner.subcommand:
        return Rejection(f"{program} is allowed only as {shlex.join((program, *runner.subcommand))}")
    flags, package, rest = _split_runner_words(runner, words)
    for flag, value in flags:
        form = runner.values.get(flag)
        shown = _shorten(flag if form is None else f"{flag} {value}")  # other values may be secrets
        if (value is not None or flag not in runner.flags) and (form is None or not form.fullmatch(value or "")):
            return Rejection(f"{program} may not be given {shown} here", _suggest(shlex.join(words)))
        if flag in _VARIABLE_FLAGS and value not in variables:
            return Rejection(f"{shown} would read a variable that is not in env of the entry")
        if flag in _VOLUME_FLAGS and (folder := _mounted_folder(flag, value or "")) not in volumes:
            setting = f'"allowedVolumes": ["{folder or "/folder"}"]'
            return Rejection(f"{shown} does not mount exactly a listed folder", setting)
    if runner.package.fullmatch(package) is None:
        found = f", found {_shorten(package)}" if package else ""
        line = shlex.join((*words[: len(words) - len(rest) - bool(package)], runner.example))
        return Rejection(
            f"{program} needs a package with an exact version, such as {runner.example}{found}", _suggest(line)
        )
    if runner.separator and rest and rest[0] != runner.separator:
        return Rejection(f"put {runner.separator} before the arguments of {package}; otherwise {program} reads them")
    return None


def runner_package(words: Sequence[str]) -> str:
    """Return the package named in the command line of a package runner such as npx."""
    return _split_runner_words(RUNNERS[program_name(words[0])], words)[1]


def _split_runner_words(
    runner: _Runner, words: Sequence[str]
) -> tuple[list[tuple[str, str | None]], str, Sequence[str]]:
    """Split the words after a package runner such as npx into flags with values, the package and its arguments."""
    flags: list[tuple[str, str | None]] = []
    position = 1 + len(runner.subcommand)
    while position < len(words) and words[position].startswith("-"):
        flag, value = words[position], None
        if flag.startswith("--") and "=" in flag:
            flag, _, value = flag.partition("=")
        elif flag in runner.values:
            position += 1
            value = words[position] if position < len(words) else ""
        flags.append((flag, value))
        position += 1
    return flags, words[position] if position < len(words) else "", words[position + 1 :]


def _check_rest(
    line: tuple[str, ...], words: tuple[str, ...], volumes: Collection[str], variables: Collection[str]
) -> Rejection | None:
    """Return why the words after an allowed command line are rejected, or None if they are allowed.

    `line` is the allowed line, and `words` is the whole command line, which begins with it.
    """
    program = program_name(line[0])
    is_whole_line = len(line) > 1 and line == words
    if program in RUNNERS:
        named = {folder for flag, value in pairwise(line) if (folder := _mounted_folder(flag, value))}
        if is_whole_line and any(word[:1] != "-" for word in line[1 + len(RUNNERS[program].subcommand) :]):
            return None  # you wrote it, with its package
        return check_runner(words, volumes={*volumes, *named}, variables=variables)
    if is_whole_line:
        return None
    if is_interpreter(program):
        if len(line) > 1 and not line[1].startswith("-"):
            return None
        return Rejection(
            f"{line[0]} runs only scripts that are listed, and without flags before the script",
            _suggest(f"{line[0]} /path/of/script"),
        )
    if program in _STARTS_PROGRAMS:
        return Rejection(f"{line[0]} starts other programs; list the whole command line", _suggest(shlex.join(words)))
    return None


def _mounted_folder(flag: str, value: str) -> str:
    """Return the folder on this machine that a volume flag of `docker run` mounts.

    Return "" if the value has another form.
    """
    if flag == "--mount":
        parts = dict(part.partition("=")[::2] for part in value.split(","))
        source = parts.pop("src", "") or parts.pop("source", "")
        target = parts.pop("dst", "") or parts.pop("target", "")
        known = parts.pop("type", "") == "bind" and all(key in ("readonly", "ro") for key in parts)
    elif flag in _VOLUME_FLAGS:
        source, target, *options = [*value.split(":"), ""][:4]
        known = ":" in value and value.count(":") <= 2 and options[0] in ("", "ro", "rw")
    else:
        return ""
    is_path = source.startswith("/") and target.startswith("/") and ".." not in PurePosixPath(source).parts
    return source.rstrip("/") if known and is_path else ""


def _suggested_line(words: Sequence[str]) -> str:
    return shlex.join(words[:2] if is_interpreter(words[0]) and len(words) > 1 and words[1][:1] != "-" else words)


def _suggest(line: str) -> str:
    return f'"allowedCommands": ["{_shorten(line)}"]'


def _shorten(text: str) -> str:
    shown = text if text.isprintable() else ascii(text)[1:-1]
    return shown if len(shown) <= _MAX_SHOWN_CHARS else f"{shown[:_MAX_SHOWN_CHARS]}…"
