"""Which servers may be started by somebody who only has a token: what `/admin` adds is not what the operator wrote.

A URL may be added, if it leads to a public address, or to one that the operator allowed. A command must be one that the
operator listed, a package that it runs must have a fixed version, and neither its flags nor its environment may bring
code of their own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import PurePath
from typing import Final

from toolway.addresses import PUBLIC, Addresses, AddressRefused
from toolway.addresses.policy import host_of
from toolway.addresses.resolving import check_literal
from toolway.config.secrets import references
from toolway.config.spec import Server

RUNNERS: Final = frozenset({"npx", "bunx", "uvx", "pipx"})  # they fetch a package and run it
_PINNED: Final = re.compile(r"(@[\w.-]+/)?[\w.\[\]-]+(@|==)[0-9][\w.+-]*")
_EVALUATES: Final = re.compile(r"(-[a-zA-Z]*[cepr]|--(call|command|eval|print|require|import|from|with|package))(=.*)?")
_HOOKS: Final = re.compile(
    r"LD_.*|DYLD_.*|PYTHON.*|NODE_OPTIONS|NODE_PATH|BASH_ENV|ENV|PERL5.*|RUBY(OPT|LIB)|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS"
    r"|PATH|GCONV_PATH|GIT_.*|npm_config_.*",
    re.IGNORECASE,
)


def of_stranger(server: Server) -> Server:
    """The server, whose entry allows no address by naming it."""
    return replace(server, addresses=replace(server.addresses, trusts_entries=False))


def objection(server: Server, allowed: Collection[str], addresses: Addresses = PUBLIC) -> str | None:
    """Why a server that came by way of `/admin` is not taken, or None."""
    if references(server):
        return "a reference to a secret would read files or run commands of this machine"
    if server.openapi is not None and server.openapi.file is not None:
        return "openapi.file would read a file of this machine"
    if server.command is None:
        return _wrong_address(server, addresses)
    if server.command not in allowed:
        return f"the command {server.command!r} is not among toolway.gateway.commands"
    hook = next((name for name in server.env if _HOOKS.fullmatch(name)), None)
    if hook is not None:
        return f"the variable {hook} could bring code of its own"
    flag = next((word for word in _before_package(server) if _EVALUATES.fullmatch(word)), None)
    if flag is not None:
        return f"the flag {flag} could bring code of its own"
    if _is_runner(server.command) and not _PINNED.fullmatch(_package(server.args)):
        return "a package must have a fixed version: name@1.2.3 or name==1.2.3"
    return None


def _wrong_address(server: Server, addresses: Addresses) -> str | None:
    """What can be seen without asking a name server; the rest is seen when it is connected to."""
    document = server.openapi.url if server.openapi is not None else None
    for url in filter(None, (server.url, document)):
        try:
            check_literal(host_of(url), addresses)
        except AddressRefused as exc:
            return exc.reason
    return None


def _is_runner(command: str) -> bool:
    return PurePath(command).name.removesuffix(".exe").removesuffix(".cmd") in RUNNERS


def _before_package(server: Server) -> Iterable[str]:
    """The words that are for the command itself; those behind a package, or a script, are the program's own."""
    for word in server.args:
        if not word.startswith("-"):
            return
        yield word


def _package(args: Iterable[str]) -> str:
    return next((word for word in args if not word.startswith("-")), "")
