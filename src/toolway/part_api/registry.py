"""The registry of parts: each one's name and module, imported on demand.

Parts of other distributions are found by the entry point group `toolway.parts`. Finding them means reading the
metadata of every installed distribution, so we only do it for unknown names.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Final

from toolway.part_api.part import KeyAttribute, Metric, Part

#: Built-in parts: name → class, in the order they are opened. A new part needs one line here.
BUILT_IN: Final[Mapping[str, str]] = {
    "identity": "toolway.parts.identity:Identity",
    "policy": "toolway.parts.policy:AccessPolicies",
    "budgets": "toolway.parts.budgets:Budgets",
    "approvals": "toolway.parts.approvals:Approvals",
    "flows": "toolway.parts.flows:Flows",
    "workflows": "toolway.parts.workflows:GatewayWorkflows",
    "agents": "toolway.parts.agents:GatewayAgents",
    "audit": "toolway.parts.audit:AuditLogs",
    "pins": "toolway.parts.pins:PinnedDefinitions",
}
ENTRY_POINTS: Final = "toolway.parts"
_loaded: Final[dict[str, Part]] = {}
_foreign: dict[str, str] | None = None  # of other distributions; None if they are not known yet


def built_in() -> Iterator[Part]:
    """Yield all built-in parts, in table order."""
    return (_load(name, path) for name, path in BUILT_IN.items())


def in_use() -> list[Part]:
    """Return the parts a gateway uses: the built-in ones, and those its configuration mentions.

    So an installed but unused part never runs, and startup does not read the metadata of all distributions.
    """
    return [*built_in(), *(part for name, part in _loaded.items() if name not in BUILT_IN)]


def foreign() -> Mapping[str, str]:
    """Return the third-party parts in use, with the name and version of their distribution."""
    names = [part.name for part in in_use() if part.name not in BUILT_IN]
    if not names:
        return {}
    from importlib.metadata import entry_points

    found = {each.name: each.dist for each in entry_points(group=ENTRY_POINTS)}
    return {name: f"{dist.name} {dist.version}" if (dist := found.get(name)) else "" for name in names}


def all_parts() -> Iterator[Part]:
    """Yield all parts: the built-in ones, then third-party parts sorted by name."""
    yield from built_in()
    for name, path in sorted(_find_foreign().items()):
        yield _load(name, path)


def names() -> set[str]:
    """Return the names of all installed parts, without importing them."""
    return {*BUILT_IN, *_find_foreign()}


def by_setting(key: str) -> Part | None:
    """Return the part that owns this key of the `toolway` block, or None.

    Other distributions are asked last, so a file with our keys alone does not read their metadata.
    """
    return next((part for part in all_parts() if key in part.setting_keys), None)


def by_gateway_key(key: str) -> Part | None:
    """Return the part that owns this key of the `toolway.gateway` block, or None."""
    return next((part for part in all_parts() if key in part.gateway_keys), None)


def gateway_keys() -> list[str]:
    """Return the keys that parts own in the `toolway.gateway` block."""
    return [key for part in all_parts() for key in part.gateway_keys]


def by_prefix(key: str) -> Part | None:
    """Return the part that an unknown `toolway` key was probably meant for, or None."""
    prefix = key.lower()
    return next((part for part in all_parts() if prefix.startswith(part.setting_prefixes)), None)


def by_command(name: str) -> Part | None:
    """Return the part with this command, or None. Third-party parts are asked last."""
    return next((part for part in all_parts() if name in part.commands), None)


def former_commands() -> Mapping[str, str]:
    """Return the former names of part commands, with their current names."""
    return {old: new for part in built_in() for old, new in part.former_commands.items()}


def audit_sinks() -> Mapping[str, str]:
    """Return the storages of audit logs that the parts in use add: value of `toolway.audit.to` → `module:function`."""
    return {kind: path for part in in_use() for kind, path in part.audit_sinks.items()}


def metrics() -> Mapping[str, Metric]:
    """Return the metrics of all parts in use, by name."""
    return {name: each for part in in_use() for name, each in part.metrics.items()}


def key_attributes() -> Mapping[str, KeyAttribute]:
    """Return the attributes that the parts in use add to API keys, by name."""
    return {name: each for part in in_use() for name, each in part.key_attributes.items()}


def _load(name: str, path: str) -> Part:
    found = _loaded.get(name)
    if found is None:
        module, _, attribute = path.partition(":")
        found = _loaded[name] = getattr(importlib.import_module(module), attribute)()
    return found


def _find_foreign() -> Mapping[str, str]:
    global _foreign
    if _foreign is None:
        from importlib.metadata import entry_points  # slow, and seldom needed

        found = {each.name: each.value for each in entry_points(group=ENTRY_POINTS)}
        _foreign = {name: path for name, path in found.items() if name not in BUILT_IN}
    return _foreign
