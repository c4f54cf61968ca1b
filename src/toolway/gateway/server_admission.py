"""Rules for servers added through `/admin`: these were not written by the operator.

A URL is accepted if it leads to a public address, or to one that the operator allowed. A command must be one that the
operator listed. A package that it runs must have a fixed version. Neither flags nor environment variables may inject
code.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import PurePath
from typing import Final

from toolway.config.schema import Server
from toolway.config.secret_refs import find_unset_variables
from toolway.config.secrets import list_secret_refs
from toolway.network import PUBLIC_ONLY, AddressDenied, NetworkPolicy
from toolway.network.policy import host_of
from toolway.network.resolver import check_ip_literal

PACKAGE_RUNNERS: Final = frozenset({"npx", "bunx", "uvx", "pipx"})  # these download a package and run it
_PINNED_PACKAGE: Final = re.compile(r"(@[\w.-]+/)?[\w.\[\]-]+(@|==)[0-9][\w.+-]*")
_CODE_FLAG: Final = re.compile(r"(-[a-zA-Z]*[cepr]|--(call|command|eval|print|require|import|from|with|package))(=.*)?")
_CODE_VARIABLE: Final = re.compile(
    r"LD_.*|DYLD_.*|PYTHON.*|NODE_OPTIONS|NODE_PATH|BASH_ENV|ENV|PERL5.*|RUBY(OPT|LIB)|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS"
    r"|PATH|GCONV_PATH|GIT_.*|npm_config_.*",
    re.IGNORECASE,
)


def as_untrusted(server: Server) -> Server:
    """Return the server with a network policy that does not trust addresses in its own entry.

    For servers added through `/admin`, which the operator did not write.
    """
    return replace(server, network_policy=replace(server.network_policy, trusts_entries=False))


def rejection_reason(
    server: Server, allowed_commands: Collection[str], addresses: NetworkPolicy = PUBLIC_ONLY
) -> str | None:
    """Return why a server added through `/admin` is rejected, or None if it is accepted."""
    if list_secret_refs(server):
        return "a secret reference would read files or run commands on this machine"
    if unset := find_unset_variables(server):
        return f"the variable {next(iter(unset))} would be read from the environment of the gateway"
    if server.env_file is not None:
        return "envFile would read a file on this machine"
    if server.openapi is not None and server.openapi.file is not None:
        return "openapi.file would read a file on this machine"
    if server.tls is not None:
        return "tls would read files on this machine, and may identify it to the server"
    if server.command is None:
        return _address_rejection(server, addresses)
    if server.command not in allowed_commands:
        return f"command {server.command!r} is not listed in toolway.gateway.allowedCommands"
    variable = next((name for name in server.env if _CODE_VARIABLE.fullmatch(name)), None)
    if variable is not None:
        return f"environment variable {variable} could inject code"
    flag = next((word for word in _leading_flags(server) if _CODE_FLAG.fullmatch(word)), None)
    if flag is not None:
        return f"flag {flag} could inject code"
    if _is_runner(server.command) and not _PINNED_PACKAGE.fullmatch(_package_name(server.args)):
        return "a package must have a fixed version: name@1.2.3 or name==1.2.3"
    return None


def _address_rejection(server: Server, addresses: NetworkPolicy) -> str | None:
    """Return why an IP address in the URLs of a server is rejected; None if it is accepted.

    Host names are not resolved here: their addresses are checked when connecting.
    """
    document = server.openapi.url if server.openapi is not None else None
    for url in filter(None, (server.url, document)):
        try:
            check_ip_literal(host_of(url), addresses)
        except AddressDenied as exc:
            return exc.reason
    return None


def _is_runner(command: str) -> bool:
    return PurePath(command).name.removesuffix(".exe").removesuffix(".cmd") in PACKAGE_RUNNERS


def _leading_flags(server: Server) -> Iterable[str]:
    """Yield the flags before the first other argument, which the server's command itself reads.

    Later arguments belong to the package or script that the command runs.
    """
    for word in server.args:
        if not word.startswith("-"):
            return
        yield word


def _package_name(args: Iterable[str]) -> str:
    return next((word for word in args if not word.startswith("-")), "")
