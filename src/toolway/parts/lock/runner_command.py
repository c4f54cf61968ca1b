"""Command lines of package runners: which package an `npx` or `uvx` entry runs. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

Ecosystem = Literal["npm", "PyPI"]  # as OSV spells them

_SUFFIX: Final = re.compile(r"\.(?:exe|cmd|bat|ps1)$")
_OTHER_RUNNERS: Final = {"bunx": (), "pnpx": (), "pipx": ("run",), "bun": ("x",), "pnpm": ("dlx",), "yarn": ("dlx",)}
_NPM_NAME: Final = r"(?:@[A-Za-z0-9][A-Za-z0-9._-]*/)?[A-Za-z0-9_][A-Za-z0-9._-]*"
_NPM_PACKAGE: Final = re.compile(rf"(?P<name>{_NPM_NAME})(?:@(?P<range>[A-Za-z0-9.^~<>=*|+ -]+))?")
_PYPI_NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_PYPI_PACKAGE: Final = re.compile(
    rf"(?P<name>{_PYPI_NAME})(?P<extras>\[[A-Za-z0-9._, -]+\])?"
    r"(?:@(?P<at>[A-Za-z0-9.+!]+)|(?P<range>(?:\s*,?\s*(?:==|>=|<=|~=|!=|<|>)\s*[A-Za-z0-9.*+!]+)*))"
)
_INTERPRETER: Final = re.compile(r"(?i:c?pythonw?|pypy|graalpy|pyodide)[0-9.]*")
_PYTHON: Final = re.compile(r"3(?:\.[0-9]{1,2}){0,2}")
_EXACT_SEMVER: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(?:[-+][0-9A-Za-z.+-]+)?")


class NotLockable(ValueError):
    """Raised if a command line of npx, uvx, or a similar program cannot be locked. The text says why."""


class PackageCommand(msgspec.Struct, frozen=True):
    """A parsed `npx` or `uvx` command line: the packages it fetches, and which of their programs it runs."""

    ecosystem: Ecosystem
    packages: tuple[str, ...]  # requirements; the first one has the program
    program: str = ""  # name of the program, if the command line has one
    python: str = ""  # version of Python that the command line asks for
    args: tuple[str, ...] = ()  # arguments of the program

    @property
    def name(self) -> str:
        """Return the name of the package that contains the program."""
        return split_requirement(self.ecosystem, self.packages[0])[0]

    @property
    def exact_version(self) -> str:
        """Return the exact version of the program's package, if the command line names one.

        Return "" if it names no version, or a range.
        """
        wanted = split_requirement(self.ecosystem, self.packages[0])[1]
        if self.ecosystem == "npm":
            return wanted if _EXACT_SEMVER.fullmatch(wanted) else ""
        is_exact = wanted.startswith("==") and not any(each in wanted for each in ",*")
        return wanted.removeprefix("==") if is_exact else ""


def parse_command(words: Sequence[str]) -> PackageCommand | None:
    """Return the packages and program of an `npx` or `uvx` command line, or None if it is a different command.

    Raises `NotLockable` if it runs a package in a way that cannot be locked.
    """
    program = _SUFFIX.sub("", re.split(r"[/\\]", words[0])[-1].lower())
    if program == "npx":
        return _parse_npx(words[1:])
    if program == "npm" and words[1:2] and words[1] in ("exec", "x"):
        raise NotLockable(f"use npx instead of npm {words[1]}")
    if program == "uvx" or (program == "uv" and tuple(words[1:3]) == ("tool", "run")):
        return _parse_uvx(words[1 if program == "uvx" else 3 :])
    subcommand = _OTHER_RUNNERS.get(program)
    if subcommand is not None and tuple(words[1 : 1 + len(subcommand)]) == subcommand:
        raise NotLockable(f"{program} cannot be locked: use npx or uvx")
    return None


def is_runner(words: Sequence[str]) -> bool:
    """Return True if a command line runs packages from a registry, even ones that cannot be locked."""
    try:
        return parse_command(words) is not None
    except NotLockable:
        return True


def split_requirement(ecosystem: Ecosystem, text: str) -> tuple[str, str]:
    """Return the package name, and the version or range, in a requirement such as `name@1.2`.

    Raises `NotLockable` if it is not a registry package.
    """
    found = (_NPM_PACKAGE if ecosystem == "npm" else _PYPI_PACKAGE).fullmatch(text)
    if found is None:
        raise NotLockable(f"{text[:100]!r} is not the name of a package with a version")
    if ecosystem == "npm":
        return found["name"], (found["range"] or "").strip()
    at = found["at"]
    if at is not None:
        return found["name"], "" if at == "latest" else f"=={at}"
    return found["name"], re.sub(r"\s+", "", found["range"] or "")


def normalize(name: str) -> str:
    """Return the normalized name of a PyPI package: lower case, with `-` for `_` and `.`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_line(text: str) -> str:
    """Return a uvx requirement as pip and uv write it, so `name@1.2` becomes `name==1.2`."""
    found = _PYPI_PACKAGE.fullmatch(text)
    if found is None:
        raise NotLockable(f"{text[:100]!r} is not the name of a package with a version")
    return f"{found['name']}{(found['extras'] or '').replace(' ', '')}{split_requirement('PyPI', text)[1]}"


def _parse_npx(words: Sequence[str]) -> PackageCommand:
    packages: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in ("-y", "--yes", "-q", "--quiet", "--"):
            continue
        value = _flag_value(word, ("-p", "--package"), rest)
        if value is not None:
            packages.append(value)
        elif word.startswith("-"):
            raise NotLockable(f"npx has the flag {word[:40]}")
        else:
            program = word if packages else ""
            command = PackageCommand("npm", tuple(packages or [word]), program, args=_arguments(rest))
            return _checked(command)
    raise NotLockable("npx has no package name")


def _parse_uvx(words: Sequence[str]) -> PackageCommand:
    first, more, python = "", [], ""
    rest = iter(words)
    for word in rest:
        if word in ("-q", "--quiet", "--isolated", "--"):
            continue
        if (value := _flag_value(word, ("-p", "--python"), rest)) is not None:
            if not _PYTHON.fullmatch(value):
                raise NotLockable(f"uvx asks for Python {value[:40]!r}, not for a version such as 3.12")
            python = value
        elif (value := _flag_value(word, ("--from",), rest)) is not None:
            first = value
        elif (value := _flag_value(word, ("--with",), rest)) is not None:
            more += value.split(",")
        elif word.startswith("-"):
            raise NotLockable(f"uvx has the flag {word[:40]}")
        else:
            packages = (first or word, *more)
            return _checked(PackageCommand("PyPI", packages, word if first else "", python, _arguments(rest)))
    raise NotLockable("uvx has no package name")


def _flag_value(word: str, names: tuple[str, ...], rest: Iterator[str]) -> str | None:
    """Return the value of the command-line flag in `word` if it is one of `names`, or else None.

    If `word` does not contain `=`, the value is the next word in `rest`.
    """
    name, equals, value = word.partition("=")
    if name not in names:
        return None
    return value if equals else next(rest, "")


def _arguments(rest: Iterator[str]) -> tuple[str, ...]:
    return tuple(rest)


def _checked(command: PackageCommand) -> PackageCommand:
    for requirement in command.packages:
        name, _ = split_requirement(command.ecosystem, requirement)
        if command.ecosystem == "PyPI" and _INTERPRETER.fullmatch(name):
            raise NotLockable("uvx runs an interpreter, not a package")
    if command.program and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", command.program):
        raise NotLockable(f"{command.program[:40]!r} is not the name of a program")
    return command
