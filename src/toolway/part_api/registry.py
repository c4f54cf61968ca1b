"""The registry of parts: each one's name and module, imported on demand.

Other distributions add parts, transports and audit sinks with the entry point groups `toolway.parts`,
`toolway.transports` and `toolway.audit_sinks`. Finding them means reading the metadata of every installed distribution,
so Toolway only does it for unknown names.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from toolway.errors import ConfigError
from toolway.part_api.part import KeyAttribute, Metric, Part
from toolway.part_api.start_guard import GuardChecks, StartGuard

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from toolway.part_api.server_transport import ServerTransport

#: Built-in parts: name → class, in the order they are opened. A new part needs one line here.
BUILT_IN: Final[Mapping[str, str]] = {
    "identity": "toolway.parts.identity:Identity",
    "policy": "toolway.parts.policy:AccessPolicies",
    "budgets": "toolway.parts.budgets:Budgets",
    "approvals": "toolway.parts.approvals:Approvals",
    "flows": "toolway.parts.flows:Flows",
    "workflows": "toolway.parts.workflows:GatewayWorkflows",
    "search": "toolway.parts.search:GatewaySearch",
    "agents": "toolway.parts.agents:GatewayAgents",
    "audit": "toolway.parts.audit:AuditLogs",
    "pins": "toolway.parts.pins:PinnedDefinitions",
    "openapi": "toolway.parts.openapi:HttpApis",
    "lock": "toolway.parts.lock:PackageLocks",
    "registry": "toolway.parts.registry:Registries",
    "rest": "toolway.parts.rest:ToolsOverHttp",
}
#: Built-in parts with a start guard: all that a hub without a gateway loads.
GUARDING: Final = ("lock",)
ENTRY_POINTS: Final = "toolway.parts"
TRANSPORT_ENTRY_POINTS: Final = "toolway.transports"
AUDIT_ENTRY_POINTS: Final = "toolway.audit_sinks"
_loaded: Final[dict[str, Part]] = {}
_transports: Final[dict[str, ServerTransport]] = {}
_foreign: Final[dict[str, Mapping[str, str]]] = {}  # entry points of other distributions, by group


def built_in() -> Iterator[Part]:
    """Yield all built-in parts, in table order."""
    return (_load(name, path) for name, path in BUILT_IN.items())


def in_use() -> list[Part]:
    """Return the parts that a gateway uses: the built-in ones, and those that its configuration mentions.

    An installed but unused part therefore never runs, and startup does not read the metadata of all distributions.
    """
    return [*built_in(), *(part for name, part in _loaded.items() if name not in BUILT_IN)]


def foreign() -> Mapping[str, str]:
    """Return the third-party parts in use, with the name and version of their distribution."""
    return _distributions([part.name for part in in_use() if part.name not in BUILT_IN], ENTRY_POINTS)


def foreign_transports() -> Mapping[str, str]:
    """Return the third-party transports that server entries use, with the name and version of their distribution."""
    return _distributions([name for name in _transports if name not in BUILT_IN], TRANSPORT_ENTRY_POINTS)


def _distributions(names: list[str], group: str) -> Mapping[str, str]:
    if not names:
        return {}
    found = {each.name: each.dist for each in _entry_points(group)}
    return {name: f"{dist.name} {dist.version}" if (dist := found.get(name)) else "" for name in names}


def all_parts() -> Iterator[Part]:
    """Yield all parts: the built-in ones, then third-party parts sorted by name."""
    yield from built_in()
    for name, path in sorted(_find_foreign(ENTRY_POINTS).items()):
        yield _load(name, path)


def names() -> set[str]:
    """Return the names of all installed parts, without importing them."""
    return {*BUILT_IN, *_find_foreign(ENTRY_POINTS)}


def by_setting(key: str) -> Part | None:
    """Return the part that owns this key of the `toolway` block, or None if no part does.

    Other distributions are checked last, so a file that only has built-in keys does not read their metadata.
    """
    return next((part for part in all_parts() if key in part.setting_keys), None)


def by_gateway_key(key: str) -> Part | None:
    """Return the part that owns this key of the `toolway.gateway` block, or None if no part does."""
    return next((part for part in all_parts() if key in part.gateway_keys), None)


def gateway_keys() -> list[str]:
    """Return the keys of the `toolway.gateway` block that parts own."""
    return [key for part in all_parts() for key in part.gateway_keys]


def entry_keys() -> list[str]:
    """Return the keys of server entries that only parts read."""
    return [key for part in in_use() for key in part.entry_keys]


def by_server_name(word: str) -> Part | None:
    """Return the part that looks up a server of this name for `toolway add`, or None."""
    return next((part for part in in_use() if part.names_server(word)), None)


def by_prefix(key: str) -> Part | None:
    """Return the part that an unknown `toolway` key was probably meant for, or None if there is none."""
    prefix = key.lower()
    return next((part for part in all_parts() if prefix.startswith(part.setting_prefixes)), None)


def by_command(name: str) -> Part | None:
    """Return the part with this command, or None. Third-party parts are checked last."""
    return next((part for part in all_parts() if name in part.commands), None)


def former_commands() -> Mapping[str, str]:
    """Return the former names of part commands, with their current names."""
    return {old: new for part in built_in() for old, new in part.former_commands.items()}


def audit_sinks() -> Mapping[str, str]:
    """Return the audit log storages that the parts in use add, as `toolway.audit.to` → `module:function`."""
    return {kind: path for part in in_use() for kind, path in part.audit_sinks.items()}


def find_audit_sink(kind: str) -> str:
    """Return the `module:function` that a part or another distribution brings for a kind of audit log; "" if none."""
    return audit_sinks().get(kind) or _find_foreign(AUDIT_ENTRY_POINTS).get(kind, "")


def audit_kinds() -> list[str]:
    """Return the kinds of audit logs that parts and other distributions bring."""
    return [*audit_sinks(), *sorted(_find_foreign(AUDIT_ENTRY_POINTS))]


def foreign_audit_sinks(kind: str) -> Mapping[str, str]:
    """Return this kind of audit log, if another distribution brings it, with that one's name and version."""
    is_foreign = kind and kind not in audit_sinks() and kind in _find_foreign(AUDIT_ENTRY_POINTS)
    return _distributions([kind] if is_foreign else [], AUDIT_ENTRY_POINTS)


