"""One entry of an `mcpServers` map → one `Server`, whichever host's spelling it uses."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final, cast, get_args

from toolway.config import auth, calls, cluster, openapi
from toolway.config.expand import expand_home
from toolway.config.fields import KEY, Fields, kind, quoted, wrong
from toolway.config.problems import Problem
from toolway.config.spec import MAX_TIMEOUT, EnvPolicy, EraSetting, Health, Limits, Restart, Server, Timeout
from toolway.errors import ConfigError

URL_KEYS: Final = ("url", "httpUrl", "serverUrl", "uri")
STDIO_TYPES: Final = frozenset({"stdio", "local"})
HTTP_TYPES: Final = frozenset({"http", "streamablehttp", "remote"})
SSE: Final = "sse"
LATER_TYPES: Final = frozenset({"ws", "websocket"})
OUR_KEYS: Final = (
    *("command", "args", "env", "cwd", *URL_KEYS, "headers", "auth", "openapi", "type", "transport"),
    *("timeout", "startTimeout", "connectTimeout", "maxRestarts", "enabled", "disabled", "lazy", "idleStop"),
    *("keepAliveInterval", "era", "shared", "env_policy", "envPolicy", "limits", *cluster.KEYS),
    *calls.KEYS,
)

_URL = re.compile(r"https?://", re.IGNORECASE)
_LONGEST_LINE: Final = 16 * 1024  # characters of a command line: the time to split it grows with their square
_COMPARED: Final = 32  # unknown keys of an entry that are compared with ours, which takes a while


def entry(value: Mapping[str, Any], variables: Mapping[str, str] | None = None) -> Server:
    """The server that an entry of a file describes. Raises `ConfigError`.

    >>> entry({"command": "npx", "args": ["-y", "server-github"], "timeout": "20s"}).timeout.total
    20.0
    """
    return read_entry(value, os.environ if variables is None else variables)[0]


def server_from_text(text: str) -> Server:
    """`"https://…/mcp"` or a command line such as `"npx -y server-github"`. Raises `ConfigError`."""
    return Server(**_from_text(text))


def read_entry(value: Any, variables: Mapping[str, str]) -> tuple[Server, list[Problem]]:
    """The server, and what should be said about it. Raises `ConfigError` where it cannot be used."""
    if isinstance(value, str):
        value = _from_text(value)
    if not isinstance(value, Mapping):
        raise wrong("a server", 'an object such as {"command": …} or {"url": …}', value)
    fields = Fields(value, variables)
    server = Server(
        **_way(fields),
        **_behaviour(fields),
        **calls.read(fields),
        **cluster.read(fields),
        auth=auth.read(fields),
        timeout=_timeout(fields),
        limits=_limits(fields),
        extras=fields.rest,
    )
    for key in islice(fields.rest, _COMPARED):
        _mention_misspelling(fields, key)
    return server, fields.problems


def _from_text(text: str) -> dict[str, Any]:
    if _URL.match(text.strip()):
        return {"url": text.strip()}
    if len(text) > _LONGEST_LINE:
        fix = 'write {"command": …, "args": […]}'
        raise ConfigError("the command line is too long", evidence=f"{len(text)} characters", fix=fix, code=KEY)
    try:
        words = shlex.split(text)
    except ValueError as exc:
        raise ConfigError("the command line cannot be split", evidence=str(exc), code=KEY) from None
    if not words:
        raise ConfigError("the command line is empty", fix='write "npx -y package" or "https://…/mcp"', code=KEY)
    return {"command": words[0], "args": words[1:]}


def _way(fields: Fields) -> dict[str, Any]:
    """How the server is reached."""
    type_ = _type(fields)
    api, address = openapi.read(fields, type_)
    command, cwd, url = fields.text("command"), fields.text("cwd"), _url(fields)
    if address is not None and url not in (None, address):
        raise ConfigError("the API has two addresses", evidence="url and openapi.server", fix="keep one", code=KEY)
    way = {
        "command": command and expand_home(command, fields.variables),
        "args": fields.texts("args"),
        "env": fields.text_map("env"),
        "cwd": cwd and expand_home(cwd, fields.variables),
        "url": address or url,
        "sse": type_ == SSE,
        "headers": fields.text_map("headers"),
        "openapi": api,
    }
    if type_ in STDIO_TYPES and command is None:
        raise ConfigError("a stdio server needs a command", fix='add "command", or set "type": "http"', code=KEY)
    if type_ in (*HTTP_TYPES, SSE) and url is None:
        named = "sse" if type_ == SSE else "http"
        raise ConfigError(f"an {named} server needs a url", fix='add "url", or set "type": "stdio"', code=KEY)
    return way


def _type(fields: Fields) -> str:
    written = fields.text("type")
    also = fields.text("transport")
    written = written if written is not None else also
    if written is None:
        return ""
    plain = written.lower().replace("-", "").replace("_", "")
    if plain in STDIO_TYPES | HTTP_TYPES | {SSE, openapi.TYPE}:
        return plain
    known = plain in LATER_TYPES
    raise ConfigError(
        f"servers of type {written} are not supported yet" if known else f"{quoted(written)} is not a type of server",
        evidence="supported are stdio, http (Streamable HTTP), sse and openapi",
        fix='set "type": "http" if the server has a Streamable HTTP endpoint' if known else "",
        code="E-CONFIG-TYPE",
    )


def _url(fields: Fields) -> str | None:
    given = {key: text for key in URL_KEYS if (text := fields.text(key)) is not None}
    if len(set(given.values())) > 1:
        raise ConfigError("the server has two addresses", evidence=" and ".join(given), fix="keep one", code=KEY)
    return next(iter(given.values()), None)


def _behaviour(fields: Fields) -> dict[str, Any]:
    policies = get_args(EnvPolicy)
    policy = fields.choice("env_policy", policies, fields.choice("envPolicy", policies, "safe"))
    return {
        "env_policy": cast(EnvPolicy, policy),
        "era": cast(EraSetting, fields.choice("era", get_args(EraSetting), "auto")),
        # A server that either key switches off is off.
        "enabled": fields.flag("enabled", True) and not fields.flag("disabled", False),
        "lazy": fields.flag("lazy", False),
        "shared": fields.flag("shared", False),
        "idle_stop": fields.seconds("idleStop", 0.0, zero=True),
        "restart": replace(Restart(), limit=fields.whole("maxRestarts", Restart().limit)),
        "health": replace(Health(), interval=fields.seconds("keepAliveInterval", Health().interval, zero=True)),
    }


def _timeout(fields: Fields) -> Timeout:
    written = fields.rest.get("timeout")
    default = Timeout()
    total = fields.seconds("timeout", default.total)
    if isinstance(written, int | float) and total < 1:
        fields.warn(
            f"timeout is {written} milliseconds",
            evidence="a number without a unit is milliseconds, as in other hosts",
            fix=f'write "{written}s" if seconds are meant',
        )
    if total > MAX_TIMEOUT:
        fields.warn(f"timeout is {total:.0f} s", evidence=f"a call is never longer than {MAX_TIMEOUT:.0f} s")
        total = MAX_TIMEOUT
    return replace(
        default,
        total=total,
        start=fields.seconds("startTimeout", default.start),
        connect=fields.seconds("connectTimeout", default.connect),
    )


def _limits(fields: Fields) -> Limits:
    given = fields.rest.pop("limits", None)
    if given is None:
        return Limits()
    if not isinstance(given, Mapping):
        raise ConfigError("limits must be an object", evidence=f"found {kind(given)}", code=KEY)
    inner, default = Fields(given, fields.variables), Limits()
    limits = Limits(
        concurrent=inner.whole("concurrent", default.concurrent, least=1),
        waiting=inner.whole("waiting", default.waiting),
        frame=inner.whole("frame", default.frame, least=1024),
        stderr=inner.whole("stderr", default.stderr),
        compression=inner.flag("compression", default.compression),
        tools=inner.whole("tools", default.tools, least=1),
    )
    for key in inner.rest:
        fields.warn(f"limits.{key} is not known", evidence="it is kept and has no effect")
    if inner.rest:
        fields.rest["limits"] = inner.rest
    return limits


def _mention_misspelling(fields: Fields, key: str) -> None:
    close = difflib.get_close_matches(key.lower(), [known.lower() for known in OUR_KEYS], n=1, cutoff=0.8)
    if close and key not in OUR_KEYS:
        meant = next(known for known in OUR_KEYS if known.lower() == close[0])
        fields.warn(f"{key!r} is not known", evidence="it is kept and has no effect", fix=f"did you mean {meant!r}?")
