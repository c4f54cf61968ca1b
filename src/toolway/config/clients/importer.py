"""Imports server entries from MCP clients' configuration files, converting them to our config file's keys."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from toolway._os import SYSTEM_NAME
from toolway.config.clients.models import (
    Client,
    ClientConfigFile,
    ClientEntry,
    ClientPaths,
    Dialect,
    EntryDict,
    ImportResult,
    Platform,
    RootPath,
    Transport,
)
from toolway.config.clients.registry import CLIENTS, get_client
from toolway.config.editing.document import ConfigDocument
from toolway.config.schema import ConfigIssue
from toolway.config.server_entry import ALLOW_KEYS, DENY_KEYS, EMPTY_ALLOWS_ALL
from toolway.config.variables import TOOLWAY_SYNTAX, find_refs, parse_variables, render_variables
from toolway.errors import ConfigError

# Server map paths of all clients: a file of one client is often copied to another.
_KNOWN_ROOTS: Final[tuple[RootPath, ...]] = (
    *((name,) for name in ("mcpServers", "servers", "mcp_servers", "context_servers", "amp.mcpServers")),
    ("mcp", "servers"),
    ("mcp",),
    ("extensions",),
)
_URL_KEYS: Final = ("url", "httpUrl", "serverUrl", "uri", "endpoint")
_ENTRY_MARKERS: Final = frozenset({"command", "cmd", *_URL_KEYS, "image", "remote"})
_TRANSPORT_SPELLINGS: Final[dict[Transport, tuple[str, ...]]] = {
    "stdio": ("stdio", "local"),
    "http": ("http", "streamablehttp", "remote"),
    "sse": ("sse",),
    "ws": ("ws", "websocket"),
}
_TRANSPORT_BY_SPELLING: Final = {
    spelling: transport for transport, spellings in _TRANSPORT_SPELLINGS.items() for spelling in spellings
}
_COMMAND_KEYS: Final = ("command", "cmd")
_ENV_KEYS: Final = ("env", "envs", "environment")
_HEADER_KEYS: Final = ("headers", "http_headers")


def find_client_files(
    environment: Mapping[str, str] | None = None, directory: Path | None = None, platform: Platform | None = None
) -> list[ClientConfigFile]:
    """Return every configuration file that a supported MCP client would read, whether or not it exists."""
    system = platform or SYSTEM_NAME
    paths = ClientPaths(os.environ if environment is None else environment, directory or Path.cwd(), system)
    found: dict[tuple[str, Path, RootPath], ClientConfigFile] = {}
    for client in CLIENTS.values():
        for file in client.config_files(paths):
            # In the home folder the project file is the user file.
            found.setdefault((file.client, file.path, file.root), file)
    return list(found.values())


def read_client_file(file: ClientConfigFile) -> ImportResult:
    """Read the server entries in a client's configuration file, and return them with our file's keys.

    A missing file has no entries. An unreadable file is reported as an issue.
    """
    client = get_client(file.client)
    try:
        enabled = client.enabled_servers(file) if client.enabled_servers else None
        if not file.path.exists() or enabled == frozenset():
            return ImportResult(file)
        return _read_entries(client, file, ConfigDocument(file.path, file.format), enabled)
    except ConfigError as exc:
        return ImportResult(file, issues=(ConfigIssue.from_error(exc),))


def _read_entries(
    client: Client, file: ClientConfigFile, document: ConfigDocument, enabled: frozenset[str] | None
) -> ImportResult:
    root, issues = _find_root_with_issues(client, file, document)
    lines = document.key_lines(root)
    entries = []
    for key, name, raw in iter_entries(client, document.get(root)):
        line = lines.get(key)
        if enabled is not None and name not in enabled:
            continue
        if not isinstance(raw, Mapping):
            issues.append(_no_server_issue(name, "it is not an object"))
            continue
        value, found = normalize_entry(client.name, client.dialect, name, raw)
        found += _add_root_denied(client, document, name, value)
        if entry_transport(value) is None:
            found = [_no_server_issue(name, f"it has no command or URL that clients other than {client.title} can use")]
        else:
            entries.append(ClientEntry(name, value, raw, file, line))
        issues += [_with_location(each, file, line) for each in found]
    return ImportResult(file, tuple(entries), tuple(issues))


def _add_root_denied(client: Client, document: ConfigDocument, name: str, value: EntryDict) -> list[ConfigIssue]:
    """Add the tools that a client's file denies outside a server's entry to the entry's deny list.

    Such a file has `"tools": {"SERVER_TOOL": false}` at its root. If it denies all of the server's tools there, return
    a warning, because the client's agents may allow them again.
    """
    root_tools = document.get((client.dialect.root_tools,)) if client.dialect.root_tools else None
    names = (
        [str(tool) for tool, is_on in root_tools.items() if is_on is False] if isinstance(root_tools, Mapping) else []
    )
    denied = [tool.removeprefix(f"{name}_") for tool in names if tool.startswith(f"{name}_")]
    denied = [tool for tool in denied if tool.strip("*")]
    if denied:
        tools = value.setdefault("tools", {})
        tools["deny"] = [*tools.get("deny", ()), *denied]
    if not {name, f"{name}*", f"{name}_*"}.intersection(names):
        return []
    message = f"{client.title} denies all tools of {name} outside its entry"
    hint = 'set "enabled": false, or "tools": {"deny": ["*"]}, after the import'
    return [ConfigIssue(name, message, "this is not imported", hint, "E-CLIENT-ENTRY", "warning")]


def iter_entries(client: Client, container: Any) -> Iterator[tuple[str | int, str, Any]]:
    """Yield the key or index, server name, and value of each entry in a client's server map or list."""
    if isinstance(container, Mapping):
        for key, raw in container.items():
            yield key, str(key), raw
    elif isinstance(container, list) and client.dialect.name_key:
        for at, raw in enumerate(container):
            named = raw.get(client.dialect.name_key) if isinstance(raw, Mapping) else None
            yield at, str(named or f"server-{at + 1}"), raw


