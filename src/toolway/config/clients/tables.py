"""Agents that keep TOML: Codex, Grok Build and Mistral Vibe. Two of them name variables instead of filling them in."""

from __future__ import annotations

from typing import Any, Final

from toolway.config.clients.dialect import Dialect, Timeout, Value
from toolway.config.clients.paths import Paths, place
from toolway.config.clients.values import Client, Place
from toolway.config.syntaxes import NONE, OURS, Piece, Ref, parse

_BEARER: Final = "Bearer "


def _codex(paths: Paths) -> list[Place]:
    return _tables(paths, "codex", "CODEX_HOME")


def _grok(paths: Paths) -> list[Place]:
    return _tables(paths, "grok", "GROK_HOME")


def _tables(paths: Paths, name: str, variable: str) -> list[Place]:
    user = paths.named(variable, paths.home / f".{name}") / "config.toml"
    project = paths.nearest(f".{name}/config.toml")
    return [
        place(name, "user", user, "toml", ("mcp_servers",)),
        place(name, "project", project, "toml", ("mcp_servers",), project.parent.parent),
    ]


def _vibe(paths: Paths) -> list[Place]:
    user = paths.named("VIBE_HOME", paths.home / ".vibe") / "config.toml"
    project = paths.nearest(".vibe/config.toml")
    return [
        place("mistral-vibe", "user", user, "toml", ("mcp_servers",)),
        place("mistral-vibe", "project", project, "toml", ("mcp_servers",), project.parent.parent),
    ]


def _lift_codex(value: Value, left: Value) -> None:
    """`env_vars`, `env_http_headers` and `bearer_token_env_var` name variables."""
    names = left.get("env_vars")
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        value["env"] = {**value.get("env", {}), **{name: f"${{{name}}}" for name in left.pop("env_vars")}}
    headers = left.get("env_http_headers")
    if isinstance(headers, dict) and all(isinstance(name, str) for name in headers.values()):
        named = {key: f"${{{name}}}" for key, name in left.pop("env_http_headers").items()}
        value["headers"] = {**value.get("headers", {}), **named}
    if isinstance(left.get("bearer_token_env_var"), str):
        token = left.pop("bearer_token_env_var")
        value["headers"] = {**value.get("headers", {}), "Authorization": f"{_BEARER}${{{token}}}"}
    if isinstance(left.get("startup_timeout_ms"), int):
        value["startTimeout"] = left.pop("startup_timeout_ms")


def _lower_codex(value: Value, written: Value) -> list[tuple[str, str]]:
    losses = []
    env = value.get("env")
    if isinstance(env, dict):
        same = [name for name, text in env.items() if _variable(text) == name]
        if same:
            written["env_vars"] = same
            _without(value, "env", same)
    headers = value.get("headers")
    for name, text in list(headers.items()) if isinstance(headers, dict) else ():
        token, variable = _bearer(text), _variable(text)
        if name.lower() == "authorization" and token is not None:
            written["bearer_token_env_var"] = token
        elif variable is not None:
            written.setdefault("env_http_headers", {})[name] = variable
        else:
            continue
        losses += _default_lost(f"headers.{name}", text)
        _without(value, "headers", [name])
    return losses


def _lift_vibe(value: Value, left: Value) -> None:
    """`api_key_env` names the variable of a token, `api_key_format` how it stands in its header."""
    name = left.get("api_key_env")
    if not isinstance(name, str):
        return
    header, form = left.get("api_key_header", "Authorization"), left.get("api_key_format", f"{_BEARER}{{token}}")
    if isinstance(header, str) and isinstance(form, str) and header not in value.get("headers", {}):
        for key in ("api_key_env", "api_key_header", "api_key_format"):
            left.pop(key, None)
        value["headers"] = {**value.get("headers", {}), header: form.replace("{token}", f"${{{name}}}")}


def _lower_vibe(value: Value, written: Value) -> list[tuple[str, str]]:
    """One header can be had from a variable."""
    headers = value.get("headers")
    for name, text in list(headers.items()) if isinstance(headers, dict) else ():
        pieces = parse(text, OURS) if isinstance(text, str) else ()
        variables = [piece for piece in pieces if isinstance(piece, Ref)]
        if len(variables) == 1 and variables[0].kind == "env":
            form = "".join("{token}" if isinstance(piece, Ref) else piece for piece in pieces)
            written |= {"api_key_env": variables[0].name, "api_key_header": name, "api_key_format": form}
            _without(value, "headers", [name])
            return _default_lost(f"headers.{name}", text)
    return []


def _without(value: Value, key: str, names: list[str]) -> None:
    value[key] = {name: item for name, item in value[key].items() if name not in names}
    if not value[key]:
        del value[key]


def _pieces(text: Any) -> tuple[Piece, ...]:
    return parse(text, OURS) if isinstance(text, str) else ()


def _variable(text: Any) -> str | None:
    """`${NAME}` and nothing else → NAME."""
    match _pieces(text):
        case (Ref("env", name, _),):
            return name
    return None


def _bearer(text: Any) -> str | None:
    match _pieces(text):
        case (str() as before, Ref("env", name, _)) if before == _BEARER:
            return name
    return None


def _default_lost(field: str, text: Any) -> list[tuple[str, str]]:
    defaults = [piece for piece in _pieces(text) if isinstance(piece, Ref) and piece.default is not None]
    return [(field, f"it knows no default for {piece.name}") for piece in defaults]


_SECONDS: Final = 1000
CLIENTS: Final = (
    Client(
        "codex",
        "Codex",
        _codex,
        Dialect(
            cwd="cwd",
            urls={"http": "url"},
            headers="http_headers",
            headers_helper="http_headers_helper",
            timeout=Timeout("tool_timeout_sec", _SECONDS),
            start_timeout=Timeout("startup_timeout_sec", _SECONDS),
            enabled="enabled",
            allow="enabled_tools",
            deny="disabled_tools",
            oauth="oauth",
            oauth_keys={"client_id": "clientId"},
            syntax=NONE,
            lift=_lift_codex,
            lower=_lower_codex,
        ),
    ),
    Client(
        "grok",
        "Grok Build",
        _grok,
        Dialect(
            cwd="cwd",
            urls={"http": "url"},
            timeout=Timeout("tool_timeout_sec", _SECONDS),
            start_timeout=Timeout("startup_timeout_sec", _SECONDS),
            enabled="enabled",
            says_enabled=True,
        ),
    ),
    Client(
        "mistral-vibe",
        "Mistral Vibe",
        _vibe,
        Dialect(
            named="name",
            listed=True,
            type_key="transport",
            types={"stdio": "stdio", "http": "streamable-http"},
            urls={"http": "url"},
            timeout=Timeout("tool_timeout_sec", _SECONDS),
            start_timeout=Timeout("startup_timeout_sec", _SECONDS),
            lift=_lift_vibe,
            lower=_lower_vibe,
        ),
    ),
)
