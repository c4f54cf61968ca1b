"""Environment variables that the untrusted author of a server entry may set for the server.

A user must have named the variable, or the document that describes the server must declare it. Variables that make a
program load other code, use another package index, or talk to another address are never allowed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from toolway.config.admission.command_line import Rejection

#: Names that change what a program loads, downloads or connects to.
_NEVER: Final = re.compile(
    r"LD_.*|DYLD_.*|GLIBC_.*|MALLOC_.*|GCONV_PATH|LOCPATH|NLSPATH|TERMINFO.*"  # libraries
    r"|PATH|PATHEXT|COMSPEC|SHELL|ENV|IFS|PS[0-4]|PROMPT_COMMAND|BASH_.*|BASHOPTS|SHELLOPTS|ZDOTDIR"  # shells
    r"|HOME|HOMEDRIVE|HOMEPATH|USERPROFILE|APPDATA|LOCALAPPDATA|XDG_.*|TMPDIR|TEMP|TMP|INIT_CWD"  # folders
    r"|PYTHON.*|UV_.*|PIPX?_.*|VIRTUAL_ENV|CONDA_.*|NODE_.*|NPM_.*|YARN_.*|PNPM_.*|BUN_.*|DENO_.*|COREPACK_.*|ELECTRON_.*"
    r"|PERL.*|RUBY.*|GEM_.*|BUNDLE_.*|PHP.*|LUA_.*|JAVA_.*|_JAVA_OPTIONS|JDK_.*|CLASSPATH|RUSTC.*|RUSTUP_.*|CARGO_.*"
    r"|GO(?:PATH|ROOT|FLAGS|PROXY|BIN|ENV|SUMDB|PRIVATE|TOOLCHAIN)|DOTNET_.*|NUGET_.*|MSBUILD.*|CORECLR_.*|COMPLUS_.*"
    r"|DOCKER_.*|PODMAN_.*|CONTAINER_HOST|CONTAINERS_.*|BUILDKIT_.*|GIT_.*|SSH_(?:ASKPASS.*|AUTH_SOCK|SK_.*)"
    r"|SSL_.*|OPENSSL_.*|SSLKEYLOGFILE|.*_PROXY|(?:.*_)?CA(?:_.*|CERTS?|FILE|PATH)?"  # connections
    r"|EDITOR|VISUAL|PAGER|BROWSER|TOOLWAY_.*",
    re.IGNORECASE,
)
#: Names that often do the same. A user may set them, a document may not.
_BY_A_USER: Final = re.compile(r".*_(?:PATH|HOME|OPTIONS|OPTS|FLAGS|BIN|EXECUTABLE|COMMAND|CMD|SHELL)", re.IGNORECASE)
_HARMLESS: Final = frozenset(
    {"NODE_ENV", "PYTHONUNBUFFERED", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONDONTWRITEBYTECODE"}
)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Search paths that a bundle may set to its own folders.
BUNDLE_PATHS: Final = frozenset({"PYTHONPATH", "NODE_PATH"})


def is_never_allowed(name: str) -> bool:
    """Return True if an untrusted author may never set this environment variable, even if listed."""
    return _NAME.fullmatch(name) is None or (name not in _HARMLESS and _NEVER.fullmatch(name) is not None)


def check_variables(env: Mapping[str, str], declared: Collection[str], by_a_user: Collection[str]) -> Rejection | None:
    """Return why one of an entry's variables is rejected, or None if all are accepted.

    `declared` are the names that may be set, and `by_a_user` the ones that a user named or gave a value.
    """
    for name in env:
        if is_never_allowed(name):
            return Rejection(
                f"the environment variable {ascii(name)[1:-1]} can change what a program loads or connects to"
            )
        if name not in declared:
            return Rejection(f"the environment variable {name} is not listed", f'"allowedEnv": ["{name}"]')
        if name not in by_a_user and _BY_A_USER.fullmatch(name) is not None:
            return Rejection(f"the environment variable {name} can change what a program loads")
    return None
