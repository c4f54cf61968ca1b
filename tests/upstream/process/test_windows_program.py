"""The program behind a command of Windows, decided from the files that exist. The batch files are real ones."""

from __future__ import annotations

import json
import ntpath
import shutil
import subprocess
from pathlib import Path

import pytest

from toolway.upstream.process.windows.program import UnsafeArgument, build_command_line, find_program

NODE = r"C:\Program Files\nodejs"
ROAMING = r"C:\Users\me\AppData\Roaming"
ENV = {"Path": rf"{NODE};{ROAMING}\npm;C:\bin", "APPDATA": ROAMING}
HARD = ["-y", "pkg@^1.2", "https://example.org/?a=1&b=%PATH%", 'say "x" | calc', "(a)", ""]  # cmd.exe misreads these

#: What cmd-shim wrote before version 4, with npm 6.
OLD_SHIM = """@IF EXIST "%~dp0\\node.exe" (\r
  "%~dp0\\node.exe"  "%~dp0\\node_modules\\server\\cli.js" %*\r
) ELSE (\r
  @SETLOCAL\r
  @SET PATHEXT=%PATHEXT:;.JS;=;%\r
  node  "%~dp0\\node_modules\\server\\cli.js" %*\r
)"""
#: What cmd-shim 4 wrote, with npm 7.
SHIM_4 = """@ECHO off\r
SETLOCAL\r
CALL :find_dp0\r
\r
IF EXIST "%dp0%\\node.exe" (\r
  SET "_prog=%dp0%\\node.exe"\r
) ELSE (\r
  SET "_prog=node"\r
  SET PATHEXT=%PATHEXT:;.JS;=;%\r
)\r
\r
"%_prog%"  "%dp0%\\node_modules\\server\\cli.js" %*\r
ENDLOCAL\r
EXIT /b %errorlevel%\r
:find_dp0\r
SET dp0=%~dp0\r
EXIT /b\r
"""
#: npx.cmd of Node.js 16.
OLD_NPX = r""":: Created by npm, please don't edit manually.
@ECHO OFF

SETLOCAL

SET "NODE_EXE=%~dp0\node.exe"
IF NOT EXIST "%NODE_EXE%" (
  SET "NODE_EXE=node"
)

SET "NPM_CLI_JS=%~dp0\node_modules\npm\bin\npm-cli.js"
SET "NPX_CLI_JS=%~dp0\node_modules\npm\bin\npx-cli.js"
FOR /F "delims=" %%F IN ('CALL "%NODE_EXE%" "%NPM_CLI_JS%" prefix -g') DO (
  SET "NPM_PREFIX_NPX_CLI_JS=%%F\node_modules\npm\bin\npx-cli.js"
)
IF EXIST "%NPM_PREFIX_NPX_CLI_JS%" (
  SET "NPX_CLI_JS=%NPM_PREFIX_NPX_CLI_JS%"
)

"%NODE_EXE%" "%NPX_CLI_JS%" %*
"""


class Disk:
    """A disk of Windows in memory. Names are compared without regard to case."""

    def __init__(self, files: dict[str, str]) -> None:
        self._files = {ntpath.normcase(path): text for path, text in files.items()}

    def is_file(self, path: str) -> bool:
        return ntpath.normcase(path) in self._files

    def read_text(self, path: str) -> str:
        return self._files[ntpath.normcase(path)]


def build(disk: dict[str, str], *argv: str, env: dict[str, str] = ENV, cwd: str = r"C:\project") -> list[str]:
    return build_command_line(argv, env, cwd, Disk({rf"{NODE}\node.exe": "", **disk}))


def npm_folder() -> Path:
    """The folder of the npm that is installed next to Node.js."""
    program = shutil.which("npm")
    if program is None:
        pytest.skip("npm is not installed")
    found = next((up for up in Path(program).resolve().parents if (up / "bin" / "npm-cli.js").exists()), None)
    if found is None:
        pytest.skip("npm has no separate folder")
    return found