def guarding() -> Iterator[Part]:
    """Yield the parts that have a start guard."""
    yield from (_load(name, BUILT_IN[name]) for name in GUARDING)
    yield from (part for name, part in list(_loaded.items()) if name not in BUILT_IN and part.start_guard)


def start_guards() -> Mapping[str, StartGuard]:
    """Return each part's start guard, by part name."""
    return {part.name: _create_once(part.start_guard) for part in guarding()}


def guard_checks() -> Mapping[str, GuardChecks]:
    """Return what commands report about start guards, by part name."""
    return {part.name: _create_once(part.guard_checks) for part in guarding() if part.guard_checks}


@cache
def _create_once(path: str) -> Any:
    return _create(path)


def entry_files(config_file: str) -> list[str]:
    """Return the paths of the files next to a config file that start guards read. The files may not exist."""
    folder = os.path.dirname(config_file)
    return [os.path.join(folder, part.entry_file) for part in guarding() if part.entry_file]


def metrics() -> Mapping[str, Metric]:
    """Return the metrics of all parts in use, by name."""
    return {name: each for part in in_use() for name, each in part.metrics.items()}


def key_attributes() -> Mapping[str, KeyAttribute]:
    """Return the attributes that the parts in use add to API keys, by name."""
    return {name: each for part in in_use() for name, each in part.key_attributes.items()}


def own_transports() -> Iterator[ServerTransport]:
    """Yield the transports of all built-in parts."""
    return (found for name in BUILT_IN if (found := own_transport(name)) is not None)


def own_transport(name: str) -> ServerTransport | None:
    """Return the transport of the built-in part with this name, or None if there is none."""
    if name not in _transports and name in BUILT_IN and (path := _load(name, BUILT_IN[name]).transport):
        _transports[name] = _create(path)
    return _transports[name] if name in BUILT_IN and name in _transports else None


def transport_names() -> list[str]:
    """Return the names of the built-in parts' transports."""
    return [name for name in BUILT_IN if own_transport(name) is not None]


def has_transport(name: str) -> bool:
    """Return True if a part or another distribution has a transport with this name. The latter is not imported."""
    return own_transport(name) is not None or name in _find_foreign(TRANSPORT_ENTRY_POINTS)


def transport(name: str) -> ServerTransport | None:
    """Return the transport with this name, from a part or another distribution, or None if there is none.

    The name is a key, a type, or the URL scheme in a server entry. Raises `ConfigError` if the other distribution
    cannot be loaded.
    """
    found = own_transport(name) or _transports.get(name)
    if found is None and (path := _find_foreign(TRANSPORT_ENTRY_POINTS).get(name)):
        try:
            found = _transports[name] = _create(path)
        except Exception as exc:
            detail = f"{path}: {type(exc).__name__}: {exc}"
            message = f"the transport {name} cannot be loaded"
            raise ConfigError(message, detail=detail, hint="reinstall its package", code="E-CONFIG-TYPE") from exc
    return found


def _load(name: str, path: str) -> Part:
    found = _loaded.get(name)
    if found is None:
        found = _loaded[name] = _create(path)
    return found


def _create(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)()


def _find_foreign(group: str) -> Mapping[str, str]:
    if group not in _foreign:
        _foreign[group] = {each.name: each.value for each in _entry_points(group)}
    return _foreign[group]


def _entry_points(group: str) -> list[EntryPoint]:
    """Return an entry point group's entries, except those named like a built-in part. This is slow."""
    from importlib.metadata import entry_points  # seldom needed

    return [each for each in entry_points(group=group) if each.name not in BUILT_IN]