def find_root(client: Client, file: ClientConfigFile, document: ConfigDocument) -> RootPath:
    """Return the key path of the server map in a client's file.

    Newer versions of some clients use `mcp.servers` instead of `mcp`.
    """
    newer = (*file.root, "servers")
    found = document.get(newer)
    # A server may be named `servers`; it then has the keys of an entry.
    is_newer = file.root == ("mcp",) and isinstance(found, Mapping) and not _ENTRY_MARKERS & found.keys()
    return newer if is_newer else file.root


def _find_root_with_issues(
    client: Client, file: ClientConfigFile, document: ConfigDocument
) -> tuple[RootPath, list[ConfigIssue]]:
    """Return the key path of the server map in a client's file, and issues.

    If the map is only under another client's key, return that path and a warning.
    """
    root = find_root(client, file, document)
    if document.get(root) is not None or file.scope == "local":
        return root, []
    for other in _KNOWN_ROOTS:
        if other != root and _has_servers(document.get(other)):
            return other, [_wrong_root_issue(client, file, root, other)]
    return root, []


def _has_servers(value: Any) -> bool:
    items = list(value.values()) if isinstance(value, Mapping) else value if isinstance(value, list) else []
    return any(isinstance(item, Mapping) and _ENTRY_MARKERS & item.keys() for item in items)


def _wrong_root_issue(client: Client, file: ClientConfigFile, root: RootPath, found: RootPath) -> ConfigIssue:
    right, wrong = ".".join(root), ".".join(found)
    return ConfigIssue(
        "",
        f"{client.title} does not read {wrong!r}",
        detail=f"its servers are under {right!r}",
        hint=f"rename {wrong!r} to {right!r}",
        code="E-CLIENT-ROOT",
        severity="warning",
        file=str(file.path),
    )


def _no_server_issue(name: str, detail: str) -> ConfigIssue:
    return ConfigIssue(name, f"{name} is not an importable server", detail, code="E-CLIENT-ENTRY", severity="note")


def _with_location(issue: ConfigIssue, file: ClientConfigFile, line: int | None) -> ConfigIssue:
    return msgspec.structs.replace(issue, file=str(file.path), line=line)