def real_shim(folder: Path, first_line: str) -> str:
    """The .cmd file that the cmd-shim of the installed npm writes for a program of a package."""
    package = npm_folder() / "node_modules" / "cmd-shim"
    if not package.exists():
        pytest.skip("this npm has no cmd-shim")
    script = folder / "node_modules" / "server" / "cli.js"
    script.parent.mkdir(parents=True)
    script.write_text(f"{first_line}\nconsole.log(1)\n")
    code = "require(process.argv[1])(process.argv[2], process.argv[3]).then(() => process.exit(0))"
    words = ["node", "-e", code, str(package), str(script), str(folder / "server")]
    subprocess.run(words, check=True, timeout=60, capture_output=True)
    return (folder / "server.cmd").read_bytes().decode()


# -- npm and npx ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["npx", "npm"])
def test_npx_runs_node_with_npm_script(name: str) -> None:
    disk = {rf"{NODE}\{name}.cmd": (npm_folder() / "bin" / f"{name}.cmd").read_text()}
    assert build(disk, name, *HARD) == [
        rf"{NODE}\node.exe",
        rf"{NODE}\node_modules\npm\bin\{name}-cli.js",
        *HARD,
    ]


def test_npx_of_older_node_is_recognized() -> None:
    words = build({rf"{NODE}\npx.cmd": OLD_NPX}, "npx.cmd", "x")
    assert words == [rf"{NODE}\node.exe", rf"{NODE}\node_modules\npm\bin\npx-cli.js", "x"]


def test_npm_installed_by_npm_has_precedence() -> None:
    newer = rf"{ROAMING}\npm\node_modules\npm\bin\npx-cli.js"
    disk = {rf"{NODE}\npx.cmd": (npm_folder() / "bin" / "npx.cmd").read_text(), newer: ""}
    assert build(disk, "npx", "x") == [rf"{NODE}\node.exe", newer, "x"]


# -- programs of packages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first_line", "options"),
    [("#!/usr/bin/env node", []), ("#!/usr/bin/env -S node --no-warnings", ["--no-warnings"])],
)
def test_package_program_runs_node_with_its_script(tmp_path: Path, first_line: str, options: list[str]) -> None:
    shim = real_shim(tmp_path, first_line)
    script = rf"{ROAMING}\npm\node_modules\server\cli.js"
    words = build({rf"{ROAMING}\npm\server.cmd": shim}, "server", *HARD)
    assert words == [rf"{NODE}\node.exe", *options, script, *HARD]


@pytest.mark.parametrize("shim", [OLD_SHIM, SHIM_4])
def test_shims_of_older_npm_are_recognized(shim: str) -> None:
    script = rf"{ROAMING}\npm\node_modules\server\cli.js"
    assert build({rf"{ROAMING}\npm\server.cmd": shim}, "server", "x&y") == [rf"{NODE}\node.exe", script, "x&y"]
    beside = {rf"{ROAMING}\npm\server.cmd": shim, rf"{ROAMING}\npm\node.exe": ""}
    assert build(beside, "server")[0] == rf"{ROAMING}\npm\node.exe"


def test_package_may_have_its_own_executable(tmp_path: Path) -> None:
    shim = real_shim(tmp_path, "MZ").replace("cli.js", "server.exe")
    words = build({rf"{ROAMING}\npm\server.cmd": shim}, "server", "a|b")
    assert words == [rf"{ROAMING}\npm\node_modules\server\server.exe", "a|b"]


def test_shim_that_sets_variables_goes_through_cmd(tmp_path: Path) -> None:
    shim = real_shim(tmp_path, "#!/usr/bin/env -S NODE_ENV=production node")
    disk = {rf"{ROAMING}\npm\server.cmd": shim}
    assert "NODE_ENV" in shim and build(disk, "server", "x") == [rf"{ROAMING}\npm\server.cmd", "x"]


# -- uv ---------------------------------------------------------------------------------------------------------------


def test_uvx_is_run_directly() -> None:
    assert build({r"C:\bin\uvx.exe": ""}, "uvx", *HARD) == [r"C:\bin\uvx.exe", *HARD]


