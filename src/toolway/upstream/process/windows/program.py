"""The program behind a Windows command: `npx` is a batch file that runs node.exe with an npm script.

A batch file is run by cmd.exe, which reads some characters of the arguments as its own syntax, even between quotes (the
flaw known as BatBadBut). So the program that it starts is started instead, if the batch file is one of these:

- npx.cmd and npm.cmd of Node.js: node.exe with npm's script
- what npm writes for the programs of a package (`cmd-shim`): node.exe or another interpreter with its script
- a wrapper of uv or uvx: uv's own uvx.exe or uv.exe on PATH

Any other batch file only gets arguments that cmd.exe cannot misread; the rest are rejected. Nothing here waits or
starts anything, and `Files` says which files exist, so all of it can be tested on any system.
"""

from __future__ import annotations

import ntpath
import re
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from toolway.config.masking import mask_value

PROGRAM_ENDINGS: Final = (".com", ".exe")
BATCH_ENDINGS: Final = (".bat", ".cmd")
PATH_SYNTAX: Final = frozenset('"%!&|<>^')  # and all control characters
ARGUMENT_SYNTAX: Final = PATH_SYNTAX | frozenset("()")  # parentheses end a block in which a batch file uses arguments
MAX_SHOWN_CHARS: Final = 60

#: Lines of known batch files that do nothing but lead to the line that starts the program.
_LEADING: Final = re.compile(
    r"""(?: ::.* | @?echo\ off | @?setlocal | endlocal | goto\ start | :start | :find_dp0 | call\ :find_dp0
        | set\ dp0=%~dp0 | exit\ /b(?:\ %errorlevel%)? | \) | \)\ else\ \( | @?set\ pathext=%pathext:;\.js;=;%
        | @?if\ (?:not\ )?exist\ "[^"]+"\ \( | set\ "node_exe=(?:%~dp0\\node\.exe|node)"
        | set\ "npm_prefix_js=%~dp0\\node_modules\\npm\\bin\\npm-prefix\.js"
        | set\ "np[mx]_cli_js=(?:%~dp0\\node_modules\\npm\\bin\\np[mx]-cli\.js|%npm_prefix_np[mx]_cli_js%)"
        | for\ /f\ "delims="\ %%f\ in\ \('call\ "%node_exe%"\ "%npm_(?:prefix|cli)_js%"(?:\ prefix\ -g)?'\)\ do\ \(
        | set\ "npm_prefix_np[mx]_cli_js=%%f\\node_modules\\npm\\bin\\np[mx]-cli\.js"
        | set\ "_prog=(?P<program>[^"]+)"
    )""",
    re.IGNORECASE | re.VERBOSE,
)
#: The line that starts the program, with all arguments (`%*`).
_START: Final = re.compile(
    r"""@?(?: endlocal\ &\ goto\ \#_undefined_\#\ 2>nul\ \|\|\ title\ %comspec%\ &\ )?
        (?: "(?P<program> %_prog% | %node_exe% | (?:%dp0%|%~dp0)\\[^"%]+ )" | (?P<bare> \w+ ) ) \s+
        (?P<options> (?: -[\w.=:/-]+ \s+ )*)
        (?: "(?P<script> (?:%dp0%|%~dp0)\\[^"%]+ | %np[mx]_cli_js% )" \s+ )?
        %\*""",
    re.IGNORECASE | re.VERBOSE,
)


class Files(Protocol):
    """The files of the machine on which programs are looked up."""

    def is_file(self, path: str) -> bool: ...

    def read_text(self, path: str) -> str:
        """Return the content of a batch file. Raises `OSError`."""
        ...


class UnsafeArgument(Exception):
    """Raised for an argument that cmd.exe would read as its own syntax."""


def build_command_line(argv: Sequence[str], env: Mapping[str, str], cwd: str, files: Files) -> list[str]:
    """Return the command line that starts a program, with a batch file replaced with what it runs.

    `env` are the variables of the process, whose PATH counts, and `cwd` is its folder. Raises `FileNotFoundError` if
    the program does not exist, and `UnsafeArgument` for an argument that a batch file must not get.
    """
    variables = {name.upper(): value for name, value in env.items()}
    search = variables.get("PATH", "")
    found = find_program(argv[0], search, cwd, files)
    if not found.lower().endswith(BATCH_ENDINGS):
        return [found, *argv[1:]]
    words = _program_of_batch(found, search, variables.get("APPDATA", ""), files)
    if words is not None:
        return [*words, *argv[1:]]
    _refuse_syntax(found, argv)
    return [found, *argv[1:]]


