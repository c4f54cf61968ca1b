"""Settings of a config file's `toolway` block: gateway, toolsets, audit log, alerts and so on.

"toolway": {
  "gateway": {"port": 8765, "hosts": ["tools.example"], "origins": ["https://app.example"]},
  "toolsets": {"triage": {"tools": ["github.*", "!github.delete_*"], "rename": {"github.search_issues": "search"}}},
  "audit": {"to": "sqlite", "keepDays": 90},
  "alerts": {"folder": "/var/lib/toolway/alerts", "webhook": "https://hooks.example/toolway"},
  "telemetry": {"metrics": true, "traces": {"endpoint": "http://localhost:4318", "sample": 0.01}, "log": "json"},
  "search": {"model": "minilm"},
  "approve": {"destructive": "client", "bank.*": "admin"},
  "policy": "policy.cedar",
  "agents": {"triage": {"model": "openai:gpt-5", "tools": ["github.*"], "budget": "0.50usd,40calls"}},
  "addresses": {"allow": ["jira.corp.example", "*.lab.example", "10.0.0.0/8"]}
}

`"audit": true` and `"alerts": true` use the defaults. Without the key, or with `false`, nothing is written.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from urllib.parse import urlsplit

import msgspec

from toolway._closest import did_you_mean
from toolway.config.field_reader import (
    CONFIG_KEY_CODE,
    FieldReader,
    field_error,
    parse_optional_block,
    renamed_hint,
    require_object,
    shorten_key,
)
from toolway.config.foreign_keys import is_descriptive_key
from toolway.config.schema import ConfigIssue, Server, check_server_name
from toolway.config.secret_refs import find_unset_variables
from toolway.errors import ConfigError
from toolway.network.listed_urls import parse_model_url
from toolway.network.policy import PUBLIC_ONLY, NetworkPolicy, canonical_host, host_of, is_private_host
from toolway.part_api import registry

if TYPE_CHECKING:
    from toolway.config.admission.entry import AdmissionPolicy
    from toolway.config.agent_settings import ConfiguredAgent
    from toolway.part_api.part import Implied
    from toolway.types import Json

DEFAULT_GATEWAY_PORT: Final = 8765
AUDIT_LOG_KINDS: Final = ("sqlite", "jsonl", "postgresql")  # our own
SECONDS_PER_DAY: Final = 86_400.0
RELOAD_RULES: Final = ("approved", "all")
LogFormat = Literal["text", "json"]
LOG_FORMATS: Final = ("text", "json")
InvisibleCharacters = Literal["remove", "keep", "hide"]
INVISIBLE_CHARACTERS: Final = ("remove", "keep", "hide")
#: Keys of the `toolway` block that are not of a part.
BLOCK_KEYS: Final = (
    *("addresses", "agents", "alerts", "audit", "gateway", "modelUrls"),
    *("telemetry", "timeout", "toolsets", "workflows"),
)
#: Keys of the block `gateway` that are not of a part.
_GATEWAY_KEYS: Final = (
    *("host", "port", "url", "hosts", "origins", "localTokenFrom", "allowedCommands", "allowedEnv", "allowedVolumes"),
    *("invisibleCharacters", "dropNulls", "pins", "ignoredChanges", "reload"),
)
MAX_UNKNOWN_KEYS: Final = 32  # of the block that are named
#: /mcp/server/<name> is the endpoint of one server, /mcp/search that of everything, found by search.
_RESERVED_NAMES: Final = ("server", "search")


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Settings of the audit log of calls: storage, retention, and logged content."""

    to: str = "sqlite"  # sqlite, jsonl, postgresql, or a kind that an installed package adds
    file: str = ""  # file for sqlite and jsonl; default: a file in the gateway's state folder
    address: str = field(default="", repr=False)  # URL of the PostgreSQL database: postgresql://user@host/database
    name: str = "gateway"  # name of the log in PostgreSQL; each gateway that writes to the same table needs its own
    retention: float = 90 * SECONDS_PER_DAY  # seconds to keep entries; 0 keeps them forever. In a file: keepDays
    arguments: bool = False  # log call arguments, with secrets removed; otherwise only a digest of them
    redact: tuple[str, ...] = ()  # more argument names whose values are hidden
    max_text_chars: int = 2048  # characters logged of each string in the arguments. In a file: maxTextChars
    digest_key_file: str = ""  # file with the digest key; default: next to the log
    shared_name: bool = False  # cluster: nodes share a log name and table, each with its own hash chain
    digest_key: bytes = field(default=b"", repr=False)  # cluster: digest key, used instead of a file
    checkpoints: bool = True  # sign the end of the log every hour, so removing the end is detected
    checkpoint_webhook: str = field(
        default="", repr=False
    )  # URL that gets each checkpoint. In a file: checkpointWebhook
    signer: str = ""  # "command:…": program that signs with an HSM or KMS; default: a key in the state folder
    signer_key: str = ""  # file with that program's public key, in PEM format. In a file: signerKey
    signing_key_file: str = ""  # file with the private key; default: next to the log
    signer_held: bool = False  # the signer was not written by a user and needs review

    @staticmethod
    def from_location(location: str | os.PathLike[str] | AuditSettings) -> AuditSettings:
        """Create settings from a file path (`.jsonl`, else SQLite) or a PostgreSQL URL."""
        if isinstance(location, AuditSettings):
            return location
        text = os.fspath(location)
        if text.startswith(("postgresql://", "postgres://")):
            return AuditSettings(to="postgresql", address=text)
        return AuditSettings(to="jsonl" if text.endswith(".jsonl") else "sqlite", file=text)

    def with_folder(self, folder: str | os.PathLike[str]) -> AuditSettings:
        """Return the settings with each missing path (log file, digest key, signing key) set to a file in `folder`."""
        folder_path = os.fspath(folder)
        file = self.file or os.path.join(folder_path, f"audit.{self.to}") if self._is_in_file else ""
        return replace(
            self,
            file=file,
            digest_key_file=self.digest_key_file or os.path.join(folder_path, "audit.key"),
            signing_key_file=self.signing_key_file or os.path.join(folder_path, "audit-signing.pem"),
        )

    def for_cluster(self, tenant_key: bytes) -> AuditSettings:
        """Return the settings for a node (gateway process) of a cluster.

        The digest key is derived from the key of the tenant: equal values have equal digests in the logs of all nodes.
        """
        digest_key = hmac.digest(tenant_key, b"toolway audit", "sha256").hex().encode()
        return replace(self, shared_name=not self._is_in_file, digest_key=digest_key)

    @property
    def place(self) -> str:
        """The name of the log in messages. It has no secret: an address may contain a password."""
        return self.file or f"the log {self.name!r} in {'PostgreSQL' if self.to == 'postgresql' else self.to}"

    @property
    def _is_in_file(self) -> bool:
        """True if the log is on this machine. A log of an installed package is, unless it has an address."""
        return self.to in ("sqlite", "jsonl") or not self.address


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """Destination of alerts: a folder of files, a webhook, or both.

    Example:
        Hub("mcp.json", alerts=AlertSettings(folder="alerts", webhook="https://chat.example/hooks/7"))
    """

    folder: str = ""  # folder with one file per alert; a gateway defaults to its state folder
    webhook: str = field(default="", repr=False)  # URL that receives each alert as a POST; its path may be a secret
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # headers of the webhook request
    asks_after: float = 600.0  # seconds a workflow run may wait for a user before an alert is raised


