"""One entry of a client's file → the entry in our own form. Every client's spelling is understood in every file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from toolway.config.clients.dialect import Dialect, Transport, Value
from toolway.config.problems import Problem
from toolway.config.syntaxes import OURS, parse, refs, write

_SPELLINGS: Final[dict[Transport, tuple[str, ...]]] = {
    "stdio": ("stdio", "local"),
    "http": ("http", "streamablehttp", "remote"),
    "sse": ("sse",),
    "ws": ("ws", "websocket"),
}
_TYPES: Final = {spelling: transport for transport, spellings in _SPELLINGS.items() for spelling in spellings}
_URLS: Final = ("url", "httpUrl", "serverUrl", "uri")
_COMMANDS: Final = ("command", "cmd")
_ENVS: Final = ("env", "envs", "environment")
_HEADERS: Final = ("headers", "http_headers")


def read_value(client: str, dialect: Dialect, name: str, written: Mapping[str, Any]) -> tuple[Value, list[Problem]]:
    """An entry in our own form, and what should be said about it. Nothing is lost: the rest is under `extras`."""
    if dialect.ours:
        return {str(key): item for key, item in written.items()}, []
    reading = _Reading(client, dialect, name, written)
    return reading.read(), reading.problems


def transport_of(value: Mapping[str, Any]) -> Transport | None:
    """Of an entry in our own form."""
    if isinstance(value.get("url"), str):
        return transport_named(value.get("type", value.get("transport"))) or "http"
    return "stdio" if value.get("command") is not None else None


def transport_named(spelling: Any) -> Transport | None:
    plain = spelling.lower().replace("-", "").replace("_", "") if isinstance(spelling, str) else ""
    return _TYPES.get(plain)


class _Reading:
    def __init__(self, client: str, dialect: Dialect, name: str, written: Mapping[str, Any]) -> None:
        self.value: Value = {}
        self.problems: list[Problem] = []
        self._client, self._dialect, self._name = client, dialect, name
        self._left: Value = {str(key): item for key, item in written.items()}

    def read(self) -> Value:
        self._without_fixed()
        self._command()
        self._url()
        self._texts()
        self._durations()
        self._switches()
        self._oauth()
        self._dialect.lift(self.value, self._left)
        self._type()
        if self._left:
            self.value["extras"] = {self._client: self._left}
        return self.value

    def _without_fixed(self) -> None:
        """What stands in every entry says nothing."""
        if self._dialect.named:
            self._left.pop(self._dialect.named, None)
        for key, fixed in self._dialect.fixed.items():
            if self._left.get(key) == fixed:
                del self._left[key]

    def _command(self) -> None:
        command = self._take(_COMMANDS)
        if isinstance(command, Mapping):  # as older versions of Zed have it
            self._left = {**{key: item for key, item in command.items() if key != "path"}, **self._left}
            command = command.get("path")
        if isinstance(command, list) and command:
            rest = [*command[1:], *self._left.get("args", [])]
            command = command[0]
            if rest:
                self._left["args"] = rest
        if command is not None:
            self.value["command"] = self._said("command", command)

    def _url(self) -> None:
        key = next((key for key in _URLS if isinstance(self._left.get(key), str)), None)
        if key is not None:
            self.value["url"] = self._said("url", self._left.pop(key))

    def _written_type(self) -> Transport | None:
        return transport_named(self._left.get("type")) or transport_named(self._left.get("transport"))

    def _type(self) -> None:
        """The transport, where the address alone would not tell. Its spelling is kept where it is not the usual one."""
        written = self._written_type()
        if written in ("sse", "ws") and "url" in self.value:
            self.value["type"] = written
        transport = transport_of(self.value)
        usual = self._dialect.types.get(transport) if transport else None
        if usual is not None and self._left.get(self._dialect.type_key) == usual:
            del self._left[self._dialect.type_key]

    def _texts(self) -> None:
        args = self._take(("args",))
        if args is not None:
            self.value["args"] = self._said("args", args)
        for key, names in (("env", _ENVS), ("headers", _HEADERS)):
            found = self._take(names)
            if isinstance(found, Mapping):
                self.value[key] = {str(name): self._said(f"{key}.{name}", item) for name, item in found.items()}
            elif found is not None:
                self.value[key] = found
        if not self._dialect.implicit_cwd:
            self._keep("cwd", "cwd")
        self._keep("envFile", self._dialect.env_file)
        self._keep("headersHelper", self._dialect.headers_helper)

    def _keep(self, ours: str, theirs: str | None) -> None:
        if theirs and self._left.get(theirs) is not None:
            self.value[ours] = self._said(ours, self._left.pop(theirs))

    def _durations(self) -> None:
        for ours, theirs in (("timeout", self._dialect.timeout), ("startTimeout", self._dialect.start_timeout)):
            found = self._left.get(theirs.key) if theirs else None
            if theirs and isinstance(found, int | float) and not isinstance(found, bool):
                self.value[ours] = whole(self._left.pop(theirs.key) * theirs.unit)

    def _switches(self) -> None:
        for key, on in ((self._dialect.enabled, True), (self._dialect.disabled, False)):
            if key and isinstance(self._left.get(key), bool):
                self.value["enabled"] = self._left.pop(key) is on
        lists = (("allow", self._dialect.allow), ("deny", self._dialect.deny))
        tools = {ours: self._left.pop(key) for ours, key in lists if key and isinstance(self._left.get(key), list)}
        if tools:
            self.value["tools"] = tools

    def _oauth(self) -> None:
        key, known = self._dialect.oauth, self._dialect.oauth_keys
        given = self._left.get(key) if key else None
        if key is None or not isinstance(given, Mapping) or not known.keys() & given.keys():
            return
        auth = {known[each]: self._said(f"auth.{known[each]}", item) for each, item in given.items() if each in known}
        if self._dialect.oauth_text and isinstance(auth.get("scopes"), str):
            auth["scopes"] = auth["scopes"].split()
        self.value["auth"] = {"type": "oauth", **auth}
        self._left[key] = {each: item for each, item in given.items() if each not in known}
        if not self._left[key]:
            del self._left[key]

    def _take(self, keys: tuple[str, ...]) -> Any:
        found = next((key for key in keys if key in self._left), None)
        return None if found is None else self._left.pop(found)

    def _said(self, field: str, value: Any) -> Any:
        """A text in our way of writing variables; what is no text as it is."""
        if isinstance(value, list):
            return [self._said(field, each) for each in value]
        if not isinstance(value, str):
            return value
        pieces = parse(value, self._dialect.syntax)
        ours = write(pieces, OURS)
        if ours.lost or any(isinstance(piece, str) and refs(piece) for piece in pieces):
            self.problems.append(self._no_variable(field))
        return ours.text

    def _no_variable(self, field: str) -> Problem:
        return Problem(
            self._name,
            f"{field} looks as if it held a variable",
            evidence=f"{self._client} does not fill it in, so it is taken as it is written",
            fix=f"correct {field} after the import",
            code="E-CONFIG-VARIABLE",
            severity="warning",
        )


def whole(number: float) -> float:
    """A number as people write it: 30, not 30.0."""
    return int(number) if float(number).is_integer() else number