def test_uvx_wrapper_is_bypassed() -> None:
    wrapper = {rf"{NODE}\uvx.bat": "@pyenv exec uvx %*"}
    assert build({**wrapper, r"C:\bin\uvx.exe": ""}, "uvx", "x&y") == [r"C:\bin\uvx.exe", "x&y"]
    assert build({**wrapper, r"C:\bin\uv.exe": ""}, "uvx", "x&y") == [r"C:\bin\uv.exe", "tool", "run", "x&y"]
    with pytest.raises(UnsafeArgument):
        build(wrapper, "uvx", "x&y")


# -- other batch files ------------------------------------------------------------------------------------------------


BATCH = {r"C:\bin\server.cmd": "@echo off\r\npython C:\\server.py %*\r\n"}


def test_other_batch_file_gets_safe_arguments() -> None:
    words = ["--root", r"C:\Users\Jörg Müller\a-b_c", "key=value", "https://example.org:8080/x?y#z", "a;b,c", "it's"]
    assert build(BATCH, "server", *words) == [r"C:\bin\server.cmd", *words]


@pytest.mark.parametrize("letter", [*'"%!&|<>^()', "\n", "\r", "\0", "\x1a"])
def test_unsafe_batch_argument_is_rejected_by_number(letter: str) -> None:
    with pytest.raises(UnsafeArgument, match=r"server\.cmd is a batch file") as refused:
        build(BATCH, "server", "--url", f"a{letter}calc")
    assert "argument 2 (" in str(refused.value) and repr(letter) in str(refused.value)


def test_rejected_secret_argument_is_masked() -> None:
    secret = "ghp_" + "a1B2" * 9
    with pytest.raises(UnsafeArgument) as refused:
        build(BATCH, "server", "--token", f"{secret}&calc")
    assert secret not in str(refused.value)


def test_batch_file_in_unsafe_folder_is_rejected() -> None:
    with pytest.raises(UnsafeArgument, match="in its path"):
        build({r"C:\R&D\x.cmd": "@rem"}, r"C:\R&D\x.cmd")


@pytest.mark.parametrize(
    "text",
    [
        'node "%~dp0\\a.js" %*\r\ncalc',
        'node "%~dp0\\a.js" %1',
        '@SET NODE_PATH=x\r\n@node "%~dp0\\a.js" %*',
        '@node "%~dp0\\a.js" %*\r\n@node "%~dp0\\b.js" %*',
        "",
    ],
)
def test_unknown_shim_layout_goes_through_cmd(text: str) -> None:
    assert build({r"C:\bin\x.cmd": text}, "x", "y") == [r"C:\bin\x.cmd", "y"]


# -- where programs are looked up -------------------------------------------------------------------------------------


def test_program_in_current_folder_is_not_found_by_name() -> None:
    """A project that someone else wrote could bring its own `npx.cmd`."""
    with pytest.raises(FileNotFoundError):
        build({r"C:\project\npx.cmd": "@calc"}, "npx", env={"PATH": rf".;\;{NODE};"})
    assert build({r"C:\project\bin\x.exe": ""}, r"bin\x") == [r"C:\project\bin\x.exe"]
    assert build({r"C:\project\bin\x.exe": ""}, "./bin/x.exe") == [r"C:\project\bin\x.exe"]


def test_path_order_wins_and_programs_precede_batch_files() -> None:
    disk = Disk({r"C:\b\x.exe": "", r"C:\a\x.cmd": "", r"C:\a\x": "", r"C:\c\y.cmd": "", r"C:\c\y.exe": ""})
    assert find_program("x", r"C:\a;C:\b", "", disk) == r"C:\a\x.cmd"
    assert find_program("x.exe", r'C:\a;"C:\b"', "", disk) == r"C:\b\x.exe"
    assert find_program("y", r"C:\c", "", disk) == r"C:\c\y.exe"


def test_node_and_full_paths_are_unchanged() -> None:
    assert build({}, "node", *HARD) == [rf"{NODE}\node.exe", *HARD]
    assert build({}, rf"{NODE}\node.exe", json.dumps({"a": "%x%"})) == [rf"{NODE}\node.exe", '{"a": "%x%"}']