def alert_settings_from(location: str | os.PathLike[str] | AlertSettings) -> AlertSettings:
    """Create alert settings from the path of a folder, or from the URL of a webhook."""
    if isinstance(location, AlertSettings):
        return location
    text = os.fspath(location)
    if text.startswith(("https://", "http://")):
        return AlertSettings(webhook=text)
    return AlertSettings(folder=os.path.expanduser(text))


class TraceSettings(msgspec.Struct, frozen=True):
    """Destination and sampling rate of the OpenTelemetry spans of calls."""

    endpoint: str = ""  # URL of an OTLP/HTTP collector, without the path; if empty, the OTEL_… variables decide
    sample: float | None = None  # share (0 to 1) of calls without a caller's trace; None: from OTEL_…, or all


class TelemetrySettings(msgspec.Struct, frozen=True):
    """Metrics, call history, traces and log format of a gateway.

    The standard variables `OTEL_EXPORTER_OTLP_ENDPOINT` etc. also enable traces. Credentials for a collector, such as a
    token, are accepted only in `OTEL_EXPORTER_OTLP_HEADERS`.
    """

    metrics: bool = True  # serve metrics at /metrics
    calls: bool = True  # keep recent calls for the dashboard and `toolway calls`, and log failures
    traces: TraceSettings | None = None  # spans; None: only if an OTEL_… variable turns them on
    log: LogFormat = "text"  # log lines as plain text, or as JSON for programs