def find_program(name: str, search: str, cwd: str, files: Files, endings: Sequence[str] | None = None) -> str:
    """Return a program's full path, from a PATH, or relative to `cwd` if `name` is a path.

    Unlike cmd.exe it never looks in the current folder, which may be a project of someone else. Raises
    `FileNotFoundError`.
    """
    allowed = endings or (*PROGRAM_ENDINGS, *BATCH_ENDINGS)
    names = [name] if name.lower().endswith(tuple(allowed)) else [name + ending for ending in allowed]
    if ntpath.dirname(name) or ntpath.splitdrive(name)[0]:
        folders = [cwd]
    else:
        folders = [each for part in search.split(";") if ntpath.isabs(each := part.strip().strip('"'))]
    for folder in folders:
        for each in names:
            path = ntpath.normpath(ntpath.join(folder, each))
            if files.is_file(path):
                return path
    raise FileNotFoundError(2, "No such file or directory", name)


def _program_of_batch(batch: str, search: str, app_data: str, files: Files) -> list[str] | None:
    """Return what replaces a batch file in a command line, or None if only cmd.exe can run it."""
    stem = ntpath.splitext(ntpath.basename(batch))[0].lower()
    try:
        if stem in ("uv", "uvx"):
            return _find_uv(stem, search, files)
        text = files.read_text(batch)
        return _read_batch(text, ntpath.dirname(batch), search, app_data, files)
    except (OSError, ValueError):  # no real file on PATH, or a batch file that is not text
        return None


def _find_uv(stem: str, search: str, files: Files) -> list[str]:
    try:
        return [find_program(stem, search, "", files, PROGRAM_ENDINGS)]
    except FileNotFoundError:
        if stem == "uv":
            raise
        return [find_program("uv", search, "", files, PROGRAM_ENDINGS), "tool", "run"]


def _read_batch(text: str, folder: str, search: str, app_data: str, files: Files) -> list[str] | None:
    """Return what a batch file with a known layout starts, or None."""
    programs: list[str] = []  # values of `_prog`: next to the batch file, and on PATH
    starts: list[tuple[str, str, str]] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if leading := _LEADING.fullmatch(line):
            programs += [leading["program"]] if leading["program"] else []
        elif start := _START.fullmatch(line):
            starts.append((start["program"] or start["bare"], start["options"], start["script"] or ""))
        else:
            return None
    if not starts or len({start[1:] for start in starts}) != 1:
        return None
    program, options, script = starts[-1]
    if not script:  # the file of a package that is a program itself
        target = _expand(program, folder)
        return [target, *options.split()] if target.lower().endswith(PROGRAM_ENDINGS) else None
    if program.lower() == "%_prog%":
        program = programs[-1] if programs else ""
    elif program.lower() == "%node_exe%":
        program = "node"
    name = ntpath.basename(program).removesuffix(".exe")
    if not re.fullmatch(r"[\w.-]+", name):
        return None
    beside = ntpath.join(folder, f"{name}.exe")
    found = beside if files.is_file(beside) else find_program(name, search, "", files, PROGRAM_ENDINGS)
    return [found, *options.split(), _find_script(script, folder, app_data, files)]


def _find_script(script: str, folder: str, app_data: str, files: Files) -> str:
    if not script.lower().startswith("%np"):
        return _expand(script, folder)
    own = rf"node_modules\npm\bin\{script[1:4].lower()}-cli.js"
    # An npm that was installed by npm has precedence. It is in npm's usual folder for global packages; asking npm for
    # another one, as the batch file does, takes half a second.
    newer = ntpath.join(app_data, "npm", own) if app_data else ""
    return newer if newer and files.is_file(newer) else ntpath.join(folder, own)


def _expand(path: str, folder: str) -> str:
    return ntpath.normpath(re.sub(r"^(?:%dp0%|%~dp0)", lambda _: folder, path, flags=re.IGNORECASE))


def _refuse_syntax(batch: str, argv: Sequence[str]) -> None:
    shown = mask_value(list(argv))
    name = ntpath.basename(batch)
    for number, word in enumerate((batch, *argv[1:])):
        syntax = ARGUMENT_SYNTAX if number else PATH_SYNTAX
        if found := next((letter for letter in word if letter in syntax or letter < " "), ""):
            what = f"argument {number} ({shown[number][:MAX_SHOWN_CHARS]!r})" if number else "its path"
            raise UnsafeArgument(f"{name} is a batch file, and cmd.exe would read {found!r} in {what} as syntax")
