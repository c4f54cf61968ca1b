"""How a client spells an entry: which keys it has, in which units, and what it writes even where it says nothing.

A dialect is a value. Reading takes every spelling that any client has; a dialect says what is *written*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from toolway.config.syntaxes import NONE, Syntax

Transport = Literal["stdio", "http", "sse", "ws"]
Value = dict[str, Any]
Lift = Callable[[Value, Value], None]  # (entry in our form, keys that are left over): takes keys into the entry
Lower = Callable[[Value, Value], list[tuple[str, str]]]  # (entry in our form, as written): returns field and loss


class Impossible(Exception):
    """Raised by a `Lower`: the client cannot hold such a server at all."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(why)
        self.field, self.why = field, why


def _nothing(_value: Value, _left: Value) -> None:
    return None


def _no_loss(_value: Value, _written: Value) -> list[tuple[str, str]]:
    return []


@dataclass(frozen=True, slots=True)
class Timeout:
    """A key that holds a duration, and how many milliseconds its unit has."""

    key: str
    unit: int = 1


@dataclass(frozen=True, slots=True)
class Dialect:
    """The keys of an entry. None: the client has no such key."""

    command: str = "command"
    joined: bool = False  # command and arguments are one list
    args: str = "args"
    env: str = "env"
    cwd: str | None = None
    env_file: str | None = None
    urls: Mapping[Transport, str] = field(default_factory=lambda: {"http": "url", "sse": "url"})
    headers: str | None = "headers"
    headers_helper: str | None = None
    type_key: str = "type"
    types: Mapping[Transport, str] = field(default_factory=dict)  # transport → how it is spelt; missing: not written
    fixed: Mapping[str, Any] = field(default_factory=dict)  # stands in every new entry
    timeout: Timeout | None = None
    start_timeout: Timeout | None = None
    enabled: str | None = None  # the key that is true while the server is on
    disabled: str | None = None  # the key that is true while it is off
    says_enabled: bool = False  # is written even where the server is on
    allow: str | None = None  # a list of tools
    deny: str | None = None
    oauth: str | None = None
    oauth_keys: Mapping[str, str] = field(default_factory=dict)  # their key → ours
    oauth_text: bool = False  # scopes are one text
    syntax: Syntax = NONE
    lift: Lift = _nothing
    lower: Lower = _no_loss
    named: str | None = None  # this key of an entry is its name
    listed: bool = False  # the servers are a list, not a map
    implicit_cwd: bool = False  # a `cwd` in the file has no effect: servers start in the project's directory
    ours: bool = False  # our own file: there is nothing to translate


OAUTH_KEYS: Final = {"clientId": "clientId", "clientSecret": "clientSecret", "scopes": "scopes"}