class ToolsetSettings(msgspec.Struct, frozen=True):
    """Named selection of tools with its own endpoint, /mcp/<name>."""

    tools: tuple[str, ...] = ()  # patterns of server.tool; the last match decides, `!` excludes
    rename: Mapping[str, str] = {}  # server.tool → published name
    describe: Mapping[str, str] = {}  # server.tool → published description
    resources: tuple[str, ...] | None = None  # patterns of servers with resources; default: servers with all tools
    search: bool = False  # list the meta-tools of tool search instead of the tools; all tools stay callable
    show: tuple[str, ...] = ()  # with search: patterns of server.tool to list next to the meta-tools


class GatewaySettings(msgspec.Struct, frozen=True):
    """Settings of the gateway: addresses, access, toolsets, audit log, alerts and telemetry."""

    host: str = "127.0.0.1"  # address to listen on
    port: int = DEFAULT_GATEWAY_PORT  # port to listen on; 0: any free port
    url: str = ""  # the gateway's public URL, for links; makes it public; default: the login URL without /mcp
    hosts: tuple[str, ...] = ()  # more host names for clients to use; one beyond loopback makes the gateway public
    origins: tuple[str, ...] = ()  # origins of web pages that may use the gateway
    local_token_from: tuple[str, ...] = ()  # networks whose machines may use this machine's token; default: none
    allowed_commands: tuple[str, ...] = ()  # command lines, or their first words, that /admin may start; default: none
    allowed_env: tuple[str, ...] = ()  # environment variables that /admin may set for them; default: none
    allowed_volumes: tuple[str, ...] = ()  # folders that a container started through /admin may mount; default: none
    invisible_characters: InvisibleCharacters = "remove"  # in definitions for clients: remove, keep, or hide the item
    drop_nulls: bool = False  # drop null arguments that are optional and may not be null, such as those CrewAI sends
    pins: str = ""  # changed definitions: warn, hold, or review each; "": hold if the gateway is public, else warn
    ignored_changes: Mapping[str, tuple[str, ...]] = {}  # changes to ignore: server.tool → paths
    sandbox: str = ""  # default for entries without one: guard or auto; "": guard if public and bubblewrap is installed
    toolsets: Mapping[str, ToolsetSettings] = {}  # named selections of tools, each with its own endpoint
    audit: AuditSettings | None = None  # audit log; None: no audit log
    alerts: AlertSettings | None = None  # alerts that need an administrator; None: no files, no webhook
    telemetry: TelemetrySettings = msgspec.field(default_factory=TelemetrySettings)  # metrics, traces and logs
    workflows: tuple[str | Json, ...] = ()  # workflow files ("flows/*.yaml") or definitions to offer as tools
    agents: Mapping[str, ConfiguredAgent] = {}  # agents to offer as tools, by name
    model_urls: tuple[str, ...] = ()  # more addresses that may receive a provider's API key. In a file: modelUrls
    parts: Mapping[str, Any] = {}  # settings of parts, by part name
    reload: str = "approved"  # approved: commands other programs wrote to the file need your review; all: they are used

    @property
    def public_url(self) -> str:
        """Public URL of the gateway, without a trailing slash; "" if it is not configured."""
        return self.url or next((each.url for each in self.implied() if each.url), "")

    @property
    def access(self) -> Mapping[str, Sequence[str]]:
        """Patterns of tools that user groups may use, from parts' settings."""
        return {group: tools for each in self.implied() for group, tools in each.access.items()}

    def implied(self) -> list[Implied]:
        """Return what parts' settings mean for the whole gateway."""
        return [part.implied(self.parts[part.name]) for part in registry.in_use() if part.name in self.parts]

    @property
    def admission(self) -> AdmissionPolicy:
        """What a server entry sent to `/admin` may contain."""
        from toolway.config.admission.entry import AdmissionPolicy

        variables = frozenset(self.allowed_env)
        volumes = tuple(folder.rstrip("/") for folder in self.allowed_volumes)
        return AdmissionPolicy(self.allowed_commands, variables, named_by_user=variables, volumes=volumes)