# -- entries → common form --------------------------------------------------------------------------------------------


def normalize_entry(
    client: str, dialect: Dialect, name: str, raw: Mapping[str, Any]
) -> tuple[EntryDict, list[ConfigIssue]]:
    """Convert a client's server entry to our config file's keys, and return it with the issues.

    Keys that only this client understands are kept under `extras`.
    """
    if dialect.is_own:
        return {str(key): item for key, item in raw.items()}, []
    normalizer = _EntryNormalizer(client, dialect, name, raw)
    return normalizer.normalize(), normalizer.issues


def entry_transport(value: Mapping[str, Any]) -> Transport | None:
    """Return the transport of an entry with our config file's keys, or None if it has no command or URL."""
    url = value.get("url")
    if isinstance(url, str):
        is_websocket = url.lower().startswith(("ws://", "wss://"))
        return "ws" if is_websocket else parse_transport(value.get("type", value.get("transport"))) or "http"
    return "stdio" if value.get("command") is not None else None


def parse_transport(spelling: Any) -> Transport | None:
    plain = spelling.lower().replace("-", "").replace("_", "") if isinstance(spelling, str) else ""
    return _TRANSPORT_BY_SPELLING.get(plain)


class _EntryNormalizer:
    """Converts one of a client's server entries to our config file's keys.

    Every client's spelling is accepted in every file.
    """

    def __init__(self, client: str, dialect: Dialect, name: str, raw: Mapping[str, Any]) -> None:
        self.value: EntryDict = {}
        self.issues: list[ConfigIssue] = []
        self._client, self._dialect, self._name = client, dialect, name
        self._unread: EntryDict = {str(key): item for key, item in raw.items()}

    def normalize(self) -> EntryDict:
        self._drop_fixed()
        self._read_command()
        self._read_url()
        self._read_texts()
        self._read_durations()
        self._read_switches()
        self._read_oauth()
        self._dialect.to_common(self.value, self._unread)
        self._read_type()
        if self._unread:
            self.value["extras"] = {self._client: self._unread}
        return self.value

    def _drop_fixed(self) -> None:
        """Remove the keys that this client puts into every entry: the name and fixed values."""
        if self._dialect.name_key:
            self._unread.pop(self._dialect.name_key, None)
        for key, fixed in self._dialect.fixed.items():
            if self._unread.get(key) == fixed:
                del self._unread[key]

    def _read_command(self) -> None:
        command = self._pop_first(_COMMAND_KEYS)
        if isinstance(command, Mapping):  # older versions of Zed
            self._unread = {**{key: item for key, item in command.items() if key != "path"}, **self._unread}
            command = command.get("path")
        if isinstance(command, list) and command:
            rest = [*command[1:], *self._unread.get("args", [])]
            command = command[0]
            if rest:
                self._unread["args"] = rest
        if command is not None:
            self.value["command"] = self._translate("command", command)

    def _read_url(self) -> None:
        key = next((key for key in _URL_KEYS if isinstance(self._unread.get(key), str)), None)
        if key is not None:
            self.value["url"] = self._translate("url", self._unread.pop(key))

    def _raw_transport(self) -> Transport | None:
        return parse_transport(self._unread.get("type")) or parse_transport(self._unread.get("transport"))

    def _read_type(self) -> None:
        """Set `type` in the converted entry if its transport is SSE or WebSocket. A URL without a type means HTTP.

        An unusual spelling of the type is kept under `extras`.
        """
        raw = self._raw_transport()
        if raw in ("sse", "ws") and "url" in self.value:
            self.value["type"] = raw
        transport = entry_transport(self.value)
        usual = self._dialect.types.get(transport) if transport else None
        if usual is not None and self._unread.get(self._dialect.type_key) == usual:
            del self._unread[self._dialect.type_key]

    def _read_texts(self) -> None:
        args = self._pop_first(("args",))
        if args is not None:
            self.value["args"] = self._translate("args", args)
        for key, names in (("env", _ENV_KEYS), ("headers", _HEADER_KEYS)):
            found = self._pop_first(names)
            if isinstance(found, Mapping):
                self.value[key] = {str(name): self._translate(f"{key}.{name}", item) for name, item in found.items()}
            elif found is not None:
                self.value[key] = found
        if not self._dialect.implicit_cwd:
            self._read_key("cwd", "cwd")
        self._read_key("envFile", self._dialect.env_file)
        self._read_key("headersHelper", self._dialect.headers_helper)

    def _read_key(self, ours: str, theirs: str | None) -> None:
        if theirs and self._unread.get(theirs) is not None:
            self.value[ours] = self._translate(ours, self._unread.pop(theirs))

    def _read_durations(self) -> None:
        for ours, theirs in (("timeout", self._dialect.timeout), ("startTimeout", self._dialect.start_timeout)):
            found = self._unread.get(theirs.key) if theirs else None
            if theirs and isinstance(found, int | float) and not isinstance(found, bool):
                self.value[ours] = integral_to_int(self._unread.pop(theirs.key) * theirs.unit_ms)

    def _read_switches(self) -> None:
        for key, on in ((self._dialect.enabled, True), (self._dialect.disabled, False)):
            if key and isinstance(self._unread.get(key), bool):
                self.value["enabled"] = self._unread.pop(key) is on
        self._read_tool_lists()

    def _read_tool_lists(self) -> None:
        """Read the entry's allow and deny lists, in any client's spelling.

        A list in another client's spelling still takes effect, because the user wants it, and is also kept in `extras`.
        """
        tools: EntryDict = {}
        known = (("allow", self._dialect.allow, ALLOW_KEYS), ("deny", self._dialect.deny, DENY_KEYS))
        for ours, own_key, spellings in known:
            for key in dict.fromkeys((*((own_key,) if own_key else ()), *spellings)):
                names = self._unread.get(key)
                if ours in tools or not isinstance(names, list) or (not names and key in EMPTY_ALLOWS_ALL):
                    continue
                tools[ours] = names
                if key == own_key:
                    del self._unread[key]
        if tools:
            self.value["tools"] = tools

    def _read_oauth(self) -> None:
        key, known = self._dialect.oauth, self._dialect.oauth_keys
        given = self._unread.get(key) if key else None
        if key is None or not isinstance(given, Mapping) or not known.keys() & given.keys():
            return
        auth = {
            known[each]: self._translate(f"auth.{known[each]}", item) for each, item in given.items() if each in known
        }
        if self._dialect.oauth_scopes_as_text and isinstance(auth.get("scopes"), str):
            auth["scopes"] = auth["scopes"].split()
        self.value["auth"] = {"type": "oauth", **auth}
        self._unread[key] = {each: item for each, item in given.items() if each not in known}
        if not self._unread[key]:
            del self._unread[key]

    def _pop_first(self, keys: tuple[str, ...]) -> Any:
        found = next((key for key in keys if key in self._unread), None)
        return None if found is None else self._unread.pop(found)

    def _translate(self, field: str, value: Any) -> Any:
        """Translate the client's variables in a string or list to our syntax.

        Other values are returned unchanged. Text that only looks like a variable causes a warning.
        """
        if isinstance(value, list):
            return [self._translate(field, each) for each in value]
        if not isinstance(value, str):
            return value
        pieces = parse_variables(value, self._dialect.syntax)
        ours = render_variables(pieces, TOOLWAY_SYNTAX)
        if ours.unsupported or any(isinstance(piece, str) and find_refs(piece) for piece in pieces):
            self.issues.append(self._literal_variable_issue(field))
        return ours.text

    def _literal_variable_issue(self, field: str) -> ConfigIssue:
        return ConfigIssue(
            self._name,
            f"{field} appears to contain a variable",
            detail=f"{self._client} does not expand it, so it is imported as literal text",
            hint=f"fix {field} after the import",
            code="E-CONFIG-VARIABLE",
            severity="warning",
        )


def integral_to_int(number: float) -> float:
    """Convert a float without a fraction to int, so a file contains 30, not 30.0."""
    return int(number) if float(number).is_integer() else number
