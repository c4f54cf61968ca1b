"""An entry in our own form → as a client spells it, and what that client cannot be told, field by field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from toolway.config.clients.dialect import Dialect, Impossible, Transport, Value
from toolway.config.clients.reading import transport_named, transport_of, whole
from toolway.config.fields import duration
from toolway.config.problems import Problem
from toolway.config.syntaxes import OURS, Ref, misread, parse, write
from toolway.errors import ConfigError

CODE: Final = "E-CLIENT-FIELD"
# Keys of ours that change how the hub treats a server. A client has its own way, so that they are missing there costs
# nobody anything and is not mentioned.
_OUR_AFFAIR: Final = frozenset(
    {
        *("connectTimeout", "maxRestarts", "lazy", "idleStop", "keepAliveInterval", "era", "shared", "limits"),
        *("maxRetries", "retryDelayMs", "backoffMultiplier", "repeatable", "trusted", "idempotencyMetaKey"),
        *("unprocessed", "env_policy", "envPolicy", "healthCheckUrl", "instances", "nodeLabels"),
    }
)
_HANDLED: Final = frozenset(
    {
        *("command", "args", "env", "cwd", "envFile", "url", "headers", "headersHelper", "type", "transport"),
        *("timeout", "startTimeout", "enabled", "disabled", "tools", "auth", "extras"),
    }
)


def write_value(
    client: str, title: str, dialect: Dialect, name: str, value: Mapping[str, Any]
) -> tuple[Value | None, list[Problem]]:
    """The entry as the client spells it; None where it would be wrong to write any of it."""
    if dialect.ours:
        return dict(value), []
    writing = _Writing(client, title, dialect, name, value)
    return writing.write(), writing.losses


class _Writing:
    def __init__(self, client: str, title: str, dialect: Dialect, name: str, value: Mapping[str, Any]) -> None:
        self.losses: list[Problem] = []
        self._client, self._title, self._dialect, self._name = client, title, dialect, name
        self._value = {key: dict(item) if isinstance(item, Mapping) else item for key, item in value.items()}
        self._written: Value = {}

    def write(self) -> Value | None:
        transport = transport_of(self._value)
        if not self._possible(transport) or transport is None:
            return None
        dialect = self._dialect
        if dialect.named:
            self._written[dialect.named] = self._name
        self._written |= dialect.fixed
        if transport in dialect.types:
            self._written[dialect.type_key] = dialect.types[transport]
        try:
            losses = dialect.lower(self._value, self._written)
        except Impossible as exc:
            self._lose(exc.field, exc.why, severity="error")
            return None
        for field, loss in losses:
            self._lose(field, loss)
        self._way(transport)
        self._durations()
        self._switches()
        self._oauth()
        self._extras(transport)
        self._mention_the_rest()
        return self._written

    def _possible(self, transport: Transport | None) -> bool:
        dialect = self._dialect
        if self._value.get("openapi") is not None:
            fix = f"toolway export {self._client} --via-hub"
            self._lose("openapi", "it knows no HTTP APIs as servers; the entry is left out", fix, "error")
        elif transport is None:
            self._lose("command", "the entry has neither a command nor a url", severity="error")
        elif transport != "stdio" and transport not in dialect.urls:
            fix = f"toolway export {self._client} --via-hub"
            self._lose("url", f"it knows no servers of type {transport}; the entry is left out", fix, "error")
        elif self._value.get("enabled") is False and not (dialect.enabled or dialect.disabled):
            self._lose("enabled", "it cannot hold a server that is switched off; the entry is left out")
        else:
            return True
        return False

    def _way(self, transport: Transport) -> None:
        dialect, value = self._dialect, self._value
        if transport == "stdio":
            command, args = self._said("command", value.get("command")), self._said("args", value.get("args"))
            if dialect.joined:
                self._written[dialect.command] = [command, *(args or [])]
            else:
                self._put(dialect.command, command)
                self._put(dialect.args, args)
            self._map("env", dialect.env)
            self._key("cwd", dialect.cwd)
            self._key("envFile", dialect.env_file)
        else:
            self._put(dialect.urls[transport], self._said("url", value.get("url")))
            if transport == "sse" and "sse" not in dialect.types and dialect.urls.get("http") == dialect.urls["sse"]:
                self._lose("type", "it finds out by itself which kind of HTTP a server speaks", severity="note")
            self._map("headers", dialect.headers)
            self._key("headersHelper", dialect.headers_helper)

    def _key(self, ours: str, theirs: str | None) -> None:
        if self._value.get(ours) is None:
            return
        if theirs is None:
            why = "it starts servers in a directory of its own choice" if ours == "cwd" else "it has no such setting"
            self._lose(ours, why)
        else:
            self._put(theirs, self._said(ours, self._value[ours]))

    def _map(self, ours: str, theirs: str | None) -> None:
        given = self._value.get(ours)
        if given is None or (not given and theirs is None):
            return
        if theirs is None:
            self._lose(ours, "it has no such setting")
        elif isinstance(given, Mapping):
            said = {key: self._said(f"{ours}.{key}", item, leave_out=True) for key, item in given.items()}
            kept = {key: item for key, item in said.items() if item is not None}
            if kept or not given:
                self._put(theirs, {**self._written.get(theirs, {}), **kept})
        else:
            self._put(theirs, given)

    def _durations(self) -> None:
        pairs = (("timeout", self._dialect.timeout), ("startTimeout", self._dialect.start_timeout))
        for ours, theirs in pairs:
            given = self._value.get(ours)
            if given is None:
                continue
            if theirs is None:
                self._lose(ours, "it has no such setting")
                continue
            try:
                milliseconds = round(duration(ours, given) * 1000, 3)
            except ConfigError as exc:
                self._lose(ours, exc.evidence or exc.what)
                continue
            self._put(theirs.key, whole(milliseconds / theirs.unit))

    def _switches(self) -> None:
        dialect, enabled = self._dialect, self._value.get("enabled")
        if self._value.get("disabled") is True:
            enabled = False
        if enabled is not None or dialect.says_enabled:
            on = enabled is not False
            if dialect.enabled:
                self._put(dialect.enabled, on)
            elif dialect.disabled:
                self._put(dialect.disabled, not on)
        tools = self._value.get("tools")
        for ours, theirs in (("allow", dialect.allow), ("deny", dialect.deny)):
            names = tools.get(ours) if isinstance(tools, Mapping) else None
            if names is None:
                continue
            if theirs is None:
                self._lose(f"tools.{ours}", "it cannot choose among the tools of a server")
            else:
                self._put(theirs, names)

    def _oauth(self) -> None:
        given = self._value.get("auth")
        if given is None:
            return
        ours = {our: their for their, our in self._dialect.oauth_keys.items()}
        if self._dialect.oauth is None or not isinstance(given, Mapping):
            if given != "oauth" and given != {"type": "oauth"}:  # these say what every client does anyway
                self._lose("auth", "it has no such setting")
            return
        written = {}
        for key, item in given.items():
            if key in ours:
                item = (
                    " ".join(item) if key == "scopes" and self._dialect.oauth_text and isinstance(item, list) else item
                )
                written[ours[key]] = self._said(f"auth.{key}", item)
            elif key not in ("type", "grant"):
                self._lose(f"auth.{key}", "it has no such setting")
        if written:
            self._put(self._dialect.oauth, written)

    def _extras(self, transport: Transport) -> None:
        """What the client itself had said and we did not understand."""
        extras = self._value.get("extras")
        for client, left in extras.items() if isinstance(extras, Mapping) else ():
            if client != self._client:
                for key in left if isinstance(left, Mapping) else ():
                    if transport_named(left[key]) is None:
                        self._lose(key, f"only {client} knows what it means", severity="note")
                continue
            for key, item in left.items():
                if key in ("type", "transport") and transport_named(item) not in (transport, None):
                    continue  # the entry has become another since
                if isinstance(item, Mapping) and isinstance(self._written.get(key), Mapping):
                    item = {**self._written[key], **item}
                self._written[key] = item

    def _mention_the_rest(self) -> None:
        for key in self._value.keys() - _HANDLED - _OUR_AFFAIR:
            self._lose(key, "it is not known what it means there", severity="note")

    def _said(self, field: str, value: Any, *, leave_out: bool = False) -> Any:
        """A text in the client's way of writing variables. What cannot be said is left out, where that is better."""
        if isinstance(value, list | tuple):
            return [self._said(field, each) for each in value]
        if not isinstance(value, str):
            return value
        pieces = parse(value, OURS)
        text, lost = write(pieces, self._dialect.syntax)
        for ref in lost:
            self._lose_ref(field, ref, leave_out)
        if misread(pieces, self._dialect.syntax):
            self._lose(field, "it would fill in what is meant as it is written")
        gone = any(ref.kind not in self._dialect.syntax.forms for ref in lost)
        return None if leave_out and gone else text

    def _lose_ref(self, field: str, ref: Ref, leave_out: bool) -> None:
        if ref.kind in self._dialect.syntax.forms:
            self._lose(field, f"it knows no default for {ref.name}")
            return
        said = write((ref,), OURS).text
        fate = "is left out" if leave_out else "is written as it is"
        self._lose(field, f"it cannot fill in {said}; {field} {fate}", f"toolway export {self._client} --via-hub")

    def _put(self, key: str, item: Any) -> None:
        if item is not None:
            self._written[key] = item

    def _lose(self, field: str, why: str, fix: str = "", severity: Any = "warning") -> None:
        what = f"{self._title} cannot be told {field} of {self._name}"
        self.losses.append(Problem(self._name, what, why, fix, CODE, severity))