# -- gateway and toolsets ---------------------------------------------------------------------------------------------


def parse_gateway(block: Any, variables: Mapping[str, str]) -> GatewaySettings:
    """Return the gateway settings of a `toolway` block; the defaults without a block.

    Raises `ConfigError` if a setting is invalid, renamed or unknown.
    """
    if block is None:
        return GatewaySettings()
    if not isinstance(block, Mapping):
        raise field_error("toolway", "an object", block)
    _reject_misspelt_keys(block)
    fields = FieldReader(require_object("toolway.gateway", block.get("gateway")), variables)
    port = fields.get_int("port", DEFAULT_GATEWAY_PORT)
    if port > 65535:
        raise field_error("toolway.gateway.port", "a port", port)
    settings = GatewaySettings(
        host=fields.get_text("host") or "127.0.0.1",
        port=port,
        url=_parse_url(fields),
        hosts=fields.get_texts("hosts"),
        origins=fields.get_texts("origins"),
        local_token_from=_parse_networks(fields),
        allowed_commands=_parse_commands(fields),
        allowed_env=_parse_variables(fields),
        allowed_volumes=_parse_volumes(fields),
        invisible_characters=cast(
            InvisibleCharacters,
            fields.get_choice("invisibleCharacters", INVISIBLE_CHARACTERS, "remove"),
        ),
        drop_nulls=fields.get_bool("dropNulls", False),
        pins=fields.get_choice("pins", ("warn", "hold", "review"), ""),
        ignored_changes=_parse_ignored_changes(fields, variables),
        reload=fields.get_choice("reload", RELOAD_RULES, "approved"),
        sandbox=fields.get_choice("sandbox", ("guard", "auto"), ""),
        toolsets={
            _check_toolset_name(name): _parse_toolset(name, value, variables)
            for name, value in require_object("toolway.toolsets", block.get("toolsets")).items()
        },
        audit=parse_audit(block.get("audit"), variables),
        alerts=parse_alerts(block.get("alerts"), variables),
        telemetry=parse_telemetry(block.get("telemetry"), variables),
        workflows=_parse_workflows(block.get("workflows"), variables),
        agents=_parse_agents(block.get("agents"), variables),
        model_urls=_parse_model_urls(block, variables),
        parts=_parse_parts(block, fields, variables),
    )
    if fields.remaining:
        *first, last = (*_GATEWAY_KEYS, *registry.gateway_keys())
        fields.reject_unknown("toolway.gateway", f"{', '.join(first)} and {last}")
    return settings


def _parse_networks(fields: FieldReader) -> tuple[str, ...]:
    networks = fields.get_texts("localTokenFrom")
    for network in networks:
        try:
            ip_network(network)
        except ValueError:
            raise _network_error(network) from None
    return networks


def _network_error(network: str) -> ConfigError:
    key, expected = "toolway.gateway.localTokenFrom", "networks such as 10.1.0.0/16"
    try:
        whole = ip_network(network, strict=False)
    except ValueError:
        return field_error(key, expected, network)
    address = network.partition("/")[0]
    return ConfigError(
        f"{key} must be {expected}",
        detail=f"{network} is an address inside a network",
        hint=f'use "{whole}" for the network, or "{address}" for the address',
        code=CONFIG_KEY_CODE,
    )


def _parse_url(fields: FieldReader) -> str:
    url = fields.get_plain_text("url")
    if not url:
        return ""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits or not url.isascii() or not url.isprintable() or set(url) & set(' "<>\\?#@'):
        raise field_error(
            "toolway.gateway.url",
            "a URL with http:// or https://, such as https://tools.example, without user and query",
            url,
        )
    return url.rstrip("/")


def _parse_commands(fields: FieldReader) -> tuple[str, ...]:
    from toolway.config.admission.command_line import split_line

    lines = fields.get_texts("allowedCommands")
    for line in lines:
        try:
            split_line(line)
        except ValueError as exc:
            raise ConfigError(
                "invalid command line in toolway.gateway.allowedCommands",
                detail=str(exc),
                hint='use one line, as in a shell: "npx -y name@1.2.3"',
                code=CONFIG_KEY_CODE,
            ) from None
    return lines


