"""Which sandbox a server process gets, and the plan for starting it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from toolway.config.schema import DefaultSandbox, Sandbox, SandboxGrants
from toolway.upstream.process.confinement import Confinement, hide_own_folders, require


def choose_sandbox(own: Sandbox, default: DefaultSandbox) -> Sandbox:
    """Return a server's sandbox, from its entry or the gateway's default.

    Call this in a thread, because it tests whether bubblewrap works.
    """
    if own != "auto" or default != "guard-if-possible":
        return "guard" if own == "auto" and default == "guard" else own
    if sys.platform != "linux":
        return "auto"
    from toolway.upstream.process import bubblewrap  # as few

    return "guard" if bubblewrap.find_program() is not None else "auto"


def confine(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str | None,
    sandbox: Sandbox,
    grants: SandboxGrants,
    own_folders: Sequence[str],
    proxy_folder: str,
) -> Confinement:
    """Return how to start the command line `argv` in its sandbox.

    Call this in a thread, because it tries what this machine supports. `own_folders` are Toolway's. Raises
    `SandboxError` if the sandbox is not possible, and `FileNotFoundError` if the program does not exist.
    """
    if sandbox not in ("guard", "strict"):
        return Confinement([*argv], env, {} if sys.platform == "win32" else hide_own_folders(sandbox, own_folders))
    require("sandbox")
    from toolway.upstream.process.sandboxes import make_sandbox  # few servers have one

    return make_sandbox(argv, env, cwd, sandbox, grants, own_folders, proxy_folder)
