"""Paths that a server in the sandbox `strict` can see: its program, and what its entry grants.

Nothing that the server can write may affect this. If it leaves a link or script in a writable folder, that must not
show it more on its next start.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from toolway.config.schema import SandboxGrants
from toolway.upstream.process.path_facts import contains, is_below

SYSTEM_PATHS: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store")
ALWAYS_SHOWN: Final = (*SYSTEM_PATHS, "/etc", "/proc", "/dev/null")  # at least in part
INTERPRETERS: Final = ("python", "node", "deno", "bun", "ruby", "php", "perl", "bash", "sh")


def existing(paths: Iterable[str]) -> list[str]:
    """Check that all paths exist, and return them as a list. Raises `FileNotFoundError` if one does not."""
    found = [*paths]
    for path in found:
        if not os.path.exists(path):
            raise FileNotFoundError(2, "it does not exist", path)
    return found


def readable_paths(argv: Sequence[str], env: Mapping[str, str], cwd: str | None, grants: SandboxGrants) -> list[str]:
    """Return what a server in `strict` may read besides the system.

    Paths inside a writable folder are left out, because they are visible there. Raises `FileNotFoundError` if a path
    does not exist. Raises `ValueError` if a path in a writable folder leads out of what is granted, because the
    server may have put a link there to see more on its next start.
    """
    paths = [*existing(grants.read), *([cwd] if cwd else [])]
    for path in paths:
        _refuse_way_out(path, os.path.realpath(path), grants)
    return [path for path in (*program_paths(argv, env, cwd, grants), *paths) if not _is_shown(path, grants)]


def writable_paths(grants: SandboxGrants) -> list[str]:
    """Return the writable paths that an entry grants, without those inside another such folder.

    Raises the same errors as `readable_paths`.
    """
    paths = existing(grants.write)
    for path in paths:
        _refuse_way_out(path, os.path.realpath(path), grants)
    return [path for path in paths if not _is_shown(path, grants)]


def _refuse_way_out(path: str, target: str, grants: SandboxGrants) -> None:
    """Raise `ValueError` if a path in a writable folder leads to a target outside.

    Targets that are granted or part of the system are fine.
    """
    if not _is_writable(path, grants) or any(contains(each, target) for each in SYSTEM_PATHS):
        return
    fixed = [each for each in (*grants.read, *grants.write) if not _is_writable(each, grants)]
    if not any(contains(each, target) for each in fixed):
        raise ValueError(f"{path} leads to {target}, and the server can change where it leads: grant {target} as well")


def _is_shown(path: str, grants: SandboxGrants) -> bool:
    """Return True if a folder granted for writing already shows `path`."""
    named, folders = os.path.normpath(path), map(os.path.normpath, grants.write)
    return any(folder != named and is_below(folder, named) for folder in folders)


def _is_writable(path: str, grants: SandboxGrants) -> bool:
    """Return True if the server could replace `path`: it is inside a writable folder, by name or in fact."""
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    folders = [os.path.realpath(each) for each in grants.write]
    return _is_shown(path, grants) or any(folder != real and is_below(folder, real) for folder in folders)


# -- files of a program -----------------------------------------------------------------------------------------------


def program_paths(
    argv: Sequence[str], env: Mapping[str, str], cwd: str | None, grants: SandboxGrants | None = None
) -> list[str]:
    """Return the files and folders that a program needs besides the system.

    These are the folder of the executable or its environment (of Python, of Node, `node_modules`), the same for the
    interpreter of a script, and a script that is named after an interpreter. Raises `FileNotFoundError`, and
    `ValueError` if a program that the server can write leads out of what is granted.
    """
    grants = grants or SandboxGrants()
    found: list[str] = []
    pending = [argv[0]]
    for _ in range(4):  # a script, its interpreter, the base of a virtual environment
        if not pending:
            break
        path = find_command(pending.pop(0), env, cwd)
        real = os.path.realpath(path)
        _refuse_way_out(path, real, grants)
        found += [_program_folder(path), _program_folder(real)]
        for interpreter in _interpreters(real):
            if os.sep in interpreter:
                _refuse_way_out(real, os.path.join(cwd or os.getcwd(), interpreter), grants)
            pending.append(interpreter)
    if os.path.basename(argv[0]).startswith(INTERPRETERS):
        scripts = [*_script_paths(argv[1:], env.get("HOME", ""), cwd)]
        for path in scripts:
            _refuse_way_out(path, os.path.realpath(path), grants)
        found += scripts
    outside = [path for path in dict.fromkeys(found) if not any(contains(each, path) for each in SYSTEM_PATHS)]
    return [path for path in outside if not any(each != path and contains(each, path) for each in outside)]


def find_command(name: str, env: Mapping[str, str], cwd: str | None) -> str:
    if os.sep in name:
        path: str | None = os.path.join(cwd or os.getcwd(), name)
        path = path if path is not None and os.path.exists(path) else None
    else:
        path = shutil.which(name, path=env.get("PATH", os.defpath))
    if path is None:
        raise FileNotFoundError(2, "command not found", name)
    return os.path.normpath(path)


def _program_folder(path: str) -> str:
    """Return the folder with a program and its libraries: `node_modules`, the parent of `bin`, or its own folder."""
    parts = path.split(os.sep)
    if "node_modules" in parts:
        return os.sep.join(parts[: parts.index("node_modules") + 1])
    folder = os.path.dirname(path)
    parent = os.path.dirname(folder)
    is_environment = os.path.exists(f"{parent}/pyvenv.cfg") or os.path.isdir(f"{parent}/include")
    return parent if os.path.basename(folder) == "bin" and is_environment else folder


def _script_paths(arguments: Sequence[str], home: str, cwd: str | None) -> Iterator[str]:
    """Yield the folder of the script an interpreter runs, or just the script if that is too much.

    The folder is too much if it is `/`, a temporary folder, or a folder that contains the home folder.
    """
    script = next((each for each in arguments if not each.startswith("-")), "")
    path = os.path.join(cwd or os.getcwd(), script)
    if script and os.path.isfile(path):
        folder = _program_folder(os.path.normpath(path))
        is_wide = folder in ("/", "/tmp", "/var/tmp") or (home != "" and contains(folder, home))
        yield path if is_wide else folder


def _interpreters(path: str) -> Iterator[str]:
    """Yield the interpreter that the first line of a script names."""
    try:
        with open(path, "rb") as file:
            first = file.readline(256)
    except OSError:
        return
    words = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    yield from words[:1]
