"""Converts server entries from our config file's keys to an MCP client's spelling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from toolway.config.clients.importer import entry_transport, integral_to_int, parse_transport
from toolway.config.clients.models import Dialect, EntryDict, Transport, UnsupportedEntry
from toolway.config.entry_transport import find_own_transport
from toolway.config.field_reader import FieldReader, parse_duration
from toolway.config.schema import ConfigIssue
from toolway.config.server_entry import ALLOW_KEYS, DENY_KEYS, parse_tool_lists
from toolway.config.variables import TOOLWAY_SYNTAX, VariableRef, is_ambiguous, parse_variables, render_variables
from toolway.errors import ConfigError

UNSUPPORTED_FIELD_CODE: Final = "E-CLIENT-FIELD"
# Keys that only change how the hub manages a server. A client has its own policies, so leaving these keys out is not
# reported.
_HUB_ONLY_KEYS: Final = frozenset(
    {
        *("connectTimeout", "maxRestarts", "lazy", "idleTimeout", "keepAliveInterval", "era", "shareConnection"),
        *(
            "maxRetries",
            "retryDelayMs",
            "backoffMultiplier",
            "idempotent",
            "trusted",
            "idempotencyMetaKey",
            "untrusted",
        ),
        *("notProcessedCodes", "env_policy", "envPolicy", "healthCheckUrl", "instances", "nodeLabels", "limits"),
        *("retry", "restart", "health", "rateLimit", "validateArguments", "sandbox", "lock", "labels", "redact"),
        "vendorMethods",
    }
)
_CONVERTED_KEYS: Final = frozenset(
    {
        *("command", "args", "env", "cwd", "envFile", "url", "headers", "headersHelper", "type", "transport"),
        *("timeout", "startTimeout", "enabled", "disabled", "tools", "auth", "tls", "extras", *ALLOW_KEYS, *DENY_KEYS),
    }
)


def denormalize_entry(
    client: str, title: str, dialect: Dialect, name: str, value: Mapping[str, Any]
) -> tuple[EntryDict | None, list[ConfigIssue]]:
    """Convert a server entry from our config file's keys to a client's spelling, and return it with the issues.

    The converted entry is None if the client cannot represent it. Each unsupported setting is an issue.
    """
    if dialect.is_own:
        return dict(value), []
    writer = _EntryWriter(client, title, dialect, name, value)
    return writer.write(), writer.unsupported


class _EntryWriter:
    def __init__(self, client: str, title: str, dialect: Dialect, name: str, value: Mapping[str, Any]) -> None:
        self.unsupported: list[ConfigIssue] = []
        self._client, self._title, self._dialect, self._name = client, title, dialect, name
        self._value = {key: dict(item) if isinstance(item, Mapping) else item for key, item in value.items()}
        self._written: EntryDict = {}

    def write(self) -> EntryDict | None:
        transport = entry_transport(self._value)
        if not self._is_supported(transport) or transport is None:
            return None
        dialect = self._dialect
        if dialect.name_key:
            self._written[dialect.name_key] = self._name
        self._written |= dialect.fixed
        if transport in dialect.types:
            self._written[dialect.type_key] = dialect.types[transport]
        try:
            unsupported = dialect.from_common(self._value, self._written)
        except UnsupportedEntry as exc:
            self._report(exc.field, exc.reason, severity="error")
            return None
        for field, loss in unsupported:
            self._report(field, loss)
        self._write_transport(transport)
        self._write_durations()
        self._write_switches()
        self._write_oauth()
        self._write_extras(transport)
        self._report_unknown_keys()
        return self._written

    def _is_supported(self, transport: Transport | None) -> bool:
        dialect = self._dialect
        if (own := find_own_transport(self._value)) is not None:
            hint = f"toolway connect {self._client}"
            self._report(own.kind, f"it does not support {own.title} as servers; the entry is left out", hint, "error")
        elif transport is None:
            self._report("command", "the entry has neither a command nor a url", severity="error")
        elif transport != "stdio" and transport not in dialect.urls:
            hint = f"toolway connect {self._client}"
            self._report("url", f"it does not support {transport} servers; the entry is left out", hint, "error")
        elif self._value.get("enabled") is False and not (dialect.enabled or dialect.disabled):
            self._report("enabled", "it does not support disabled servers; the entry is left out")
        else:
            return True
        return False

    def _write_transport(self, transport: Transport) -> None:
        dialect, value = self._dialect, self._value
        if transport == "stdio":
            command, args = self._translate("command", value.get("command")), self._translate("args", value.get("args"))
            if dialect.joined_command:
                self._written[dialect.command] = [command, *(args or [])]
            else:
                self._write(dialect.command, command)
                self._write(dialect.args, args)
            self._write_map("env", dialect.env)
            self._write_key("cwd", dialect.cwd)
            self._write_key("envFile", dialect.env_file)
        else:
            self._write(dialect.urls[transport], self._translate("url", value.get("url")))
            if transport == "sse" and "sse" not in dialect.types and dialect.urls.get("http") == dialect.urls["sse"]:
                self._report("type", "it detects the HTTP transport of a server by itself", severity="note")
            self._write_map("headers", dialect.headers)
            self._write_key("headersHelper", dialect.headers_helper)
            if value.get("tls") is not None:
                hint = f"toolway connect {self._client}"
                self._report("tls", "it has no CA or client certificate per server", hint)

    def _write_key(self, ours: str, theirs: str | None) -> None:
        if self._value.get(ours) is None:
            return
        if theirs is None:
            reason = "it chooses the working directory of servers itself" if ours == "cwd" else "it has no such setting"
            self._report(ours, reason)
        else:
            self._write(theirs, self._translate(ours, self._value[ours]))

    def _write_map(self, ours: str, theirs: str | None) -> None:
        given = self._value.get(ours)
        if given is None or (not given and theirs is None):
            return
        if theirs is None:
            self._report(ours, "it has no such setting")
        elif isinstance(given, Mapping):
            translated = {key: self._translate(f"{ours}.{key}", item, leave_out=True) for key, item in given.items()}
            kept = {key: item for key, item in translated.items() if item is not None}
            if kept or not given:
                self._write(theirs, {**self._written.get(theirs, {}), **kept})
        else:
            self._write(theirs, given)

    def _write_durations(self) -> None:
        pairs = (("timeout", self._dialect.timeout), ("startTimeout", self._dialect.start_timeout))
        for ours, theirs in pairs:
            given = self._value.get(ours)
            if given is None:
                continue
            if theirs is None:
                self._report(ours, "it has no such setting")
                continue
            try:
                milliseconds = round(parse_duration(ours, given) * 1000, 3)
            except ConfigError as exc:
                self._report(ours, exc.detail or exc.message)
                continue
            self._write(theirs.key, integral_to_int(milliseconds / theirs.unit_ms))

    def _write_switches(self) -> None:
        dialect, enabled = self._dialect, self._value.get("enabled")
        if self._value.get("disabled") is True:
            enabled = False
        if enabled is not None or dialect.writes_enabled:
            on = enabled is not False
            if dialect.enabled:
                self._write(dialect.enabled, on)
            elif dialect.disabled:
                self._write(dialect.disabled, not on)
        self._write_tool_lists()

    def _write_tool_lists(self) -> None:
        """Write the entry's allow and deny lists under the client's keys.

        Report what the client does not support.
        """
        dialect, via_gateway = self._dialect, f"toolway connect {self._client}"
        try:
            allowed, denied = parse_tool_lists(FieldReader(self._value, {}))
        except ConfigError as exc:
            self._report("tools", f"{exc.message}: {exc.detail}", severity="error")
            return
        for field, theirs, names in (("allow", dialect.allow, allowed), ("deny", dialect.deny, denied or None)):
            if names is None:
                continue
            if theirs is None:
                offered = "all tools" if field == "allow" else "these tools too"
                self._report(f"tools.{field}", f"it has no {field} list, so it offers {offered}", via_gateway)
                continue
            self._write(theirs, list(names))
            patterns = [name for name in names if name != "*" and ("*" in name or "?" in name)]
            if patterns and not dialect.tool_patterns:
                reason = f"it compares names exactly, so {', '.join(patterns)} matches no tool"
                self._report(f"patterns in tools.{field}", reason, via_gateway)

    def _write_oauth(self) -> None:
        given = self._value.get("auth")
        if given is None:
            return
        ours = {our: their for their, our in self._dialect.oauth_keys.items()}
        if self._dialect.oauth is None or not isinstance(given, Mapping):
            if given != "oauth" and given != {"type": "oauth"}:  # these are the default of every client
                self._report("auth", "it has no such setting")
            return
        written = {}
        for key, item in given.items():
            if key in ours:
                item = (
                    " ".join(item)
                    if key == "scopes" and self._dialect.oauth_scopes_as_text and isinstance(item, list)
                    else item
                )
                written[ours[key]] = self._translate(f"auth.{key}", item)
            elif key not in ("type", "grant"):
                self._report(f"auth.{key}", "it has no such setting")
        if written:
            self._write(self._dialect.oauth, written)

    def _write_extras(self, transport: Transport) -> None:
        """Write the keys in `extras` that only this client understands.

        Other clients' keys are reported as notes.
        """
        extras = self._value.get("extras")
        for client, left in extras.items() if isinstance(extras, Mapping) else ():
            if client != self._client:
                for key in left if isinstance(left, Mapping) else ():
                    if parse_transport(left[key]) is None:
                        self._report(key, f"only {client} supports it", severity="note")
                continue
            for key, item in left.items():
                if key in ("type", "transport") and parse_transport(item) not in (transport, None):
                    continue  # the transport of the entry has changed since
                if isinstance(item, Mapping) and isinstance(self._written.get(key), Mapping):
                    item = {**self._written[key], **item}
                self._written[key] = item

    def _report_unknown_keys(self) -> None:
        for key in self._value.keys() - _CONVERTED_KEYS - _HUB_ONLY_KEYS:
            self._report(key, "unknown key", severity="note")

    def _translate(self, field: str, value: Any, *, leave_out: bool = False) -> Any:
        """Translate the variables in a string to the client's syntax, and report unsupported ones.

        With `leave_out`, return None if the client cannot express a variable.
        """
        if isinstance(value, list | tuple):
            return [self._translate(field, each) for each in value]
        if not isinstance(value, str):
            return value
        pieces = parse_variables(value, TOOLWAY_SYNTAX)
        text, unsupported = render_variables(pieces, self._dialect.syntax)
        for ref in unsupported:
            self._report_ref(field, ref, leave_out)
        if is_ambiguous(pieces, self._dialect.syntax):
            self._report(field, "it would expand text that is meant literally")
        is_inexpressible = any(ref.kind not in self._dialect.syntax.forms for ref in unsupported)
        return None if leave_out and is_inexpressible else text

    def _report_ref(self, field: str, ref: VariableRef, leave_out: bool) -> None:
        if ref.kind in self._dialect.syntax.forms:
            self._report(field, f"it does not support the default of {ref.name}")
            return
        text = render_variables((ref,), TOOLWAY_SYNTAX).text
        handling = "is left out" if leave_out else "is written unexpanded"
        self._report(field, f"it cannot expand {text}; {field} {handling}", f"toolway connect {self._client}")

    def _write(self, key: str, item: Any) -> None:
        if item is not None:
            self._written[key] = item

    def _report(self, field: str, reason: str, hint: str = "", severity: Any = "warning") -> None:
        message = f"{self._title} does not support {field} of {self._name}"
        self.unsupported.append(ConfigIssue(self._name, message, reason, hint, UNSUPPORTED_FIELD_CODE, severity))