def find_unknown_keys(block: Any) -> list[ConfigIssue]:
    """Return an issue for each key of the `toolway` block that has no effect.

    It is an error if the key is a misspelt or an old one: a misspelt `access` would allow what it should restrict.
    """
    others = [key for key in map(str, block) if key not in BLOCK_KEYS] if isinstance(block, Mapping) else []
    if not others:
        return []
    unknown = [key for key in others if registry.by_setting(key) is None]
    if not unknown:
        return []
    known = sorted((*BLOCK_KEYS, *(key for part in registry.all_parts() for key in part.setting_keys)))

    issues = []
    for key in unknown[:MAX_UNKNOWN_KEYS]:
        if not is_descriptive_key(key):
            meant = renamed_hint(f"toolway.{key}") or did_you_mean(key[:80].lower(), known, 0.7)
            message, hint = f"unknown key toolway.{shorten_key(key)}", meant or f"known keys: {', '.join(known)}"
            issues.append(
                ConfigIssue("", message, "it has no effect", hint, CONFIG_KEY_CODE, "error" if meant else "warning")
            )
    return issues


def _reject_misspelt_keys(block: Mapping[str, Any]) -> None:
    for issue in find_unknown_keys(block):
        if issue.severity == "error":
            raise ConfigError(issue.message, detail=issue.detail, hint=issue.hint, code=issue.code)


def _parse_parts(block: Mapping[str, Any], gateway: FieldReader, variables: Mapping[str, str]) -> Mapping[str, Any]:
    """Return parts' settings by part name. A part without a key in the block is not loaded.

    Their keys of the block `gateway` are removed from its reader. Raises `ConfigError` if a key of the block is
    misspelt, and would limit nothing.
    """
    others = [key for key in map(str, block) if key not in BLOCK_KEYS]
    named = []
    for key in others:
        if (found := registry.by_setting(key)) is not None:
            named.append(found)
        elif (meant := registry.by_prefix(key)) is not None:
            hint = f"use {' or '.join(map(repr, meant.setting_keys))}"
            raise ConfigError("unknown key in toolway", detail=shorten_key(key), hint=hint, code=CONFIG_KEY_CODE)
    for key in list(gateway.remaining):
        if (found := registry.by_gateway_key(key)) is not None:
            del gateway.remaining[key]
            named.append(found)
    return {each.name: each.parse_settings(block, variables) for each in dict.fromkeys(named)}


