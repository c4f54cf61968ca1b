"""What the `toolway` block of a file says about the gateway: where it listens, and its groups of tools.

"toolway": {
  "gateway": {"port": 8765, "hosts": ["tools.example"], "origins": ["https://app.example"]},
  "groups": {"triage": {"tools": ["github.*", "!github.delete_*"], "rename": {"github.search_issues": "search"}}}
}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from toolway.config.audit import AuditSettings, Escalating, read_audit, read_escalations
from toolway.config.fields import Fields, wrong
from toolway.config.spec import check_server_name
from toolway.config.telemetry import TelemetrySettings, read_telemetry
from toolway.errors import ConfigError

DEFAULT_PORT: Final = 8765
_RESERVED: Final = "server"  # /mcp/server/<name> is the endpoint of one server


@dataclass(frozen=True, slots=True)
class Group:
    """A named selection of tools with an endpoint of its own, /mcp/<name>."""

    tools: tuple[str, ...] = ()  # patterns of server.tool; the last one that fits decides, `!` takes away
    rename: Mapping[str, str] = field(default_factory=dict)  # server.tool → the name it is shown under
    describe: Mapping[str, str] = field(default_factory=dict)  # server.tool → the description that is shown


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """How the hub is offered to others."""

    host: str = "127.0.0.1"  # the address it listens on
    port: int = DEFAULT_PORT  # 0: any that is free
    hosts: tuple[str, ...] = ()  # further names by which clients may call it
    origins: tuple[str, ...] = ()  # web pages that may use it
    commands: tuple[str, ...] = ()  # commands that an administrator may start through /admin; none without it
    groups: Mapping[str, Group] = field(default_factory=dict)  # by their names
    audit: AuditSettings | None = None  # none is kept without it
    escalations: Escalating | None = None
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)  # what others see of it


def read_block(block: Any, variables: Mapping[str, str]) -> GatewaySettings:
    """The settings in a `toolway` block. Raises `ConfigError`."""
    if block is None:
        return GatewaySettings()
    if not isinstance(block, Mapping):
        raise wrong("toolway", "an object", block)
    fields = Fields(_object("toolway.gateway", block.get("gateway")), variables)
    port = fields.whole("port", DEFAULT_PORT)
    if port > 65535:
        raise wrong("toolway.gateway.port", "a port", port)
    settings = GatewaySettings(
        host=fields.text("host") or "127.0.0.1",
        port=port,
        hosts=fields.texts("hosts"),
        origins=fields.texts("origins"),
        commands=fields.texts("commands"),
        groups={
            _group_name(name): _group(name, value, variables)
            for name, value in _object("toolway.groups", block.get("groups")).items()
        },
        audit=read_audit(block.get("audit"), variables),
        escalations=read_escalations(block.get("escalations"), variables),
        telemetry=read_telemetry(block.get("telemetry"), variables),
    )
    fields.nothing_left("toolway.gateway", "host, port, hosts, origins and commands")
    return settings


def _group(name: str, value: Any, variables: Mapping[str, str]) -> Group:
    fields = Fields(_object(f"toolway.groups.{name}", value), variables)
    group = Group(fields.texts("tools"), fields.text_map("rename"), fields.text_map("describe"))
    fields.nothing_left(f"the group {name!r}", "tools, rename and describe")
    return group


def _group_name(name: str) -> str:
    if name == _RESERVED:
        raise ConfigError(f"a group cannot be called {name!r}", fix="choose another name", code="E-CONFIG-NAME")
    return check_server_name(name)


def _object(key: str, value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise wrong(key, "an object", value)
    return value
