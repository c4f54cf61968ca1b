"""What differs between systems: the same names everywhere, one place that asks, and nothing of Linux on a macOS."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import toolway._os
from toolway import _os

FOLDER = Path(toolway._os.__file__).parent
SOURCE = FOLDER.parent
HUB = """
import asyncio, os, pathlib, sys
from toolway import Hub
async def main():
    server = {"command": sys.executable, "args": ["-m", "toolway.testing.stdio_main"]}
    async with Hub({"mcpServers": {"fake": server}}, audit_log=sys.argv[1]) as hub:
        print((await hub.call_tool("fake.echo", {"text": "hallo"})).text, sys.platform, hasattr(os, "fdatasync"))
asyncio.run(main())
print("echo" in pathlib.Path(sys.argv[1]).read_text())
"""

# -- one place asks the system -----------------------------------------------------------------------------------------

#: Modules outside `toolway._os` that may ask for the system, because they work on one system only, and why.
OF_ONE_SYSTEM = {
    "cluster/workers/local_bus.py": "the bus of --workers, which needs Linux",
    "doctor/sandbox_probe.py": "tries what a sandbox of Linux hides",
    "parts/registry/lookup.py": "Windows has no sandbox to set for a new entry",
    "serve/workers.py": "--workers needs Linux",
    "testing/fault_proxy.py": "binds its address again and again; imports nothing of ours",
    "testing/stdio_faults.py": "faults by signals; what it tests must not be in it, so it imports nothing of ours",
    "upstream/process/bubblewrap.py": "a sandbox of Linux",
    "upstream/process/control_group.py": "a limit of Linux; loaded by the reaper, which imports nothing of ours",
    "upstream/process/fd_pipes.py": "pipes of Linux and macOS, next to the pipes of Windows",
    "upstream/process/forwarder.py": "runs inside a sandbox of Linux, with the standard library only",
    "upstream/process/host_proxy.py": "the way out of a sandbox of Linux",
    "upstream/process/landlock.py": "a sandbox of Linux; loaded by the reaper, which imports nothing of ours",
    "upstream/process/limits.py": "limits of a sandbox of Linux",
    "upstream/process/path_facts.py": "mounts, for a sandbox of Linux",
    "upstream/process/reaper.py": "starts servers on Linux and macOS; runs with the standard library only",
    "upstream/process/reaper_spawner.py": "the spawner of Linux and macOS",
    "upstream/process/sandbox_choice.py": "chooses how this system makes a sandbox",
    "upstream/process/sandboxes.py": "makes it, as this system can",
    "upstream/process/shown_paths.py": "what a sandbox of Linux shows",
    "upstream/process/spawner.py": "chooses between the two spawners",
    "upstream/process/syscall_filter.py": "a sandbox of Linux; loaded by the reaper, which imports nothing of ours",
    "upstream/process/windows/job_spawner.py": "the spawner of Windows",
}
MODULES = {
    *("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog"),
    *("msvcrt", "winreg", "_winapi", "platform"),
}
NAMES = {
    "sys": {"platform", "getwindowsversion"},
    "os": {
        *("name", "uname", "fork", "forkpty", "register_at_fork", "fdatasync", "fchmod", "fchown", "killpg", "setsid"),
        *("getuid", "geteuid", "getgid", "getegid", "getgroups", "sysconf", "sched_getaffinity", "startfile", "pipe2"),
        *("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_PATH", "O_BINARY", "O_NOINHERIT"),
    },
    "signal": {"SIGHUP", "SIGKILL", "SIGSTOP", "SIGCONT", "SIGBREAK", "CTRL_BREAK_EVENT", "alarm", "setitimer"},
    "ctypes": {"CDLL", "WinDLL", "windll", "wintypes"},
    "time": {"CLOCK_BOOTTIME"},
    "socket": {"SO_REUSEADDR", "SO_REUSEPORT", "SCM_RIGHTS", "socketpair"},
}
ANY_OBJECT = {"add_signal_handler", "prctl", "pass_fds"}
PROC = re.compile(r"(?<![\w/])/proc(?![\w-])")


def found_in(text: str) -> Iterator[str]:
    """Yield what a module names that only one system has, or by which it asks for the system."""
    tree = ast.parse(text)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module.partition(".")[0] in MODULES:
                yield node.module
            yield from (f"{node.module}.{a.name}" for a in node.names if a.name in NAMES.get(node.module, ()))
        elif isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.attr in NAMES.get(node.value.id, ()):
                yield f"{node.value.id}.{node.attr}"
            elif node.attr in ANY_OBJECT:
                yield node.attr
        elif isinstance(node, ast.keyword) and node.arg in ANY_OBJECT:
            yield node.arg
        elif isinstance(node, ast.Call):
            yield from _found_in_call(node)
        elif isinstance(node, ast.Compare | ast.Match):
            asked = [node.left, *node.comparators] if isinstance(node, ast.Compare) else [node.subject]
            if any(ast.unparse(each).rpartition(".")[2] == "SYSTEM_NAME" for each in asked):
                yield "a comparison of SYSTEM_NAME"
        elif isinstance(node, ast.Constant) and id(node) not in docstrings and PROC.search(str(node.value)):
            yield str(node.value)


def _found_in_call(node: ast.Call) -> Iterator[str]:
    called = ast.unparse(node.func)
    values = [each.value for each in node.args if isinstance(each, ast.Constant)]
    if called == "os.kill" and 0 in values:
        yield "os.kill(…, 0)"
    if called in ("hasattr", "getattr") and node.args and set(values) & NAMES.get(ast.unparse(node.args[0]), set()):
        yield ast.unparse(node)


def modules() -> dict[str, str]:
    return {path.relative_to(SOURCE).as_posix(): path.read_text() for path in SOURCE.rglob("*.py")}


def test_only_one_package_checks_the_system() -> None:
    asked = {name: set(found_in(text)) for name, text in modules().items() if not name.startswith("_os/")}
    asking = {name: found for name, found in asked.items() if found}
    assert {name: found for name, found in asking.items() if name not in OF_ONE_SYSTEM} == {}
    assert OF_ONE_SYSTEM.keys() - asking.keys() == set(), "these modules do not need their entry"


@pytest.mark.parametrize(
    "line",
    [
        "import fcntl",
        "from resource import getrlimit",
        "def f():\n    import termios",
        "import pwd, grp",
        "pid = os.fork()",
        "from os import fork",
        "os.register_at_fork(before=f)",
        "os.fdatasync(1)",
        "libc.prctl(1)",
        "loop.add_signal_handler(15, f)",
        "os.kill(pid, 0)",
        "open('/proc/self/stat')",
        "open(f'/proc/{pid}/environ')",
        "ok = sys.platform == 'linux'",
        "ok = os.name == 'nt'",
        "import platform\nplatform.system()",
        "hasattr(os, 'sched_getaffinity')",
        "ok = SYSTEM_NAME == 'win32'",
        "subprocess.Popen(words, pass_fds=(3,))",
        "os.open(file, os.O_RDONLY | os.O_NONBLOCK)",
    ],
)
def test_module_that_checks_the_system_is_found(line: str) -> None:
    assert list(found_in(line))


@pytest.mark.parametrize(
    "line",
    [
        '"""Read /proc of Linux."""',
        "url = 'https://example.org/process'",
        "command = ['--proc']",
        "os.kill(pid, signal.SIGTERM)",
        "from toolway._os import register_at_fork\nregister_at_fork(before=f)",
        "entry = overrides.get(SYSTEM_NAME)",
        "resource = found['resource']",
    ],
)
def test_module_that_does_not_check_is_accepted(line: str) -> None:
    assert list(found_in(line)) == []


# -- the same names everywhere -----------------------------------------------------------------------------------------


def public_names(file: Path) -> set[str]:
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Assign):
            found.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return {name for name in found if not name.startswith("_")}


@pytest.mark.parametrize(("posix", "win32"), [("posix.py", "win32.py"), ("posix_processes.py", "win32_processes.py")])
def test_each_system_module_has_the_same_names(posix: str, win32: str) -> None:
    ours, theirs = public_names(FOLDER / posix), public_names(FOLDER / win32)
    assert ours == ours & set(_os.__all__) and ours <= theirs


def test_all_names_are_imported_on_each_system() -> None:
    body = ast.parse((FOLDER / "__init__.py").read_text()).body
    first = next(node for node in body if isinstance(node, ast.If))
    for branch in (first.body, first.orelse):
        names = {alias.name for node in branch if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert names == set(_os.__all__)


@pytest.mark.skipif(sys.platform == "win32", reason="needs fcntl")
def test_macos_sync_flushes_the_drive_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import fcntl

    from toolway._os import posix

    asked: list[int] = []
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "fdatasync", raising=False)
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, command: asked.append(command))
    with open(tmp_path / "file", "wb") as file:
        posix.sync_data(file.fileno())
    assert asked == [51]


@pytest.mark.skipif(sys.platform != "linux", reason="takes away what only Linux has")
def test_hub_with_audit_log_needs_no_linux_feature(tmp_path: Path) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -P {Path(__file__).with_name("as_macos.py")} "$@"\n')
    wrapper.chmod(0o755)
    environ = {**os.environ, "AS_MACOS_PYTHON": str(wrapper), "HOME": str(tmp_path)}
    done = subprocess.run(
        [wrapper, "-c", HUB, tmp_path / "audit.jsonl"], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == ["hallo darwin False", "True"], done.stderr
