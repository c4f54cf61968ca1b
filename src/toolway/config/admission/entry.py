"""Rules for server entries from untrusted senders: any command, key, or address that is not listed is rejected.

A URL is accepted if it leads to a public address, or to one that you allowed. You must list a command
line and its variables and folders, or they must have the form in which documents describe packages.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from ipaddress import ip_address
from pathlib import PurePosixPath
from typing import Any, Final

import msgspec

from toolway.config.admission.command_line import (
    RUNNERS,
    Rejection,
    check_command_line,
    is_interpreter,
    program_name,
    runner_package,
)
from toolway.config.admission.variables import BUNDLE_PATHS, check_variables
from toolway.config.schema import Server
from toolway.config.secret_refs import find_unset_variables
from toolway.config.secrets import list_secret_refs
from toolway.errors import ConfigError
from toolway.network import PUBLIC_ONLY, NetworkPolicy
from toolway.network.policy import canonical_host, host_of, is_this_machine
from toolway.part_api import registry
from toolway.part_api.server_transport import RestrictionLost

ADMISSION_CODE: Final = "E-ADMISSION"


class AdmissionPolicy(msgspec.Struct, frozen=True):
    """What a server entry from an untrusted author may use: commands, variables, folders, and secrets.

    For `/admin`, you list them in `toolway.gateway`. For a `server.json` or a bundle, they follow from what
    the document declares, and from the values that the user gave.
    """

    commands: tuple[str, ...] = ()  # command lines, or their first words
    variables: frozenset[str] = frozenset()  # names of environment variables
    named_by_user: frozenset[str] = frozenset()  # the ones that a user listed or gave a value
    volumes: tuple[str, ...] = ()  # folders that a container may mount
    secrets: frozenset[str] = frozenset()  # names in the secret store
    package: str = ""  # the only package that a runner may run; empty: any
    folder: str = ""  # folder of the bundle: its programs and scripts may run


def as_untrusted(server: Server) -> Server:
    """Return the server with a network policy that its own URLs cannot widen."""
    return replace(server, network_policy=replace(server.network_policy, trusts_entries=False))


def check_entry(server: Server, policy: AdmissionPolicy, addresses: NetworkPolicy = PUBLIC_ONLY) -> Rejection | None:
    """Return why an admission policy rejects an untrusted server entry, or None if it is allowed."""
    for reference in list_secret_refs(server):
        if reference.kind != "keyring" or reference.target not in policy.secrets:
            return Rejection("a secret reference would read files or run commands on this machine")
    if unset := find_unset_variables(server):
        return Rejection(f"the variable {next(iter(unset))} would be read from the environment of Toolway")
    if server.env_file is not None:
        return Rejection("envFile would read a file on this machine")
    settings = server.transport_settings
    if settings is not None and settings.file_key:
        return Rejection(f"{settings.file_key} would read a file on this machine")
    if (kind := server.own_scheme or (settings.kind if settings else "")) and registry.own_transport(kind) is None:
        return Rejection(f"the transport {kind} comes from another distribution; only a config file can choose it")
    if server.tls is not None:
        return Rejection("tls would read files on this machine, and may identify it to the server")
    if server.command is None:
        return _check_addresses(server, addresses)
    if server.cwd is not None and server.cwd != policy.folder:
        return Rejection("cwd chooses the files that a program loads; the program runs in the folder of Toolway")
    if server.env_policy == "inherit":
        return Rejection("env_policy inherit would pass the environment of Toolway to the server")
    if server.sandbox == "off":
        return Rejection("sandbox off would let the server read the folders of Toolway")
    for guard in registry.start_guards().values():
        if evasion := guard.find_evasion(server):
            return Rejection(evasion)
    return _check_command(server, policy) or _check_env(server, policy)


def check_written(entry: Mapping[str, Any], server: Server, addresses: NetworkPolicy) -> Rejection | None:
    """Return why it is not safe to write an untrusted server entry to a config file, or None if it is safe.

    `check_entry` has already accepted the entry. In a config file, it would be treated as the administrator's entry:
    its references would be resolved, and its private addresses would be allowed.
    """
    from toolway.config.approval.accesses import iter_texts  # loads the parser of entries, which settings do not need
    from toolway.config.variables import split_references
    from toolway.network.resolver import parse_ip_literal  # loads asyncio

    for key, text in iter_texts(entry):
        if any(not isinstance(part, str) for part in split_references(text)):
            return Rejection(f"{key[:80]} has a reference, which would be resolved on this machine")
    for url in server.entry_urls:
        host = canonical_host(host_of(url))
        for address in parse_ip_literal(host) or (["127.0.0.1"] if is_this_machine(host) else []):
            if addresses.check(host, ip_address(address)) is not None:
                return Rejection(f"{host} is an address of this machine or network")
    return None


def keep_restrictions(server: Server, configured: Server) -> Server | Rejection:
    """Return `server` with the restrictions of `configured`, the entry that it replaces.

    A restriction that `server` does not set is copied, and the deny lists are joined. If `server` sets a different
    value, return a rejection.
    """
    kept: dict[str, Any] = {"denied_tools": tuple(dict.fromkeys((*configured.denied_tools, *server.denied_tools)))}
    if configured.allowed_tools is not None:
        if server.allowed_tools is None:
            kept["allowed_tools"] = configured.allowed_tools
        elif more := [name for name in server.allowed_tools if not _is_allowed(name, configured.allowed_tools)]:
            return _weakens("tools.allow", f"{more[0]!r} is not in it")
    defaults = Server(command="default")
    for name, key in _RESTRICTIONS.items():
        default, ours, theirs = (getattr(each, name) for each in (defaults, configured, server))
        if ours == default or theirs == ours:
            continue
        if theirs != default:
            return _weakens(key, "the new entry has another one")
        kept[name] = ours
    for part in registry.guarding():
        facts, theirs = configured.guard_facts.get(part.name), server.guard_facts.get(part.name)
        if facts is not None and theirs != facts:
            if theirs is not None:
                return _weakens(part.entry_file, "the new entry has another one")
            kept["guard_facts"] = {**kept.get("guard_facts", server.guard_facts), part.name: facts}
    if configured.transport_settings is not None and server.transport_settings is not None:
        try:
            kept["transport_settings"] = server.transport_settings.keep_restrictions(configured.transport_settings)
        except RestrictionLost as exc:
            return _weakens(exc.key, "the new entry has other ones")
    return replace(server, **kept)


def with_guard_facts_of(server: Server, configured: Iterable[Server]) -> Server:
    """Return an added `server` with the start guards' restrictions, such as the configured servers' lock file.

    Guards that already know about this server are not affected.
    """
    known = [each.guard_facts for each in configured]
    added = dict(server.guard_facts)
    for name, guard in registry.start_guards().items():
        facts = guard.facts_for_added([each[name] for each in known if name in each]) if name not in added else None
        if facts is not None:
            added[name] = facts
    return replace(server, guard_facts=added) if added != server.guard_facts else server


def _is_allowed(name: str, patterns: Sequence[str]) -> bool:
    return name in patterns or (not set("*?[") & set(name) and any(fnmatchcase(name, pattern) for pattern in patterns))


def _weakens(key: str, reason: str) -> Rejection:
    return Rejection(
        f"the configuration file has an entry with this name and {key}, which still applies: {reason}",
        hint=f"leave {key} out, use another name, or change the entry in the configuration file",
    )


#: Settings by which you restrict a server, with their keys in a config file.
_RESTRICTIONS: Final = {
    "sandbox": "sandbox",
    "grants": "sandbox",
    "env_policy": "env_policy",
    "rate_limit": "rateLimit",
    "tools": "tools",
    "limits": "limits",
    "validate_arguments": "validateArguments",
    "untrusted": "untrusted",
    "labels": "labels",
    "redact": "redact",
}


def rejection_error(name: str, rejection: Rejection, hint: str) -> ConfigError:
    """Return the error for a rejected server entry. `hint` says how to add the entry anyway."""
    return ConfigError(f"server {name!r} rejected", detail=rejection.reason, hint=hint, code=ADMISSION_CODE)


def _check_addresses(server: Server, addresses: NetworkPolicy) -> Rejection | None:
    """Return why an IP address in a server's URLs is rejected, or None if all are accepted.

    Host names are not resolved here. Their addresses are checked when a connection is opened.
    """
    from toolway.network.resolver import AddressDenied, check_ip_literal  # loads asyncio, which settings do not need

    settings = server.transport_settings.urls if server.transport_settings is not None else ()
    for url in filter(None, (server.url, *settings)):
        try:
            check_ip_literal(host_of(url), addresses)
        except AddressDenied as exc:
            return Rejection(exc.reason)
    return None


def _check_command(server: Server, policy: AdmissionPolicy) -> Rejection | None:
    words = (server.command or "", *server.args)
    if policy.folder and _runs_own_files(words, policy.folder):
        return None
    rejection = check_command_line(words, policy.commands, volumes=policy.volumes, variables=server.env)
    if rejection is None and policy.package and policy.package != runner_package(words):
        return Rejection(f"it would run another package than {policy.package}")
    return rejection


def _runs_own_files(words: Sequence[str], folder: str) -> bool:
    """Return True if a bundle's command line runs a program or script in the bundle, without flags before it."""
    if _is_below(words[0], folder):
        return True
    if words[0] != program_name(words[0]):
        return False  # a path: another program of this machine
    if is_interpreter(words[0]):
        return len(words) > 1 and _is_below(words[1], folder)
    if list(words[:3]) == ["uv", "run", "--directory"] and len(words) > 4:
        script = words[4]
        return (
            (words[3] == folder or _is_below(words[3], folder)) and script[:1] not in ("-", "/") and _is_plain(script)
        )
    return False


def _check_env(server: Server, policy: AdmissionPolicy) -> Rejection | None:
    env = {
        name: value
        for name, value in server.env.items()
        if not (
            policy.folder
            and name in BUNDLE_PATHS
            and all(part == policy.folder or _is_below(part, policy.folder) for part in value.split(os.pathsep))
        )
    }
    return check_variables(env, policy.variables, policy.named_by_user)


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/") and _is_plain(path)


def _is_plain(path: str) -> bool:
    return ".." not in PurePosixPath(path).parts and ":" not in path


def runner_commands(registry: str) -> tuple[str, ...]:
    """Return the commands that run a registry's packages (npm, pypi, oci, or nuget), such as npx for npm."""
    return _RUNNERS_BY_REGISTRY.get(registry, ())


_RUNNERS_BY_REGISTRY: Final = {
    "npm": ("npx", "bunx"),
    "pypi": ("uvx", "pipx"),
    "oci": ("docker", "podman"),
    "nuget": ("dnx",),
}
BUNDLE_RUNNERS: Final = tuple(RUNNERS)