def _parse_workflows(value: Any, variables: Mapping[str, str]) -> tuple[str | Json, ...]:
    """Return the file patterns and the inline definitions of `toolway.workflows`.

    Definitions stay as they are: `${…}` in them is an expression of the workflow, not a variable.
    """
    if value is None:
        return ()
    definitions = [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
    texts = [each for each in value if not isinstance(each, dict)] if definitions else value
    patterns = FieldReader({"workflows": texts}, variables).get_texts("workflows")
    for pattern in patterns:
        if not pattern or "**" in pattern:
            raise ConfigError(
                "a pattern in toolway.workflows is not allowed",
                detail=f"found {pattern!r}",
                hint='use file names, or all files of a folder: "flows/*.yaml"',
                code=CONFIG_KEY_CODE,
            )
    return (*patterns, *definitions)


def _parse_agents(value: Any, variables: Mapping[str, str]) -> Mapping[str, ConfiguredAgent]:
    if value is None:
        return {}
    from toolway.config.agent_settings import read_agent_entries

    return read_agent_entries(value, lambda text: FieldReader({"text": text}, variables).get_text("text") or "")


def _parse_model_urls(block: Mapping[str, Any], variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the addresses in `toolway.modelUrls`. Raises `ConfigError` if one is not an http or https URL."""
    found = FieldReader({"modelUrls": block.get("modelUrls")}, variables).get_texts("modelUrls")
    for url in found:
        if parse_model_url(url) is None and not find_unset_variables(url):
            raise ConfigError(
                "an address in toolway.modelUrls is not a URL",
                detail=f"found {url[:200]!r}",
                hint='use "modelUrls": ["https://llm.example/v1"], without a user, query, or fragment',
                code=CONFIG_KEY_CODE,
            )
    return found


def locate_workflows(settings: GatewaySettings, file: str) -> GatewaySettings:
    """Return the settings with absolute patterns of workflow files.

    They were relative to the folder of the config file.
    """
    if not settings.workflows or not file:
        return settings
    folder = os.path.dirname(os.path.abspath(file))
    found = tuple(
        os.path.join(folder, os.path.expanduser(each)) if isinstance(each, str) else each for each in settings.workflows
    )
    return msgspec.structs.replace(settings, workflows=found)


def _parse_variables(fields: FieldReader) -> tuple[str, ...]:
    from toolway.config.admission.variables import is_never_allowed

    names = fields.get_texts("allowedEnv")
    for name in names:
        if is_never_allowed(name):
            raise ConfigError(
                "toolway.gateway.allowedEnv has a variable that cannot be allowed",
                detail=f"{name}: it can change what a program loads or connects to",
                hint="set it in the server's entry in the config file instead",
                code=CONFIG_KEY_CODE,
            )
    return names


def _parse_ignored_changes(fields: FieldReader, variables: Mapping[str, str]) -> Mapping[str, tuple[str, ...]]:
    rules = require_object("toolway.gateway.ignoredChanges", fields.remaining.pop("ignoredChanges", None))
    for pattern in rules:
        if "." not in pattern:
            raise field_error("a pattern in toolway.gateway.ignoredChanges", "server.tool, such as weather.*", pattern)
    reader = FieldReader(rules, variables)
    return {pattern: reader.get_texts(pattern) for pattern in rules}


def _parse_volumes(fields: FieldReader) -> tuple[str, ...]:
    folders = fields.get_texts("allowedVolumes")
    for folder in folders:
        if not folder.startswith("/") or not folder.strip("/") or ".." in folder.split("/"):
            raise ConfigError(
                "a folder in toolway.gateway.allowedVolumes must be an absolute path below /",
                detail=f"found {folder}",
                code=CONFIG_KEY_CODE,
            )
    return folders


def _parse_toolset(name: str, value: Any, variables: Mapping[str, str]) -> ToolsetSettings:
    block = require_object(f"toolway.toolsets.{name}", value)
    fields = FieldReader(block, variables)
    toolset = ToolsetSettings(
        fields.get_texts("tools"),
        fields.get_text_map("rename"),
        fields.get_text_map("describe"),
        fields.get_texts("resources") if "resources" in block else None,
        fields.get_bool("search", False),
        fields.get_texts("show"),
    )
    fields.reject_unknown(f"the toolset {name!r}", "tools, rename, describe, resources, search and show")
    if toolset.show and not toolset.search:
        raise ConfigError(
            f"show of the toolset {name!r} has no effect",
            detail="all tools of the toolset are listed, because it has no search",
            hint='add "search": true to the toolset, or remove "show"',
            code=CONFIG_KEY_CODE,
        )
    return toolset


def convert_group_list(
    groups: list[Any], normalize_name: Callable[[str], str]
) -> tuple[dict[str, dict[str, Any]], list[ConfigIssue]]:
    """Convert groups of another host to the form of `toolway.toolsets`; return them with warnings.

    `[{"name": "dev", "servers": ["a", {"name": "c", "tools": ["x"]}]}]` becomes `{"dev": {"tools": ["a.*", "c.x"]}}`.
    """
    found: dict[str, dict[str, Any]] = {}
    issues = []
    for number, group in enumerate(groups, 1):
        name, servers = (group.get("name"), group.get("servers")) if isinstance(group, Mapping) else (None, None)
        patterns = (
            [p for each in servers if (p := _server_patterns(each, normalize_name))]
            if isinstance(servers, list)
            else []
        )
        normalized = normalize_name(name) if isinstance(name, str) else _RESERVED_NAMES[0]
        if normalized in _RESERVED_NAMES or normalized in found or not isinstance(servers, list):
            hint = 'use {"name": "dev", "servers": ["a", "b"]}, each name once and none of them "server" or "search"'
            issues.append(_group_warning(f"group {number} has no effect", hint))
            continue
        found[normalized] = {"tools": [pattern for each in patterns for pattern in each]}
        if len(patterns) < len(servers):
            issues.append(
                _group_warning(
                    f"group {normalized!r} lacks {len(servers) - len(patterns)} of its servers", "use their names"
                )
            )
        unread = [str(key) for key in group if key not in ("name", "servers", "description", "id")]
        if unread:
            keys = ", ".join(map(repr, map(shorten_key, unread[:8])))
            issues.append(_group_warning(f"unknown keys {keys} of group {normalized!r}", "use toolway.toolsets"))
    return found, issues


def _server_patterns(value: Any, normalize_name: Callable[[str], str]) -> list[str]:
    """Return the tool patterns of one server in a group of another host; [] if it has no name."""
    name, tools = (value.get("name"), value.get("tools")) if isinstance(value, Mapping) else (value, None)
    if not isinstance(name, str):
        return []
    chosen = [tool for tool in tools if isinstance(tool, str)] if isinstance(tools, list) else ["*"]
    return [f"{normalize_name(name)}.{tool}" for tool in chosen]


def _group_warning(message: str, hint: str) -> ConfigIssue:
    return ConfigIssue("", message, "it is in the list `groups` next to the servers", hint, CONFIG_KEY_CODE, "warning")


def _check_toolset_name(name: str) -> str:
    if name in _RESERVED_NAMES:
        raise ConfigError(f"toolset name {name!r} is reserved", hint="pick another name", code="E-CONFIG-NAME")
    return check_server_name(name)


# -- audit log and alerts ---------------------------------------------------------------------------------------------


def parse_audit(block: Any, variables: Mapping[str, str]) -> AuditSettings | None:
    """Return the audit log settings under `toolway.audit`; None if the log is off.

    Raises `ConfigError` if a setting is invalid or unknown: a log that differs from its settings is noticed too late.
    """
    return parse_optional_block(
        "toolway.audit", block, AuditSettings(), lambda given: _parse_audit_fields(FieldReader(given, variables))
    )


def _parse_audit_fields(fields: FieldReader) -> AuditSettings:
    settings = AuditSettings(
        to=fields.get_choice("to", AUDIT_LOG_KINDS, "sqlite", more=registry.audit_kinds),
        file=os.path.expanduser(fields.get_plain_text("file")),
        address=fields.get_plain_text("address"),
        name=fields.get_plain_text("name") or "gateway",
        retention=fields.get_int("keepDays", 90) * SECONDS_PER_DAY,
        arguments=fields.get_bool("arguments", False),
        redact=fields.get_texts("redact"),
        max_text_chars=min(fields.get_int("maxTextChars", 2048), 2048),
        checkpoints=fields.get_bool("checkpoints", True),
        checkpoint_webhook=fields.get_plain_text("checkpointWebhook"),
        signer=fields.get_plain_text("signer"),
        signer_key=os.path.expanduser(fields.get_plain_text("signerKey")),
    )
    fields.reject_unknown(
        "toolway.audit",
        "to, file, address, name, keepDays, arguments, redact, maxTextChars, checkpoints, checkpointWebhook, signer "
        "and signerKey",
    )
    _check_audit_signing(settings)
    if settings.to == "postgresql" and not settings.address:
        raise ConfigError(
            "toolway.audit has no database URL",
            hint='add "address": "postgresql://user@host/database"; put the password into ~/.pgpass or PGPASSWORD',
            code=CONFIG_KEY_CODE,
        )
    return settings


def _check_audit_signing(settings: AuditSettings) -> None:
    """Raise `ConfigError` if the signer or the webhook of checkpoints is invalid."""
    import shlex  # few files have a signer

    webhook = settings.checkpoint_webhook
    if webhook and not webhook.startswith(("https://", "http://")):
        raise ConfigError("toolway.audit.checkpointWebhook is not a URL", hint="use https://…", code=CONFIG_KEY_CODE)
    try:
        words = shlex.split(settings.signer.removeprefix("command:"))
    except ValueError:
        words = []
    if settings.signer and not (settings.signer.startswith("command:") and words):
        raise ConfigError(
            "toolway.audit.signer is not a command",
            hint='use "command:/usr/local/bin/sign-with-kms --key audit"',
            code=CONFIG_KEY_CODE,
        )
    if bool(settings.signer) != bool(settings.signer_key):
        raise ConfigError(
            "toolway.audit needs signer and signerKey together",
            detail="the command's signatures are checked with that key",
            hint='add "signer": "command:…" and "signerKey": "public.pem"',
            code=CONFIG_KEY_CODE,
        )


def parse_alerts(block: Any, variables: Mapping[str, str]) -> AlertSettings | None:
    """Return the alert settings under `toolway.alerts`; None if alerts are off.

    Raises `ConfigError` if a setting is invalid or unknown.
    """
    return parse_optional_block(
        "toolway.alerts", block, AlertSettings(), lambda given: _parse_alert_fields(FieldReader(given, variables))
    )


def _parse_alert_fields(fields: FieldReader) -> AlertSettings:
    settings = AlertSettings(
        folder=os.path.expanduser(fields.get_plain_text("folder")),
        webhook=fields.get_plain_text("webhook"),
        headers=fields.get_text_map("headers"),
        asks_after=fields.get_duration("asksAfter", 600.0),
    )
    fields.reject_unknown("toolway.alerts", "folder, webhook, headers and asksAfter")
    if settings.webhook and not settings.webhook.startswith(("https://", "http://")):
        raise ConfigError("toolway.alerts.webhook is not a URL", hint="use https://…", code=CONFIG_KEY_CODE)
    return settings


# -- telemetry --------------------------------------------------------------------------------------------------------


def parse_telemetry(value: Any, variables: Mapping[str, str]) -> TelemetrySettings:
    """Return the telemetry settings under `toolway.telemetry`; the defaults if it is missing.

    Raises `ConfigError` if a setting is invalid or unknown.
    """
    if value is None:
        return TelemetrySettings()
    if not isinstance(value, Mapping):
        raise field_error("toolway.telemetry", "an object", value)
    fields = FieldReader(value, variables)
    traces = fields.remaining.pop("traces", None)
    settings = TelemetrySettings(
        metrics=fields.get_bool("metrics", True),
        calls=fields.get_bool("calls", True),
        traces=parse_optional_block(
            "toolway.telemetry.traces",
            traces,
            TraceSettings(),
            lambda given: _parse_traces(FieldReader(given, variables)),
        ),
        log=cast(LogFormat, fields.get_choice("log", LOG_FORMATS, "text")),
    )
    fields.reject_unknown("toolway.telemetry", "metrics, calls, traces and log")
    return settings


def _parse_traces(fields: FieldReader) -> TraceSettings:
    sample = fields.remaining.pop("sample", None)
    if sample is not None and (isinstance(sample, bool) or not isinstance(sample, int | float) or not 0 <= sample <= 1):
        raise field_error("toolway.telemetry.traces.sample", "a number from 0 to 1", sample)
    endpoint = fields.get_text("endpoint") or ""
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise ConfigError(
            "toolway.telemetry.traces.endpoint must be the URL of an OTLP/HTTP collector",
            hint="use a URL such as http://localhost:4318",
            code=CONFIG_KEY_CODE,
        )
    fields.reject_unknown("toolway.telemetry.traces", "endpoint and sample")
    return TraceSettings(endpoint, float(sample) if sample is not None else None)


# -- network policy ---------------------------------------------------------------------------------------------------


def parse_network_policy(block: Any, variables: Mapping[str, str]) -> NetworkPolicy:
    """Return the network policy under `toolway.addresses`; public addresses only if missing.

    Raises `ConfigError` if a rule is invalid or a key is unknown.
    """
    value = block.get("addresses") if isinstance(block, Mapping) else None
    if value is None:
        return PUBLIC_ONLY
    if not isinstance(value, Mapping):
        raise field_error("toolway.addresses", "an object", value)
    fields = FieldReader(value, variables)
    found = NetworkPolicy(fields.get_texts("allow"))
    fields.reject_unknown("toolway.addresses", "allow")
    return found


def with_network_policy(server: Server, policy: NetworkPolicy) -> Server:
    """Return `server` with its network policy extended by `policy`.

    A server without a URL stays unchanged.
    """
    if policy == PUBLIC_ONLY or server.command is not None or server.instance is not None:
        return server
    return replace(server, network_policy=server.network_policy.union(policy))


def find_private_hosts(servers: Mapping[str, Mapping[str, Any]], policy: NetworkPolicy) -> list[ConfigIssue]:
    """Return a warning for each server entry whose URL has an internal host name (`wiki.corp`).

    Host names that `policy` allows cause no warning.
    """
    found = []
    for name, entry in servers.items():
        host = canonical_host(host_of(str(entry.get("url") or "")))
        if is_private_host(host) and not policy.allows_name(host):
            allow = json.dumps({"toolway": {"addresses": {"allow": [host]}}})[1:-1]
            found.append(
                ConfigIssue(
                    name,
                    f"{host} appears to be on a private network",
                    detail="non-public addresses must be allowed explicitly",
                    hint=f"add to the file: {allow}",
                    code="E-HTTP-ADDRESS",
                    severity="warning",
                )
            )
    return found
